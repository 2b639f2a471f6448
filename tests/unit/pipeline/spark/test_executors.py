"""What Python workers do with ranges, without Spark: they read and parse them, and hand rows back or stage them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from leasehold.common.distribution import own_version
from leasehold.pipeline.contract import event_table
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.parsing.schema import Field, Leaf, Struct, arrow_schema
from leasehold.pipeline.ranges import EventRange, RangeReader
from leasehold.pipeline.spark import executors
from leasehold.pipeline.spark.executors import (
    RETURNED_BYTES_MAX,
    CannotProcess,
    OutputTask,
    RangeTask,
    collected,
    new_attempt,
    returned,
    share_of,
)
from leasehold.pipeline.staging import StagedPart, Stager

COLUMNS = Struct((Field("number", Leaf("STRING"), nullable=False),))


@dataclass(frozen=True)
class Reader(RangeReader):
    """Yields tables of so many events."""

    size: int = 3

    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        numbers = range(int(planned.start or 0), int(planned.to))
        for at in range(0, len(numbers), self.size):
            yield event_table(partition, numbers[at : at + self.size])


@dataclass(frozen=True)
class Names(Stager):
    """Stages nothing, and says what it was given."""

    def stage(self, table: pa.Table, unique: str) -> StagedPart:
        return StagedPart(epoch=1, start=None, name=unique, rows=table.num_rows)


def task(*ends: int, reads: Sequence[str] = ("partition", "sequence", "number"), **changes: object) -> RangeTask:
    starts = [0, *ends]
    ranges = tuple(EventRange(str(a) if a else None, str(b), b - a) for a, b in zip(starts, ends, strict=False))
    whole = pa.unify_schemas([EVENT_SCHEMA, arrow_schema(COLUMNS)])
    fields: dict[str, object] = {
        "version": own_version(),
        "partition": "a",
        "ranges": ranges,
        "reader": Reader(),
        "columns": COLUMNS,
        "schema": pa.schema([whole.field(name) for name in reads]),
    }
    return RangeTask(**{**fields, **changes})  # type: ignore[arg-type]


def numbers(*batches: Sequence[int]) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"id": pa.array(each, pa.int64())}) for each in batches])


def rows(sequences: Sequence[int], partition: str | None = "a") -> pa.RecordBatch:
    return pa.record_batch(
        {"partition": pa.array([partition] * len(sequences), pa.string()), "sequence": pa.array(sequences, pa.int64())}
    )


def output_task(stager: Stager | None = None, **limits: int) -> OutputTask:
    return OutputTask(version=own_version(), partition="a", ranges=1, stager=stager, sign="mark: ", **limits)


@pytest.fixture(autouse=True)
def number(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The number of the task, which Spark knows."""

    def be(number: int) -> None:
        monkeypatch.setattr(executors, "task_number", lambda: number)

    be(0)
    return be


def test_each_number_is_one_range_of_events_with_the_columns_of_the_schema() -> None:
    sent = pickle.loads(pickle.dumps(task(5, 12, 20)))
    table = pa.Table.from_batches(list(sent(numbers([1], [2]))))
    assert table.schema.names == ["partition", "sequence", "number"]
    assert table["sequence"].to_pylist() == list(range(5, 20))
    assert table["number"].to_pylist() == [str(n) for n in range(5, 20)]


def test_small_tables_are_parsed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(task(20)(numbers([0])))
    assert [batch.num_rows for batch in found] == [20]
    monkeypatch.setattr(executors, "READ_BYTES", 1)
    assert [batch.num_rows for batch in task(20)(numbers([0]))] == [3] * 6 + [2]


def test_without_a_schema_the_events_are_as_they_are() -> None:
    found = pa.Table.from_batches(list(task(4, columns=None, schema=EVENT_SCHEMA)(numbers([0]))))
    assert found.equals(event_table("a", range(4)))


def test_bodies_that_do_not_fit_are_left_to_the_host() -> None:
    wrong = Struct((Field("text", Leaf("INT"), nullable=False),))
    schema = pa.unify_schemas([EVENT_SCHEMA, arrow_schema(wrong)])
    with pytest.raises(CannotProcess, match=r"4 bodies do not fit the schema: column 'text'"):
        list(task(4, columns=wrong, schema=schema)(numbers([0])))


def test_another_version_on_an_executor_is_named() -> None:
    words = rf"executors have Leasehold {own_version()}, and this host has 0.0.1: install"
    with pytest.raises(CannotProcess, match=words):
        list(task(4, version="0.0.1")(numbers([0])))
    with pytest.raises(CannotProcess, match=words):
        list(OutputTask(version="0.0.1", partition="a", ranges=1, stager=None, sign="mark: ")(iter([rows([1])])))


def test_small_output_is_handed_back() -> None:
    found = pa.Table.from_batches(list(output_task(Names())(iter([rows([1, 2]), rows([3])]))))
    (table,) = collected(found, rows([]).schema)
    assert table["sequence"].to_pylist() == [1, 2, 3]


def test_no_output_is_no_row() -> None:
    assert list(output_task(Names())(iter([rows([])]))) == []


def test_large_output_is_staged_and_described() -> None:
    found = pa.Table.from_batches(list(output_task(Names(), collected_bytes_max=1)(iter([rows([4, 2]), rows([3])]))))
    (part,) = collected(found, rows([]).schema)
    assert (part.rows, part.first, part.last) == (3, 2, 4)


def test_output_without_a_stager_is_handed_back_however_large() -> None:
    found = pa.Table.from_batches(
        list(output_task(collected_bytes_max=1, part_bytes_max=1)(iter([rows([1, 2]), rows([3])])))
    )
    (table,) = collected(found, rows([]).schema)
    assert table["sequence"].to_pylist() == [1, 2, 3]


def test_output_that_nothing_stages_is_bounded() -> None:
    words = "more than 9 bytes of output, its share of the 12 that all tasks of a job may return, and nothing to stage it with"
    with pytest.raises(CannotProcess, match=words):
        list(output_task(returned_bytes_max=12)(iter([rows([1, 2])])))


@pytest.mark.parametrize("ranges", [1, 2, 3, 40])
@pytest.mark.parametrize("tasks", [1, 2, 3, 40, 80, 200, 10_000])
def test_whatever_tasks_there_are_they_return_no_more_together(ranges: int, tasks: int) -> None:
    shares = [share_of(number, ranges, RETURNED_BYTES_MAX) for number in range(tasks)]
    assert sum(shares) <= RETURNED_BYTES_MAX
    assert sorted(shares, reverse=True) == shares
    if tasks >= ranges:
        assert 3 * RETURNED_BYTES_MAX // 4 - ranges < sum(shares[:ranges])


def returned_together(task: OutputTask, number: Callable[[int], None], tasks: int) -> int:
    """How many of so many tasks may each return the same two rows."""
    count = 0
    for each in range(tasks):
        number(each)
        with suppress(CannotProcess):
            count += len(list(task(iter([rows([1, 2])]))))
    return count


def test_tasks_that_a_shuffle_adds_do_not_return_more(number: Callable[[int], None]) -> None:
    size = rows([1, 2]).nbytes
    task = replace(output_task(), ranges=4, returned_bytes_max=8 * size)
    assert returned_together(task, number, 4) == 4
    assert 4 <= returned_together(task, number, 1000) <= 8
    assert returned_together(replace(task, returned_bytes_max=RETURNED_BYTES_MAX), number, 1000) == 1000


def test_with_a_stager_tasks_return_no_more_together_either(number: Callable[[int], None]) -> None:
    size = rows([1, 2]).nbytes
    task = replace(output_task(Names()), ranges=4, returned_bytes_max=8 * size)
    found = []
    for each in range(1000):
        number(each)
        found += collected(pa.Table.from_batches(list(task(iter([rows([1, 2])])))), rows([]).schema)
    kept = [piece for piece in found if isinstance(piece, pa.Table)]
    assert 4 <= len(kept) <= 8
    assert sum(piece.num_rows if isinstance(piece, pa.Table) else piece.rows for piece in found) == 2000


def test_what_was_staged_and_what_was_handed_back_keep_their_order() -> None:
    part = StagedPart(epoch=1, start=None, name="x", rows=2)
    batches = [returned(None, pa.Table.from_batches([rows([1])])), returned(part, None)]
    batches.append(returned(None, pa.Table.from_batches([rows([4])])))
    first, second, third = collected(pa.Table.from_batches(batches), rows([]).schema)
    assert (first["sequence"].to_pylist(), second, third["sequence"].to_pylist()) == ([1], part, [4])


def test_a_part_is_bounded_and_what_follows_it_is_staged_too() -> None:
    task = output_task(Names(), part_bytes_max=rows([1, 2]).nbytes)
    found = pa.Table.from_batches(list(task(iter([rows([1, 2]), rows([3, 4]), rows([5])]))))
    parts = collected(found, rows([]).schema)
    assert [(part.first, part.last) for part in parts] == [(1, 2), (3, 4), (5, 5)]
    assert len({part.name for part in parts}) == 3


@pytest.mark.parametrize("partition", ["b", None])
def test_rows_of_another_partition_are_refused(partition: str | None) -> None:
    with pytest.raises(CannotProcess, match="rows of another partition than 'a'"):
        list(output_task()(iter([rows([1]), rows([2], partition)])))


def test_what_tasks_send_back_has_the_columns_of_the_check() -> None:
    columns = pa.schema([pa.field("partition", pa.string()), pa.field("sequence", pa.int64(), nullable=False)])
    found = pa.Table.from_batches([returned(None, pa.Table.from_batches([rows([1])]))])
    assert [table.schema for table in collected(found, columns)] == [columns]


def test_the_description_of_a_part_is_small_text() -> None:
    part = StagedPart(epoch=1, start=None, name="x", rows=2, first=1, last=2)
    text = returned(part, None).column("part")[0].as_py()
    assert json.loads(text)["name"] == "x"
    assert collected(pa.Table.from_batches([returned(part, None)]), rows([]).schema) == [part]


def test_each_attempt_has_a_name_of_its_own() -> None:
    assert len({new_attempt() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("DestinationAway: mark: it restarts\n\tat java", "it restarts"),
        ("DestinationAway: mark: ", ""),
        ("no mark here", None),
    ],
)
def test_a_destination_that_is_away_is_recognized_by_the_sign_of_the_job(text: str, why: str | None) -> None:
    assert output_task().why_away(text) == why
