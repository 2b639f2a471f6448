"""What comes again after a crash stays within the bound of docs/guarantees.md, with the page sizes that users have."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenarios.repetition import AGAIN_MAX, BATCH, EVENTS, KILLS, outlet_of, repeated
from scenarios.sinks import Room

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("sink", AGAIN_MAX)
def test_each_kill_repeats_at_most_what_is_promised(sink: str, tmp_path: Path) -> None:
    with outlet_of(sink) as make:
        room = Room(tmp_path / "room", make, events=EVENTS)
        room.begin()
        try:
            again = repeated(room, room.outlet, seed=200, kills=KILLS[sink])
        finally:
            room.close()
    assert room.outlet.batch == BATCH
    assert len(again) == KILLS[sink]
    assert max(again) <= AGAIN_MAX[sink], again
    assert sum(again) > 0, "no kill struck in the middle of a batch"
