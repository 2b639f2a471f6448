"""Partitions whose rows are merged at the same time: each has the outcome that it would have alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_log import read_log
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType, StructType
from patience import until
from unit.pipeline.connectors.files.delta.tables import Permit, claim, sink_in

from leasehold.pipeline.connectors.files.delta import DeltaSink
from leasehold.pipeline.connectors.files.delta.sink import DeltaWriter
from leasehold.pipeline.connectors.files.delta.table import MergeRefused, Table
from leasehold.pipeline.errors import Fenced, OutputRefused, SinkRejected
from leasehold.pipeline.sink import Output

Sinks = Callable[..., DeltaSink]
COLUMNS = [
    Field("k", PrimitiveType("string")),
    Field("v", PrimitiveType("long")),
    Field("note", PrimitiveType("string")),
]


@pytest.fixture
async def sinks(tmp_path: Path) -> AsyncIterator[Sinks]:
    made: list[DeltaSink] = []

    def make(*more: Field) -> DeltaSink:
        DeltaTable.create(str(tmp_path), Schema([*COLUMNS, *more]), mode="ignore")
        made.append(sink_in(tmp_path, key=("k",)))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


async def writers_of(sink: DeltaSink, *partitions: str) -> list[DeltaWriter]:
    return [await sink.open(claim(1, partition=each)) for each in partitions]


def rows_of(*keys: str, **columns: list[Any]) -> pa.Table:
    return pa.table({"k": list(keys), **columns})


async def write(writer: DeltaWriter, rows: pa.Table) -> None:
    to = str(int(writer.position or 0) + 1)
    await writer.write(Output(table=rows, start=writer.position, to=to, events=1), Permit())


async def write_at_once(sink: DeltaSink, rows: Mapping[DeltaWriter, pa.Table]) -> list[BaseException | None]:
    """How each write ends. None is committed before all are queued. Their columns are in the table already."""
    committer, is_held, loop = sink._committer, asyncio.Event(), asyncio.get_running_loop()

    def wait_for_all(table: Table) -> None:
        loop.call_soon_threadsafe(is_held.set)
        until(lambda: len(committer._waiting) == len(rows), "the writes are queued")

    await sink.prepare()
    holding = asyncio.create_task(asyncio.to_thread(committer.use, wait_for_all))
    await is_held.wait()
    ends = await asyncio.gather(*(write(writer, each) for writer, each in rows.items()), return_exceptions=True)
    await holding
    return ends


def content(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    rows = [tuple(row[name] for name in columns or ("k", "v", "note")) for row in read_log(path).rows()]
    return sorted(rows, key=lambda row: str(row[0]))


async def test_rows_with_the_same_columns_are_one_commit(sinks: Sinks, tmp_path: Path) -> None:
    sink = sinks()
    a, b = await writers_of(sink, "a", "b")
    await write(a, rows_of("x", v=[1]))
    before = read_log(tmp_path).version
    assert await write_at_once(sink, {a: rows_of("x", v=[3]), b: rows_of("y", "z", v=[4, 5])}) == [None, None]
    assert read_log(tmp_path).version == before + 1
    assert content(tmp_path, "k", "v") == [("x", 3), ("y", 4), ("z", 5)]
    assert (a.position, b.position) == ("2", "1")


@pytest.mark.parametrize("is_there", [False, True], ids=["inserted", "updated"])
async def test_a_key_of_two_partitions_is_one_row_which_is_wholly_of_one_of_them(
    sinks: Sinks, tmp_path: Path, is_there: bool
) -> None:
    sink = sinks()
    a, b, c = await writers_of(sink, "a", "b", "c")
    if is_there:
        await write(c, rows_of("x", v=[0], note=["of c"]))
    before = read_log(tmp_path).version
    rows = {a: rows_of("x", v=[1], note=["of a"]), b: rows_of("x", v=[2], note=["of b"])}
    assert await write_at_once(sink, rows) == [None, None]
    assert read_log(tmp_path).version == before + 1
    [row] = content(tmp_path)
    assert row in [("x", 1, "of a"), ("x", 2, "of b")]


@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_a_column_that_the_output_lacks_keeps_its_value_whatever_is_written_at_the_same_time(
    sinks: Sinks, tmp_path: Path, order: str
) -> None:
    sink = sinks()
    writers = dict(zip("ab", await writers_of(sink, "a", "b"), strict=True))
    await write(writers["a"], rows_of("x", "y", v=[1, 1], note=["kept", "old"]))
    rows = {"a": rows_of("x", "z", v=[2, 2]), "b": rows_of("y", v=[2], note=["new"])}
    before = read_log(tmp_path).version
    assert await write_at_once(sink, {writers[each]: rows[each] for each in order}) == [None, None]
    assert read_log(tmp_path).version == before + 2
    assert content(tmp_path) == [("x", 2, "kept"), ("y", 2, "new"), ("z", 2, None)]


async def test_a_lease_that_was_taken_holds_up_no_rows_with_other_columns(sinks: Sinks, tmp_path: Path) -> None:
    sink = sinks()
    a, b, c = await writers_of(sink, "a", "b", "c")
    await sinks().open(claim(2, partition="a"))
    rows = {a: rows_of("x", v=[1]), b: rows_of("y", v=[2], note=["new"]), c: rows_of("z", v=[3])}
    ends = await write_at_once(sink, rows)
    assert [type(end) for end in ends] == [Fenced, type(None), type(None)]
    assert content(tmp_path) == [("y", 2, "new"), ("z", 3, None)]


@pytest.mark.parametrize("kind", [OutputRefused, SinkRejected])
async def test_rows_that_deltalake_refuses_stop_their_own_partition_alone(
    sinks: Sinks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[SinkRejected]
) -> None:
    sink = sinks()
    a, b, c = await writers_of(sink, "a", "b", "c")
    merge = Table.merge

    def refuse_y(table: Table, rows: pa.Table, *arguments: Any) -> None:
        if "y" in rows["k"].to_pylist():
            raise MergeRefused("no y", kind=kind)
        merge(table, rows, *arguments)

    monkeypatch.setattr(Table, "merge", refuse_y)
    ends = await write_at_once(sink, {a: rows_of("x", v=[1]), b: rows_of("y", v=[2]), c: rows_of("z", v=[3])})
    assert [type(end) for end in ends] == [type(None), kind, type(None)]
    assert (a.position, b.position, c.position) == ("1", None, "1")
    assert content(tmp_path, "k", "v") == [("x", 1), ("z", 3)]
    await write(b, rows_of("v", v=[2]))


async def test_a_table_that_takes_no_such_rows_stops_the_partition(sinks: Sinks, tmp_path: Path) -> None:
    """A field of a STRUCT may be NOT NULL, which deltalake does not merge into."""
    sink = sinks(Field("s", StructType([Field("f", PrimitiveType("long"), nullable=False)])))
    [writer] = await writers_of(sink, "a")
    with pytest.raises(
        SinkRejected, match=rf"the Delta table {tmp_path} refuses to merge the output .*Unsupported CAST"
    ):
        await write(writer, rows_of("x", s=[{"f": 1}]))


async def test_a_refused_merge_that_is_in_the_log_is_done(sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    """deltalake may fail behind the commit."""
    sink = sinks()
    a, b = await writers_of(sink, "a", "b")
    merge = Table.merge

    def fail_behind(table: Table, *arguments: Any) -> None:
        merge(table, *arguments)
        raise MergeRefused("Schema error", kind=SinkRejected)

    monkeypatch.setattr(Table, "merge", fail_behind)
    assert await write_at_once(sink, {a: rows_of("x", v=[1]), b: rows_of("y", v=[2])}) == [None, None]
    assert (a.position, b.position) == ("1", "1")
    await write(a, rows_of("x", v=[3]))
    assert a.position == "2"
