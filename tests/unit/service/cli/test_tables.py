"""Tables and JSON of `leasehold lag`: how many events wait, and for how long the oldest has."""

import io

import pytest

from leasehold.service.cli.tables import lag_fields, lag_table, screen_of
from leasehold.service.lag.measurement import Lag, PartitionLag


def lag(*found: tuple[int | None, float | None]) -> Lag:
    return Lag(
        tuple(
            PartitionLag(pipeline="bank", partition=str(n), events=events, seconds=age)
            for n, (events, age) in enumerate(found)
        )
    )


def rows(found: Lag) -> list[list[str]]:
    out = io.StringIO()
    screen_of(out).print(lag_table(found))
    return [line.split() for line in out.getvalue().splitlines() if line.split()]


def test_a_partition_shows_how_long_its_oldest_event_has_waited() -> None:
    found = rows(lag((3, 2.75), (0, 0.0), (7, 840.0), (1, 11_520.0), (5, None)))
    assert [row[2:] for row in found if row[0] == "bank"] == [
        ["3", "2.8", "s"],
        ["0"],
        ["7", "14", "min"],
        ["1", "3.2", "h"],
        ["5", "unknown"],
    ]
    assert found[-1] == ["all", "16", "at", "least", "3.2", "h"]


@pytest.mark.parametrize(
    ("found", "last"),
    [
        (lag((3, 2.75), (4, 5.0)), ["all", "7", "5.0", "s"]),
        (lag((0, 0.0)), ["all", "0"]),
        (lag((4, None), (0, 0.0)), ["all", "4", "unknown"]),
    ],
)
def test_the_last_row_has_the_oldest_of_all(found: Lag, last: list[str]) -> None:
    assert rows(found)[-1] == last


def test_a_lag_that_was_known_last_shows_how_old_it_is() -> None:
    one = PartitionLag(pipeline="bank", partition="0", events=17, error="the broker is away", age_s=45.0)
    assert rows(Lag((one,)))[2] == ["bank", "0", "17", "(45.0", "s", "ago)", "unknown"]


def test_programs_get_nothing_of_how_the_seconds_were_found() -> None:
    one = PartitionLag(pipeline="bank", partition="7", events=3, seconds=2.123, waited_s=1.0, position="4")
    assert lag_fields(one) == {
        "pipeline": "bank",
        "partition": "7",
        "events": 3,
        "error": None,
        "age_s": 0.0,
        "seconds": 2.123,
    }
