"""What comes again after a crash stays within the bound of docs/guarantees.md, with the page sizes that users have."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.scenarios.repetition import AGAIN_MAX, KILLS, each_in_order, measured

IN_SHORT = ("log", "handlers")
"""`make repetition` kills hosts with the other sinks as well."""


@pytest.mark.parametrize("sink", IN_SHORT)
def test_each_kill_repeats_at_most_what_is_promised(sink: str, tmp_path: Path) -> None:
    again = measured(sink, tmp_path / "room", kills=KILLS[sink], seed=200)
    assert len(again) == KILLS[sink]
    assert max(again) <= AGAIN_MAX[sink], again
    assert sum(again) > 0 or not AGAIN_MAX[sink], "no kill struck in the middle of a batch"


@pytest.mark.parametrize(
    ("second", "good"),
    [([2, 1, 4, 3], True), ([2, 2, 1, 4, 3], False), ([1, 2, 4, 3, 6, 5], True), ([2, 3, 1, 4], False)],
    ids=["again", "twice", "further", "swapped"],
)
def test_a_host_that_handles_a_key_out_of_order_is_found_even_if_its_events_came_before(
    second: list[int], good: bool
) -> None:
    first = [1, 2, 3, 4]
    assert each_in_order([{"a": first}, {"a": first + second}], "a", 2) is good
