"""A slice of `make scenarios SINK=...`: a host over requests and files, killed; and what makes the whole of it fail."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from lab.scenarios.cases import POINTS_OF_SINK, exit_code, points_of_sink, table
from lab.scenarios.outlets import AGAIN_MAX, SINKS, InDeltaMerged
from lab.scenarios.sinks import (
    ACCOUNTS,
    AS_PROMISED,
    EVENTS,
    LIVES,
    Room,
    case_of,
    cases,
    crash,
    event_of,
    judged,
    opened,
)
from patience import Failed

from leasehold.pipeline.connectors.files.delta.table import Table, location_of

FEW = 150
"""Enough for requests to wait for earlier ones."""
ALL = tuple(range(1, EVENTS + 1))
once = partial(crash, lives=1)


@pytest.mark.parametrize(
    ("sink", "point"), [("http", "submitted"), ("cosmos", "before submit"), ("files", "entry put")]
)
def test_a_host_that_is_killed_loses_nothing_and_repeats_no_more_than_said(sink: str, point: str) -> None:
    with opened(1, sink, events=FEW) as rooms:
        assert rooms.verdict(case_of("killed", point, once)).startswith(f"{AS_PROMISED}: ")


def test_a_point_that_is_never_reached_fails_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    def unreached(room: Room, point: str) -> int:
        return crash(room, point, lives=1)

    with opened(1, "files") as rooms:
        never = case_of("killed", "committed", unreached)
        good = table(rooms.verdict, [never], at_a_time=1, good=AS_PROMISED)
    assert exit_code([never], good) == 1
    assert "the point was not reached: exit code 0" in capsys.readouterr().out


@pytest.mark.parametrize("sink", SINKS)
def test_every_point_of_a_sink_is_a_case_of_a_kill_and_of_a_freeze(sink: str) -> None:
    reached = {(case.scenario, case.point) for case in cases(sink)}
    assert reached == {(scenario, point) for scenario in ("killed", "frozen") for point in points_of_sink(sink)}
    assert set(POINTS_OF_SINK[sink]) <= {point for _, point in reached}


def merge_events(directory: Path, *numbers: int) -> None:
    """Of account a, in one commit of the table of `InDeltaMerged`."""
    events = [event_of("a", number) for number in numbers]
    rows = pa.table(
        {
            "partition": pa.array(["a"] * len(events)),
            "key": pa.array([str(event["line"]) for event in events]),
            "sequence": pa.array(numbers, pa.int64()),
            "body": pa.array([json.dumps(event).encode() for event in events]),
        }
    )
    table = Table(location_of(directory / "table"))
    table.create(rows.schema)
    table.refresh()
    table.merge(rows, ("partition", "key"), {"lease": numbers[-1]})


def test_a_merge_that_is_repeated_or_of_a_stale_owner_is_told(tmp_path: Path) -> None:
    outlet = InDeltaMerged(tmp_path)
    assert outlet.arrived() == {}
    merge_events(tmp_path, 1, 2)
    merge_events(tmp_path, 3, 11, 12)
    assert outlet.arrived() == {"a": [1, 2, 3, 11, 12]}
    merge_events(tmp_path, 1, 2)
    assert outlet.arrived() == {"a": [1, 2, 3, 11, 12, 1, 2]}
    merge_events(tmp_path, 1, 2)
    with pytest.raises(Failed, match="a merge is repeated: the one behind 3 others has changed no row"):
        outlet.arrived()


def verdict(b: Sequence[int], *, again_max: int = AGAIN_MAX, lines: int | None = 10, incidents: int = LIVES) -> str:
    arrived: Mapping[str, Sequence[int]] = {ACCOUNTS[0]: ALL, ACCOUNTS[1]: b}
    return judged(arrived, incidents=incidents, again_max=again_max, lines=lines)


def test_whoever_lost_repeated_or_swapped_something_is_told() -> None:
    assert verdict(ALL).startswith(AS_PROMISED)
    assert verdict((*ALL[:7], *ALL[8:])) == "LOST: 1 of partition b, 8 the first of them"
    assert verdict(()) == f"LOST: {EVENTS} of partition b, 1 the first of them"
    assert verdict((*ALL[:-1], ALL[-1] + 1)).startswith("LOST: 1")
    assert verdict((11, 1, *ALL[1:10], *ALL[11:])) == "OUT OF ORDER: partition b"
    assert verdict((2, 1, *ALL[2:])).startswith(AS_PROMISED)
    assert verdict((2, 1, *ALL[2:]), lines=1) == "OUT OF ORDER: partition b"
    assert verdict((11, 1, *ALL[1:10], *ALL[11:]), lines=None).startswith(AS_PROMISED)


def test_what_comes_again_counts_for_each_incident() -> None:
    most = (*ALL, *ALL[: AGAIN_MAX * 2])
    assert verdict(most, incidents=2).startswith(f"{AS_PROMISED}: {AGAIN_MAX * 2} of a partition came again")
    assert (
        verdict((*most, 1), incidents=2)
        == f"TOO OFTEN: {AGAIN_MAX * 2 + 1} of partition b came again, after 2 incidents"
    )
    assert verdict((*ALL, 1), again_max=0).startswith("TOO OFTEN: 1 of partition b")
