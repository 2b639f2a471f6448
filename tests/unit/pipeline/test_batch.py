"""When a batch closes, and where it can be cut."""

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.pipeline.batch import Batch, due_in_s, is_full
from leasehold.pipeline.contract import event_table
from leasehold.pipeline.event import EVENT_SCHEMA, Page, Receipt
from leasehold.pipeline.limits import BatchLimits


def page(first: int, events: int) -> Page:
    """Events first.. of a feed whose positions are the number of events before them."""
    table = event_table("a", range(first, first + events))
    return Page(table, str(first + events), lambda n: str(first + n))


def batch_of(*sizes: int) -> Batch:
    firsts = accumulate(sizes, initial=0)
    return Batch("a", None, tuple(page(first, size) for first, size in zip(firsts, sizes, strict=False)), 100.0)


def numbers(batch: Batch) -> list[int]:
    return batch.table["sequence"].to_pylist()


sizes_and_cut = (
    st.lists(st.integers(0, 4), min_size=1, max_size=6)
    .filter(any)
    .flatmap(lambda sizes: st.tuples(st.just(sizes), st.integers(1, sum(sizes))))
)


@settings(deadline=None)
@given(sizes_and_cut)
def test_a_head_holds_exactly_the_first_events_and_ends_behind_them(case: tuple[list[int], int]) -> None:
    sizes, n = case
    head = batch_of(*sizes).head(n)
    assert head is not None
    assert (numbers(head), head.events) == (list(range(n)), n)
    assert (head.partition, head.start, head.to, head.opened_at) == ("a", None, str(n), 100.0)


@settings(deadline=None)
@given(sizes_and_cut, st.data())
def test_a_head_can_be_cut_again(case: tuple[list[int], int], data: st.DataObject) -> None:
    sizes, n = case
    head = batch_of(*sizes).head(n)
    assert head is not None
    m = data.draw(st.integers(1, n))
    again = head.head(m)
    assert again is not None
    assert (numbers(again), again.to) == (list(range(m)), str(m))


def test_a_head_of_a_page_that_cannot_be_cut_is_none_and_one_between_pages_is_not() -> None:
    batch = Batch("a", None, tuple(replace(p, position_after=lambda n: None) for p in batch_of(2, 3).pages), 0.0)
    assert batch.head(1) is None
    assert batch.head(4) is None
    head = batch.head(2)
    assert head is not None
    assert head.to == "2"


def test_a_head_keeps_the_batch_it_came_from_as_it_was() -> None:
    batch = batch_of(2, 3)
    batch.head(1)
    assert (batch.events, batch.to) == (5, "5")


def test_a_batch_knows_how_much_it_holds() -> None:
    batch = batch_of(2, 0, 3)
    assert (batch.events, batch.bytes) == (5, sum(p.events.nbytes for p in batch.pages))


def test_the_table_is_one_chunk_of_events() -> None:
    table = batch_of(2, 0, 3).table
    assert table.schema == EVENT_SCHEMA
    assert [column.num_chunks for column in table.columns] == [1] * len(EVENT_SCHEMA)


def test_a_batch_of_nothing_but_an_empty_page_has_a_table_too() -> None:
    table = batch_of(0).table
    assert (table.schema, table.num_rows) == (EVENT_SCHEMA, 0)


@pytest.mark.parametrize(("events", "full"), [(9, False), (10, True), (11, True)])
def test_a_batch_is_full_by_count(events: int, full: bool) -> None:
    assert is_full(events, 1, BatchLimits(events_max=10)) is full


@pytest.mark.parametrize(("bytes_held", "full"), [(99, False), (100, True), (101, True)])
def test_a_batch_is_full_by_bytes(bytes_held: int, full: bool) -> None:
    assert is_full(1, bytes_held, BatchLimits(bytes_max=100)) is full


def test_a_batch_is_due_when_it_is_full_whatever_its_age() -> None:
    assert due_in_s(10, 1, 100.0, BatchLimits(events_max=10, age_max_s=60), now=100.0) == 0


@pytest.mark.parametrize(("now", "due_in"), [(100.0, 60.0), (150.0, 10.0), (160.0, 0.0), (170.0, 0.0)])
def test_a_batch_is_due_at_its_age(now: float, due_in: float) -> None:
    assert due_in_s(1, 1, 100.0, BatchLimits(age_max_s=60), now) == due_in


def test_by_default_a_batch_is_due_at_once() -> None:
    assert due_in_s(1, 1, 100.0, BatchLimits(), now=100.0) == 0


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any), st.integers(1, 9))
def test_a_batch_that_is_cut_loses_nothing_and_ends_where_it_did(sizes: list[int], parts: int) -> None:
    whole = batch_of(*sizes)
    cut = whole.cut(parts)
    assert [number for part in cut for number in numbers(part)] == numbers(whole)
    assert len(cut) == min(parts, whole.events)
    assert [part.start for part in cut] == [None, *(part.to for part in cut[:-1])]
    assert (cut[-1].to, {part.opened_at for part in cut}) == (whole.to, {100.0})
    again = [part for each in cut for part in each.cut(2)]
    assert [number for part in again for number in numbers(part)] == numbers(whole)


def test_a_batch_that_its_feed_cannot_cut_stays_whole() -> None:
    whole = Batch("a", None, (Page(event_table("a", range(4)), "4"),), 100.0)
    assert whole.cut(3) == [whole]


def transactions(*ends: int) -> Batch:
    """One page that can be cut only behind so many events."""
    return Batch(
        "a",
        None,
        (Page(event_table("a", range(ends[-1])), str(ends[-1]), lambda n: str(n) if n in ends else None),),
        100.0,
    )


@pytest.mark.parametrize(
    ("at", "sizes"),
    [(5, [5, 5]), (6, [5, 5]), (4, [2, 8]), (1, [2, 8]), (9, [8, 2]), (10, [10])],
)
def test_a_batch_is_cut_where_its_feed_can_be_before_the_place_or_else_behind_it(at: int, sizes: list[int]) -> None:
    cut = transactions(2, 5, 8, 10).cut_at(at)
    assert [part.events for part in cut] == sizes
    assert [number for part in cut for number in numbers(part)] == list(range(10))
    assert [part.start for part in cut] == [None, *(part.to for part in cut[:-1])]


def test_a_batch_is_cut_between_pages_where_the_next_cannot_be() -> None:
    whole = Batch("a", None, (*batch_of(2, 3).pages, replace(page(5, 4), position_after=lambda n: None)), 100.0)
    assert [part.events for part in whole.cut_at(7)] == [5, 4]
    assert [part.events for part in whole.cut_at(4)] == [4, 5]


def test_parts_of_a_batch_are_whole_transactions() -> None:
    assert [part.events for part in transactions(3, 4, 9, 10).cut(3)] == [3, 1, 6]


@given(sizes_and_cut)
def test_parts_of_a_batch_carry_what_its_pages_were_charged_once(case: tuple[list[int], int]) -> None:
    sizes, n = case
    batch = batch_of(*sizes)
    pages = tuple(replace(page, receipt=Receipt(2.0**at, f"0:{at}")) for at, page in enumerate(batch.pages))
    parts = replace(batch, pages=pages).cut_at(n)
    receipts = [part.receipt for part in parts]
    assert all(receipt is not None for receipt in receipts)
    assert sum(receipt.request_charge for receipt in receipts if receipt) == 2.0 ** len(sizes) - 1
    assert receipts[-1] is not None
    assert receipts[-1].session_token == f"0:{len(sizes) - 1}"


def test_a_batch_of_a_source_without_receipts_has_none() -> None:
    assert batch_of(2, 3).receipt is None
