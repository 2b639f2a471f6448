"""A slice of `make scenarios RANGES=...`: a host dies before it commits what executors staged; and what makes the whole fail."""

from __future__ import annotations

import pytest
from lab.scenarios.ranges import EVENTS, GOOD, PARTITIONS, Case, crash, judged, opened

ALL = tuple(range(EVENTS))


@pytest.mark.parametrize("sink", ["postgres"])
def test_a_host_that_dies_before_its_commit_loses_nothing_and_stages_again(sink: str) -> None:
    with opened(sink) as verdict:
        found = verdict(Case("killed", "ranges staged", lambda room: crash(room, "ranges staged", lives=1)))
    assert found.startswith(f"{GOOD}; ")


def test_a_point_that_is_never_reached_is_reported() -> None:
    with opened("files") as verdict:
        found = verdict(Case("killed", "published", lambda room: crash(room, "published", lives=1)))
    assert found.startswith("the point was not reached: exit code 0")


@pytest.mark.parametrize(
    ("last", "verdict"),
    [
        (ALL, None),
        (ALL[:-1], f"LOST: 1 of partition 1, {EVENTS - 1} the first of them"),
        ((*ALL, 3), "TWICE: 1 of partition 1"),
        ((1, 0, *ALL[2:]), "OUT OF ORDER: partition 1"),
    ],
    ids=["good", "lost", "twice", "swapped"],
)
def test_whatever_is_wrong_with_the_rows_is_named(last: tuple[int, ...], verdict: str | None) -> None:
    assert judged({PARTITIONS[0]: ALL, PARTITIONS[1]: last}) == verdict
