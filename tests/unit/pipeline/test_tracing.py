"""Trace contexts of events: found in untrusted properties, and written into those that are published."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.tracing import (
    AZURE_ID,
    CONTEXTS_MAX,
    NO_CONTEXTS,
    PARENT,
    STATE,
    STATE_CHARS_MAX,
    Contexts,
    TraceContext,
    contexts_in,
    with_pairs,
)

MAP = EVENT_SCHEMA.field("properties").type
Properties = list[tuple[str, str | None]] | None


def parent(trace: int, span: int = 1, flags: str = "01") -> str:
    return f"00-{trace:032x}-{span:016x}-{flags}"


def column(*rows: Properties) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(rows, MAP)])


def found(*rows: Properties) -> Contexts:
    return contexts_in([column(*rows)])


# Found


def test_events_of_one_context_are_one() -> None:
    row: Properties = [("a", "1"), (PARENT, parent(7)), (STATE, "k=v")]
    assert found(row, row) == Contexts((TraceContext(parent(7), "k=v"),), are_one=True)


@pytest.mark.parametrize("other", [None, [], [("a", "1")], [(PARENT, "nonsense")], [(PARENT, parent(8))]])
def test_events_of_which_one_has_another_context_or_none_are_not_one(other: Properties) -> None:
    contexts = found([(PARENT, parent(7))], other)
    assert TraceContext(parent(7)) in contexts.found
    assert not contexts.are_one


def test_contexts_are_distinct_in_the_order_of_the_events_over_all_pages() -> None:
    pages = [column([(PARENT, parent(2))], [(PARENT, parent(1))]), column([(PARENT, parent(2))], [(PARENT, parent(3))])]
    assert [each.parent for each in contexts_in(pages).found] == [parent(2), parent(1), parent(3)]


def test_pages_of_one_context_each_are_one_only_if_it_is_the_same() -> None:
    same, other = column([(PARENT, parent(1))]), column([(PARENT, parent(2))])
    assert contexts_in([same, same]).are_one
    assert not contexts_in([same, other]).are_one


def test_what_azure_s_sdks_write_counts_where_there_is_no_traceparent() -> None:
    assert found([(AZURE_ID, parent(7))]) == Contexts((TraceContext(parent(7)),), are_one=True)
    assert found([(AZURE_ID, parent(7)), (PARENT, parent(7))]).are_one


BOTH: Properties = [(PARENT, parent(7)), (AZURE_ID, parent(8))]
ONE_ID: Properties = [(AZURE_ID, parent(7))]


@pytest.mark.parametrize("other", [None, [], [("a", "1")]])
def test_an_event_that_has_its_context_twice_does_not_stand_for_one_without(other: Properties) -> None:
    for twice in ([(PARENT, parent(7)), (AZURE_ID, parent(7))], [(PARENT, parent(7))] * 2, ONE_ID * 2):
        assert found(twice, other) == found(other, twice) == Contexts((TraceContext(parent(7)),), are_one=False)
        assert found(twice, twice).are_one


@pytest.mark.parametrize("other", [None, [("a", "1")], ONE_ID, [(PARENT, parent(7))], BOTH])
def test_beside_a_traceparent_what_azure_s_sdks_write_does_not_count(other: Properties) -> None:
    for rows in ((BOTH, other), (other, BOTH), (BOTH, other, BOTH)):
        contexts = contexts_in([column(None, [("b", "2")], *rows).slice(2)])
        assert contexts.found == (TraceContext(parent(7)),)
        assert contexts.are_one == (other not in (None, [("a", "1")]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        parent(0),
        parent(1, 0),
        parent(0xABC).upper(),
        f"ff{parent(1)[2:]}",
        f"{parent(1)}-more",
        f" {parent(1)}",
        f"{parent(1)}\n",
        parent(1).replace("1", "\u0131"),
        "0" * 100_000,
    ],
)
def test_what_is_malformed_is_ignored(text: str) -> None:
    assert found([(PARENT, text)]) == NO_CONTEXTS


def test_of_a_later_version_the_known_part_is_taken() -> None:
    assert found([(PARENT, f"01{parent(1)[2:]}-more")]).found == (TraceContext(f"01{parent(1)[2:]}"),)


def test_many_contexts_are_cut_off() -> None:
    rows: list[Properties] = [[(PARENT, parent(each))] for each in range(1, 10_000)]
    assert len(found(*rows).found) == CONTEXTS_MAX
    assert len(contexts_in(column(row) for row in rows[:100]).found) == CONTEXTS_MAX


def test_many_malformed_ones_do_not_hide_a_good_one() -> None:
    rows: list[Properties] = [[(PARENT, f"{each}")] for each in range(1000)]
    assert found(*rows, [(PARENT, parent(1))]).found == (TraceContext(parent(1)),)


def test_a_state_that_is_too_long_is_left_out() -> None:
    assert found([(PARENT, parent(1)), (STATE, "a" * (STATE_CHARS_MAX + 1))]).found == (TraceContext(parent(1)),)


def test_the_state_is_that_of_the_event_with_the_context() -> None:
    rows: list[Properties] = [None, [(STATE, "no=1")], [("a", "1"), (PARENT, parent(1)), (STATE, "yes=1")]]
    assert found(*rows).found == (TraceContext(parent(1), "yes=1"),)
    assert contexts_in([column(*rows).slice(1)]).found == (TraceContext(parent(1), "yes=1"),)


# Written

NAME = st.sampled_from(["a", "b", PARENT, STATE, AZURE_ID])
ROWS = st.lists(st.none() | st.lists(st.tuples(NAME, st.none() | st.text(max_size=3)), max_size=4), max_size=8)
PAIRS = st.sampled_from([{}, {PARENT: "p"}, {PARENT: "p", STATE: "ü"}])


@given(ROWS, PAIRS, st.integers(0, 8))
def test_every_event_bears_the_pairs_and_its_own_properties_without_a_former_context(
    rows: list[Properties], pairs: dict[str, str], start: int
) -> None:
    written = with_pairs(pa.array(rows, MAP).slice(start), pairs)
    written.validate(full=True)
    kept = [[pair for pair in row or [] if pair[0] not in (PARENT, STATE, AZURE_ID)] for row in rows[start:]]
    assert written.to_pylist() == [[*row, *pairs.items()] for row in kept]


def test_properties_that_a_null_hides_stay_hidden() -> None:
    hiding = pa.MapArray.from_arrays([0, 1, 2], ["a", "b"], ["1", "2"], mask=pa.array([True, False]))
    assert with_pairs(hiding.cast(MAP), {PARENT: "p"}).to_pylist() == [[(PARENT, "p")], [("b", "2"), (PARENT, "p")]]


def test_a_context_as_properties_has_a_state_only_if_there_is_one() -> None:
    assert TraceContext("p").properties == {PARENT: "p"}
    assert TraceContext("p", "s").properties == {PARENT: "p", STATE: "s"}
