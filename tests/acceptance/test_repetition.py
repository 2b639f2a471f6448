"""What comes again after a crash stays within the bound of docs/guarantees.md, with the page sizes that users have."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenarios.repetition import AGAIN_MAX, KILLS, measured

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("sink", AGAIN_MAX)
def test_each_kill_repeats_at_most_what_is_promised(sink: str, tmp_path: Path) -> None:
    again = measured(sink, tmp_path / "room", kills=KILLS[sink], seed=200)
    assert len(again) == KILLS[sink]
    assert max(again) <= AGAIN_MAX[sink], again
    assert sum(again) > 0 or not AGAIN_MAX[sink], "no kill struck in the middle of a batch"
