"""Isolating poison: decided without Spark, over anything that fails."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.event import EVENT_SCHEMA
from pipeline.poison import EVERY_INPUT, isolate, place_of


def search(events: int, fails: Callable[[range], bool]) -> tuple[range | None, list[range]]:
    steps = isolate(events)
    tried = [next(steps)]
    while True:
        try:
            tried.append(steps.send(fails(tried[-1])))
        except StopIteration as end:
            return end.value, tried


@given(st.integers(1, 5000), st.data())
def test_the_first_poison_event_is_found_alone(events: int, data: st.DataObject) -> None:
    poison = data.draw(st.sets(st.integers(0, events - 1), min_size=1, max_size=5))
    found, tried = search(events, lambda tried: any(each in tried for each in poison))
    assert found == range(min(poison), min(poison) + 1)
    assert len(tried) <= 2 + events.bit_length()


@given(st.integers(2, 5000), st.data())
def test_events_that_fail_only_together_are_found_as_their_smallest_range(events: int, data: st.DataObject) -> None:
    first, last = sorted(data.draw(st.lists(st.integers(0, events - 1), min_size=2, max_size=2, unique=True)))
    found, _ = search(events, lambda tried: first in tried and last in tried)
    assert found == range(first, last + 1)


@given(st.integers(1, 5000))
def test_what_fails_without_events_is_no_poison(events: int) -> None:
    found, tried = search(events, lambda _: True)
    assert found is EVERY_INPUT
    assert tried == [EVERY_INPUT]


@given(st.integers(2, 5000))
def test_a_failure_that_does_not_happen_again_is_not_blamed_on_events(events: int) -> None:
    assert search(events, lambda _: False)[0] is None


def test_a_lone_event_is_tried_again_before_it_is_blamed() -> None:
    assert search(1, lambda tried: len(tried) == 1) == (range(1), [EVERY_INPUT, range(1)])
    assert search(1, lambda _: False)[0] is None


@given(st.integers(1, 3000), st.data())
def test_everything_before_the_poison_has_been_seen_to_work(events: int, data: st.DataObject) -> None:
    poison = data.draw(st.integers(0, events - 1))
    _, tried = search(events, lambda tried: poison in tried)
    assert range(poison) in tried


def events_of(sequences: list[int], properties: list[tuple[str, str]] | None) -> pa.Table:
    rows = [
        {
            "partition": "3",
            "sequence": sequence,
            "offset": "0",
            "enqueued_time": datetime(2026, 1, 1, tzinfo=UTC),
            "properties": properties,
        }
        for sequence in sequences
    ]
    return pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)


def test_a_place_names_the_record_of_the_source_where_the_feed_does() -> None:
    source = [("file", "transactions-1.csv"), ("line", "8")]
    assert place_of(events_of([17], source)) == "partition '3', sequence 17 (file transactions-1.csv, line 8)"
    assert place_of(events_of([17], [("file", "x")])) == "partition '3', sequence 17"
    assert place_of(events_of([17], None)) == "partition '3', sequence 17"


def test_a_place_of_several_events_says_how_many() -> None:
    assert (
        place_of(events_of([17, 20, 21], None)) == "partition '3', sequences 17 to 21, 3 events that fail only together"
    )
