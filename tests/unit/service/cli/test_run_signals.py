"""What a second signal does while a host stops."""

from __future__ import annotations

import os
import signal
from math import inf

import pytest
from patience import until_async

from leasehold.service.cli import run


@pytest.mark.parametrize(
    ("second", "within_s", "exits"),
    [
        (signal.SIGTERM, inf, []),
        (signal.SIGTERM, -1.0, [128 + signal.SIGTERM]),
        (signal.SIGINT, inf, [128 + signal.SIGINT]),
    ],
    ids=["sent to the process and to its group", "later", "another signal"],
)
async def test_a_second_signal_ends_the_process_unless_it_is_the_first_one_sent_twice(
    second: signal.Signals, within_s: float, exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[str] = []
    found: list[int] = []
    monkeypatch.setattr(run, "SENT_TWICE_S", within_s)
    monkeypatch.setattr(os, "_exit", found.append)
    with run.stopping(lambda: stops.append("asked")):
        os.kill(os.getpid(), signal.SIGTERM)
        await until_async(lambda: bool(stops))
        os.kill(os.getpid(), second)
        os.kill(os.getpid(), signal.SIGINT)  # ends it in any case, so that the second one is over
        await until_async(lambda: 128 + signal.SIGINT in found)
    assert stops == ["asked"]
    assert found[: len(exits)] == exits
    assert found.count(128 + signal.SIGTERM) == exits.count(128 + signal.SIGTERM)
