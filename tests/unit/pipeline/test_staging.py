"""Parts that executors staged: in what order they count, and which do not count at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from leasehold.pipeline.staging import (
    NotStaged,
    StagedPart,
    Stager,
    check_parts,
    described,
    in_order,
    put_together,
    sorted_slices,
)

PART = StagedPart(epoch=3, start="7", name="x", rows=2)


class Kept(Stager):
    def __init__(self) -> None:
        self.tables: list[pa.Table] = []

    def stage(self, table: pa.Table, unique: str) -> StagedPart:
        self.tables.append(table)
        return replace(PART, name=unique, rows=table.num_rows)


def rows(*sequences: int) -> pa.Table:
    return pa.table({"sequence": pa.array(sequences, pa.int64())})


def part(name: str, first: int | None, last: int | None) -> StagedPart:
    return replace(PART, name=name, first=first, last=last)


def test_a_part_bears_the_sequences_of_its_rows() -> None:
    found = described(PART, rows(5, 3, 9))
    assert (found.first, found.last, found.name) == (3, 9, "x")


@pytest.mark.parametrize("table", [pa.table({"n": [1]}), pa.table({"sequence": ["a"]})], ids=["none", "a text"])
def test_a_part_without_sequences_bears_none(table: pa.Table) -> None:
    assert described(PART, table) == PART


def test_parts_come_in_the_order_of_their_sequences() -> None:
    parts = [part("c", 20, 25), part("a", 1, 4), part("b", 5, 5)]
    assert [each.name for each in in_order(parts)] == ["a", "b", "c"]


def test_parts_without_sequences_stay_as_the_tasks_are() -> None:
    parts = [part("c", None, None), part("a", None, None)]
    assert in_order(parts) == parts


def test_a_part_whose_sequences_are_all_null_comes_last_and_hides_no_overlap() -> None:
    null = described(part("n", None, None), pa.table({"sequence": pa.nulls(2, pa.int64())}))
    assert [each.name for each in in_order([null, part("b", 5, 9), part("a", 1, 4)])] == ["a", "b", "n"]
    with pytest.raises(NotStaged, match="shuffles rows"):
        in_order([part("a", 0, 10), null, part("b", 5, 15)])


@pytest.mark.parametrize("other", [(3, 9), (0, 9), (2, 3)])
def test_parts_that_overlap_have_no_order(other: tuple[int, int]) -> None:
    with pytest.raises(NotStaged, match=r"shuffles rows.*executors_read: false"):
        in_order([part("a", 1, 4), part("b", *other)])


def names() -> Callable[[], str]:
    found = map("u{}".format, count())
    return lambda: next(found)


def test_rows_that_tasks_handed_back_stay_rows_where_nothing_is_staged() -> None:
    table, staged = put_together([rows(1), rows(2)], rows().schema, None, names())
    assert (table["sequence"].to_pylist(), staged) == ([1, 2], ())
    assert put_together([], rows().schema, None, names()) == (rows(), ())


@pytest.mark.parametrize("has_sequences", [True, False])
def test_rows_that_tasks_handed_back_are_staged_at_their_places_beside_others(has_sequences: bool) -> None:
    def piece(first: int, last: int) -> StagedPart:
        return part(f"p{first}", first, last) if has_sequences else part(f"p{first}", None, None)

    def handed_back(*sequences: int) -> pa.Table:
        return rows(*sequences) if has_sequences else pa.table({"n": sequences})

    stager = Kept()
    pieces = [handed_back(1), handed_back(2), piece(3, 9), handed_back(10), piece(11, 12), piece(13, 14), handed_back()]
    table, staged = put_together(pieces, handed_back(1).schema, stager, names())
    assert table.num_rows == 0
    assert [each.name for each in staged] == ["u0", "p3", "u1", "p11", "p13"]
    assert [len(each) for each in stager.tables] == [2, 1]


def test_pieces_of_a_sorting_transform_are_committed_in_the_order_of_their_sequences() -> None:
    pieces = [part("late", 8, 9), rows(4, 5), part("early", 1, 3)]
    _, staged = put_together(pieces, rows().schema, Kept(), names())
    assert [each.name for each in staged] == ["early", "u0", "late"]


def test_parts_that_end_where_the_next_begins_are_in_order() -> None:
    """One event may become many rows, and these may be cut."""
    parts = [part("a", 1, 4), part("b", 4, 4), part("c", 4, 9)]
    assert in_order(parts) == parts


def test_parts_of_this_epoch_and_batch_count() -> None:
    check_parts([PART, PART], epoch=3, start="7")


@pytest.mark.parametrize(("epoch", "start"), [(4, "7"), (2, "7"), (3, None), (3, "8")])
def test_parts_of_another_epoch_or_batch_do_not_count(epoch: int, start: str | None) -> None:
    with pytest.raises(NotStaged, match=r"'x' was staged at epoch 3 from '7'"):
        check_parts([PART], epoch=epoch, start=start)


# Slices

SLICE = 10_000


def texts(sequences: list[int | None], sizes: list[int]) -> pa.Table:
    """In chunks of 70 rows, each with its number."""
    whole = pa.table(
        {
            "sequence": pa.array(sequences, pa.int64()),
            "n": range(len(sizes)),
            "text": ["x" * size for size in sizes],
        }
    )
    return pa.concat_tables(whole.slice(i, 70) for i in range(0, len(sizes), 70))


@pytest.mark.parametrize(
    "sequences",
    [
        [*range(1000)],
        [*range(1000, 0, -1)],
        [i * 7 % 10 for i in range(1000)],
        [None, 3, *[None, 1] * 499],
        [None] * 1000,
    ],
    ids=["sorted", "reversed", "equal ones", "nulls", "nulls alone"],
)
@pytest.mark.parametrize(
    "sizes", [[100] * 1000, [*[1] * 900, *[1000] * 100], [*[1] * 999, 50_000]], ids=["even", "uneven", "a large one"]
)
def test_slices_are_small_and_together_the_rows_in_the_order_of_their_sequences(
    sequences: list[int | None], sizes: list[int]
) -> None:
    table = texts(sequences, sizes)
    slices = list(sorted_slices(table, SLICE))
    assert pa.concat_tables(slices).equals(table.take(pc.sort_indices(table["sequence"])))
    assert all(part.nbytes <= SLICE or part.num_rows == 1 for part in slices)
    assert len(slices) < 5 * table.nbytes / SLICE


def test_rows_without_sequences_keep_their_order() -> None:
    table = texts([*range(1000, 0, -1)], [100] * 1000).drop_columns("sequence")
    slices = list(sorted_slices(table, SLICE))
    assert pa.concat_tables(slices).equals(table)
    assert len(slices) > 10
    assert list(sorted_slices(rows(), SLICE)) == [rows()]


@pytest.mark.parametrize("is_sorted", [True, False])
def test_slices_copy_no_whole_part(is_sorted: bool) -> None:
    table = texts([*range(1000)] if is_sorted else [*range(1000, 0, -1)], [1000] * 1000)
    held = pa.total_allocated_bytes()
    for part in sorted_slices(table, SLICE):
        assert part.num_rows
        assert pa.total_allocated_bytes() - held < (SLICE if is_sorted else 5 * SLICE)
