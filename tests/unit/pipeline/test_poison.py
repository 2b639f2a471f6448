"""Isolating poison: decided without Spark, over anything that fails."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from math import log2

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.poison import NOTHING, Found, Trial, halfway, place_of, search


def searched(
    events: int, fails: Callable[[range], bool], *, attempts: int = 2, most: int = 10**6
) -> tuple[Found, list[Trial]]:
    """What is found, and what was tried, of a batch that has failed."""
    steps = search(events, "why", attempts=attempts, most=most)
    tried: list[Trial] = []
    answer: str | None = None
    while True:
        try:
            tried.append(steps.send(answer) if tried else next(steps))
        except StopIteration as end:
            return end.value, tried
        answer = "why" if fails(tried[-1].range) else None


def places(found: Found) -> list[int]:
    return [each.index for each in found.poison]


def has(poison: Collection[int]) -> Callable[[range], bool]:
    return lambda tried: any(each in tried for each in poison)


@given(st.integers(1, 5000), st.data())
def test_all_poison_is_found_in_order_and_nothing_else(events: int, data: st.DataObject) -> None:
    poison = data.draw(st.sets(st.integers(0, events - 1), min_size=1, max_size=12))
    found, _ = searched(events, has(poison))
    assert places(found) == sorted(poison)
    assert (found.together, found.fails_always) == (None, None)


@given(st.integers(2, 20_000), st.data())
def test_an_event_costs_at_most_twice_the_halvings_and_one_job_for_all_the_others(
    events: int, data: st.DataObject
) -> None:
    poison = data.draw(st.sets(st.integers(0, events - 1), min_size=1, max_size=20))
    _, tried = searched(events, has(poison))
    others = 1
    assert len(tried) + others <= len(poison) * (2 * log2(events) + 1)


@pytest.mark.parametrize("events", [*range(2, 40), 63, 64, 65, 100, 127, 128, 129])
def test_no_lone_poison_event_costs_more_wherever_it_is(events: int) -> None:
    most = max(len(searched(events, has({poison}))[1]) for poison in range(events))
    assert most <= 2 * log2(events)


@given(st.integers(1, 5000), st.integers(1, 4), st.data())
def test_no_more_is_looked_for_than_was_asked_for(events: int, most: int, data: st.DataObject) -> None:
    poison = data.draw(st.sets(st.integers(0, events - 1), min_size=1, max_size=12))
    found, _ = searched(events, has(poison), most=most)
    assert places(found) == sorted(poison)[:most]


@given(st.integers(1, 300), st.integers(1, 9), st.data())
def test_an_event_is_blamed_only_once_it_has_failed_alone_and_often_enough(
    events: int, attempts: int, data: st.DataObject
) -> None:
    poison = data.draw(st.integers(0, events - 1))
    found, tried = searched(events, has({poison}), attempts=attempts)
    with_it = 1 + sum(poison in trial.range for trial in tried)
    alone = range(poison, poison + 1)
    assert found.poison[0].attempts == with_it >= attempts
    assert events == 1 or alone in [trial.range for trial in tried]
    assert [trial.again for trial in tried if trial.range == alone and trial.again] == sorted(
        trial.again for trial in tried if trial.again
    )


@given(st.integers(2, 5000), st.data())
def test_events_that_fail_only_together_are_no_poison(events: int, data: st.DataObject) -> None:
    pair = data.draw(st.lists(st.integers(0, events - 1), min_size=2, max_size=2, unique=True))
    found, _ = searched(events, lambda tried: all(each in tried for each in pair))
    assert found.poison == ()
    assert found.together is not None
    assert all(each in found.together for each in pair)
    assert found.together.start < halfway(found.together) < found.together.stop


@given(st.integers(1, 5000))
def test_what_fails_without_events_is_no_poison(events: int) -> None:
    found, tried = searched(events, lambda _: True)
    assert found.fails_always == "why"
    assert found.poison == ()
    assert tried[-1] == Trial(NOTHING)
    assert len(tried) <= 2 * events.bit_length() + 2


def test_a_lone_event_whose_failure_goes_away_is_not_blamed() -> None:
    found, tried = searched(1, lambda _: False)
    assert found == Found((), None, None)
    assert tried == [Trial(range(1), again=1)]


@given(st.integers(2, 5000))
def test_a_failure_that_does_not_happen_again_is_not_blamed_on_events(events: int) -> None:
    assert searched(events, lambda _: False)[0].poison == ()


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


@pytest.mark.parametrize("every", [100, 1000, 3000])
def test_poison_that_comes_regularly_costs_little_more_than_the_halvings_of_its_distance(every: int) -> None:
    poison = set(range(every // 2, 100_000, every))
    found, tried = searched(100_000, has(poison))
    assert places(found) == sorted(poison)
    assert len(tried) <= len(poison) * (log2(every) + 3) + log2(100_000)
    assert sum(len(trial.range) for trial in tried) <= 100_000 * 8
