"""Hosts are killed 200 times on virtual time: the order of each key and what kills repeat are as docs/handlers.md has it."""

from __future__ import annotations

from typing import Any

import pytest
from lab.simulation.kills import KILLS, killed

from leasehold.pipeline.limits import ParallelLimits

LIMITS = {"max": 8, "window": 40, "attempts": 1_000_000, "timeout_s": 10.0, "backoff_s": 0.1}
HANDLERS = {
    "side by side": {"parallel": ParallelLimits(**LIMITS)},
    "side by side, by hand": {"parallel": ParallelLimits(**LIMITS, events_max=4, manual_ack=True)},
    "by hand": {"manual": 60},
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_200_kills_change_the_order_of_no_key_and_repeat_no_more_than_is_promised(handler: dict[str, Any]) -> None:
    verdict = killed(seed=1, **handler)
    assert verdict.found == (), "\n".join(verdict.trace[-50:])
    assert verdict.counts["kills"] == KILLS
    assert verdict.counts["repeated"] > 0, "no kill struck in the middle of a batch"
    assert (verdict.counts["checkpoints by hand that are refused"] > 0) == ("manual" in handler)
    assert verdict.counts["calls side by side"] + verdict.counts["calls ahead of checkpoints by hand"] > 0
