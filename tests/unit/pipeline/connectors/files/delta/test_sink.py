"""The sink over a table: its columns grow, wrong tables and lost ones are refused, and answers that were lost are looked up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_log import LOG, read_log
from delta_readers import read_rows
from deltalake import DeltaTable, Schema, write_deltalake
from unit.pipeline.burials import Group, Renaming
from unit.pipeline.connectors.files.delta.tables import Permit, claim, numbers_in, output, sink_in

from leasehold.pipeline.connectors.files.delta import DeltaSink
from leasehold.pipeline.connectors.files.delta.committer import COMMITS_MAX
from leasehold.pipeline.connectors.files.delta.record import ROOM, app_id_of
from leasehold.pipeline.connectors.files.delta.table import Table
from leasehold.pipeline.connectors.files.sink.storage import FilesUnavailable, FilesUncertain
from leasehold.pipeline.errors import Ambiguous, Fenced, OutputRefused, SinkRejected, SinkUnavailable
from leasehold.pipeline.sink import Output


@pytest.fixture
async def sinks(tmp_path: Path) -> AsyncIterator[Callable[..., DeltaSink]]:
    made: list[DeltaSink] = []

    def make(**options: Any) -> DeltaSink:
        made.append(sink_in(tmp_path / "table", **options))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


def of(rows: pa.Table, start: int, to: int) -> Output:
    return Output(table=rows, start=str(start) if start else None, to=str(to), events=to - start)


def table_of(**columns: pa.Array) -> pa.Table:
    return pa.table(columns)


async def test_a_new_column_is_added_and_null_in_older_rows(sinks: Callable[..., DeltaSink], tmp_path: Path) -> None:
    writer = await sinks().open(claim(1))
    await writer.write(of(table_of(a=pa.array([1], pa.int64())), 0, 1), Permit())
    await writer.write(of(table_of(a=pa.array([2], pa.int32()), b=pa.array(["x"])), 1, 2), Permit())
    await writer.write(of(table_of(a=pa.array([3], pa.int64())), 2, 3), Permit())
    wanted = [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": 3, "b": None}]
    assert read_log(tmp_path / "table").rows() == wanted
    assert read_rows(tmp_path / "table") == wanted


async def test_another_type_is_refused_and_the_table_and_the_position_stay(
    sinks: Callable[..., DeltaSink], tmp_path: Path
) -> None:
    writer = await sinks().open(claim(1))
    await writer.write(of(table_of(a=pa.array([1], pa.int64())), 0, 1), Permit())
    with pytest.raises(SinkRejected, match="'a' is string, and the table's is int64"):
        await writer.write(of(table_of(a=pa.array(["x"])), 1, 2), Permit())
    assert (writer.position, len(read_log(tmp_path / "table").rows())) == ("1", 1)
    await writer.write(of(table_of(a=pa.array([2], pa.int64())), 1, 2), Permit())


async def test_a_table_of_another_program_is_written_to_beside_it(
    sinks: Callable[..., DeltaSink], tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_deltalake(path, table_of(a=pa.array([1], pa.int64())))
    sink = sinks()
    await sink.prepare()
    writer = await sink.open(claim(1))
    await writer.write(of(table_of(a=pa.array([2], pa.int64())), 0, 1), Permit())
    write_deltalake(path, table_of(a=pa.array([3], pa.int64())), mode="append")
    await writer.write(of(table_of(a=pa.array([4], pa.int64())), 1, 2), Permit())
    assert [row["a"] for row in read_log(tmp_path / "table").rows()] == [1, 2, 3, 4]


async def test_columns_that_another_program_changes_meanwhile_are_seen(
    sinks: Callable[..., DeltaSink], tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    writer = await sinks().open(claim(1))
    await writer.write(of(table_of(a=pa.array([1], pa.int64())), 0, 1), Permit())
    write_deltalake(path, table_of(z=pa.array(["x"])), mode="append", schema_mode="merge")
    await writer.write(of(table_of(a=pa.array([2], pa.int64())), 1, 2), Permit())
    write_deltalake(path, table_of(a=pa.array(["text"])), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SinkRejected, match="'a' is int64, and the table's is string"):
        await writer.write(of(table_of(a=pa.array([3], pa.int64())), 2, 3), Permit())
    assert [row["a"] for row in read_log(tmp_path / "table").rows()] == ["text"]


async def test_a_partitioned_table_is_refused_when_the_host_starts(
    sinks: Callable[..., DeltaSink], tmp_path: Path
) -> None:
    columns = Schema.from_arrow(pa.schema([("a", pa.int64()), ("day", pa.string())]))
    DeltaTable.create(str(tmp_path / "table"), columns, partition_by=["day"])
    with pytest.raises(SinkRejected, match="the partition columns day"):
        await sinks().prepare()


async def test_a_table_that_was_deleted_is_not_begun_again(sinks: Callable[..., DeltaSink], tmp_path: Path) -> None:
    writer = await sinks().open(claim(1))
    await writer.write(output(0, 2), Permit())
    (tmp_path / "table").rename(tmp_path / "elsewhere")
    with pytest.raises(SinkRejected, match=r"the table was deleted or restored.*leases reset"):
        await sinks().open(claim(2, state=writer.state))


async def test_a_record_that_was_deleted_is_not_guessed(sinks: Callable[..., DeltaSink], tmp_path: Path) -> None:
    writer = await sinks().open(claim(1))
    await writer.write(output(0, 2), Permit())
    for record in (tmp_path / "table" / ROOM).rglob("*.json"):
        record.unlink()
    with pytest.raises(SinkRejected, match="with the position of partition 'p' of pipeline"):
        await sinks().open(claim(2))


async def test_old_records_are_deleted_and_the_last_stays(sinks: Callable[..., DeltaSink], tmp_path: Path) -> None:
    writer = await sinks().open(claim(1))
    for number in range(70):
        await writer.write(output(number, number + 1, rows=0), Permit())
    assert len(list((tmp_path / "table" / ROOM).rglob("*.json"))) < 20
    assert (await sinks().open(claim(2))).position == "70"


@pytest.mark.parametrize("was_stored", [True, False])
async def test_if_the_answer_of_a_commit_is_lost_the_log_is_asked(
    sinks: Callable[..., DeltaSink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_stored: bool
) -> None:
    writer = await sinks().open(claim(1))
    await writer.write(output(0, 2), Permit())
    commit = Table.commit

    def lose(table: Table, *arguments: Any) -> None:
        if was_stored:
            commit(table, *arguments)
        raise FilesUncertain("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", lose)
        if was_stored:
            await writer.write(output(2, 4), Permit())
        else:  # in a directory nothing is under way any more
            with pytest.raises(SinkUnavailable, match="the connection broke"):
                await writer.write(output(2, 4), Permit())
    if not was_stored:
        await writer.write(output(2, 4), Permit())
    await writer.write(output(4, 5), Permit())
    assert numbers_in(tmp_path / "table") == [1, 2, 3, 4, 5]


async def test_a_lost_answer_that_cannot_be_looked_up_stays_open(
    sinks: Callable[..., DeltaSink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await sinks().open(claim(1))
    await writer.write(output(0, 2), Permit())
    number_of, is_lost = Table.number_of, False

    def lose(table: Table, *arguments: Any) -> None:
        nonlocal is_lost
        is_lost = True
        raise FilesUncertain("the connection broke")

    def find(table: Table, app_id: str) -> int | None:
        if is_lost:
            raise FilesUnavailable("the account is throttled")
        return number_of(table, app_id)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", lose)
        patched.setattr(Table, "number_of", find)
        with pytest.raises(Ambiguous, match=r"connection broke.*cannot be looked up: the account is throttled"):
            await writer.write(output(2, 4), Permit())
    again = await sinks().open(claim(2))
    await again.write(output(2, 4), Permit())
    assert numbers_in(tmp_path / "table") == [1, 2, 3, 4]


async def test_writers_that_always_come_first_are_reported(
    sinks: Callable[..., DeltaSink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    writer = await sinks().open(claim(1))
    await writer.write(of(table_of(a=pa.array([1], pa.int64())), 0, 1), Permit())
    monkeypatch.setattr("leasehold.pipeline.connectors.files.delta.committer.time.sleep", lambda _: None)
    refresh, tries = Table.refresh, 0

    def come_first(table: Table) -> None:
        nonlocal tries
        refresh(table)
        tries += 1
        write_deltalake(path, table_of(a=pa.array([9], pa.int64())), mode="append")

    with monkeypatch.context() as patched:
        patched.setattr(Table, "refresh", come_first)
        with pytest.raises(SinkUnavailable, match="keep coming first"):
            await writer.write(of(table_of(a=pa.array([2], pa.int64())), 1, 2), Permit())
    assert tries >= COMMITS_MAX
    await writer.write(of(table_of(a=pa.array([2], pa.int64())), 1, 2), Permit())
    assert [row["a"] for row in read_log(tmp_path / "table").rows() if row["a"] != 9] == [1, 2]


async def test_partitions_that_write_at_once_share_commits(sinks: Callable[..., DeltaSink], tmp_path: Path) -> None:
    import asyncio

    sink = sinks()
    names = [f"p{number}" for number in range(16)]
    writers = [await sink.open(claim(1, partition=name)) for name in names]
    for start in range(0, 6, 2):
        batches = zip(writers, names, strict=True)
        await asyncio.gather(*(writer.write(output(start, start + 2, name), Permit()) for writer, name in batches))
    state = read_log(tmp_path / "table")
    assert {name: numbers_in(tmp_path / "table", name) for name in names} == {
        name: [1, 2, 3, 4, 5, 6] for name in names
    }
    assert len(state.txns) == len(names)
    assert state.version < 3 * len(names)
    assert app_id_of("bank", "p0") in state.txns
    assert (tmp_path / "table" / LOG).is_dir()


async def test_one_lease_that_was_taken_does_not_hold_up_the_others_of_a_host(
    sinks: Callable[..., DeltaSink], tmp_path: Path
) -> None:
    import asyncio

    sink = sinks()
    names = [f"p{number}" for number in range(8)]
    writers = [await sink.open(claim(1, partition=name)) for name in names]
    await asyncio.gather(
        *(writer.write(output(0, 1, name), Permit()) for writer, name in zip(writers, names, strict=True))
    )
    await sinks().open(claim(2, partition="p3"))
    ends = await asyncio.gather(
        *(writer.write(output(1, 2, name), Permit()) for writer, name in zip(writers, names, strict=True)),
        return_exceptions=True,
    )
    assert [name for name, end in zip(names, ends, strict=True) if isinstance(end, Fenced)] == ["p3"]
    assert [end for end in ends if end is not None and not isinstance(end, Fenced)] == []
    assert numbers_in(tmp_path / "table", "p3") == [1]
    assert numbers_in(tmp_path / "table", "p4") == [1, 2]


async def test_rows_are_replaced_by_their_key(sinks: Callable[..., DeltaSink], tmp_path: Path) -> None:
    writer = await sinks(key=("k",)).open(claim(1))

    def rows(*pairs: tuple[str, int]) -> pa.Table:
        return table_of(k=pa.array([k for k, _ in pairs]), v=pa.array([v for _, v in pairs], pa.int64()))

    await writer.write(of(rows(("x", 1), ("y", 1), ("x", 2)), 0, 3), Permit())
    await writer.write(of(rows(("y", 5), ("z", 7)), 3, 5), Permit())
    again = await sinks(key=("k",)).open(claim(2))
    assert again.position == "5"
    wanted = [{"k": "x", "v": 2}, {"k": "y", "v": 5}, {"k": "z", "v": 7}]
    assert sorted(read_log(tmp_path / "table").rows(), key=lambda row: str(row["k"])) == wanted
    assert read_rows(tmp_path / "table") == wanted
    assert await again.make_stager("5", rows(("x", 1)).schema) is None


async def test_a_key_may_have_any_name(sinks: Callable[..., DeltaSink], tmp_path: Path) -> None:
    names = ('a"b', '"', '"c"', 'd""e', "f'g", "h`i", "j.k", "source", "target")
    writer = await sinks(key=names).open(claim(1))

    def rows(*keys: str, v: int) -> pa.Table:
        return table_of(**{name: pa.array(keys) for name in names}, **{'v"w': pa.array([v] * len(keys), pa.int64())})

    await writer.write(of(rows("x", "y", v=1), 0, 2), Permit())
    await writer.write(of(rows("y", "z", v=2), 2, 4), Permit())
    await writer.write(of(rows("z", "x", v=3), 4, 6), Permit())
    wanted = [{**dict.fromkeys(names, key), 'v"w': v} for key, v in (("x", 3), ("y", 2), ("z", 3))]
    assert read_rows(tmp_path / "table") == wanted


@pytest.mark.parametrize("is_end", [False, True], ids=["write", "end"])
async def test_before_there_is_a_table_a_later_claim_shuts_out_an_earlier_one_at_once(
    sinks: Callable[..., DeltaSink], tmp_path: Path, is_end: bool
) -> None:
    first = await sinks().open(claim(1))
    second = await sinks().open(claim(2))
    with pytest.raises(Fenced, match=r"claimed at epoch 1, and belongs to .* since epoch 2"):
        await (first.end(Permit()) if is_end else first.write(output(0, 2), Permit()))
    assert not (tmp_path / "table" / LOG).exists()
    await second.write(output(0, 2), Permit())
    assert numbers_in(tmp_path / "table") == [1, 2]


async def test_rows_without_a_key_are_refused_for_what_is_in_them_and_others_are_taken(
    sinks: Callable[..., DeltaSink], tmp_path: Path
) -> None:
    writer = await sinks(key=("k",)).open(claim(1))
    rows = table_of(sequence=pa.array([2, 1, 3]), k=pa.array([None, "x", "y"]))
    with pytest.raises(
        OutputRefused, match=r"'k' is in `key_columns`, and is NULL in row 2 of 3 \(sequence 2\)"
    ) as refused:
        await writer.write(of(rows, 0, 3), Permit())
    assert refused.value.sequences == (2,)
    assert writer.position is None
    await writer.write(of(rows.slice(1), 0, 3), Permit())
    assert [row["k"] for row in read_log(tmp_path / "table").rows()] == ["x", "y"]


@pytest.mark.parametrize(
    "number", [lambda sequence, events: sequence + 1, lambda sequence, events: 7], ids=["from 1", "7"]
)
async def test_rows_without_a_key_are_their_events_though_another_column_is_called_sequence(
    tmp_path: Path, number: Callable[[int, int], int]
) -> None:
    group = Group(tmp_path, sink=sink_in(tmp_path / "table", key=("key",)), transform=Renaming(number))
    bad = (2, 7, 11)
    for n in range(16):
        group.feed.append("a", [b"%d" % n], key=None if n in bad else f"k{n}")
    await group.run_on(16)
    assert await group.buried() == [b"%d" % n for n in bad]
    assert {(kept.letter.sequence, kept.letter.attempts) for kept in await group.letters()} == {(n, 2) for n in bad}
    bodies = [row["body"] for row in read_rows(tmp_path / "table", "body")]
    assert sorted(bodies) == sorted(b"%d" % n for n in range(16) if n not in bad)
    await group.beside.close()


@pytest.mark.parametrize("key", [(), ("k",)], ids=["appended", "merged"])
async def test_a_null_that_the_table_forbids_is_refused_for_what_is_in_the_row(
    sinks: Callable[..., DeltaSink], tmp_path: Path, key: tuple[str, ...]
) -> None:
    columns = pa.schema([("k", pa.string()), pa.field("v", pa.int64(), nullable=False)])
    DeltaTable.create(str(tmp_path / "table"), Schema.from_arrow(columns))
    writer = await sinks(key=key).open(claim(1))
    rows = table_of(k=pa.array(["x", "y"]), v=pa.array([1, None], pa.int64()))
    with pytest.raises(OutputRefused, match="'v' is NOT NULL in the table, and is NULL in row 2 of 2"):
        await writer.write(of(rows, 0, 2), Permit())
    await writer.write(of(rows.slice(0, 1), 0, 2), Permit())
    assert read_log(tmp_path / "table").rows() == [{"k": "x", "v": 1}]


@pytest.mark.parametrize("key", [pa.array([{"a": 1}]), pa.array([0.0])], ids=["struct", "float"])
async def test_a_key_that_cannot_be_compared_is_refused_before_there_is_a_table(
    sinks: Callable[..., DeltaSink], tmp_path: Path, key: pa.Array
) -> None:
    writer = await sinks(key=("k",)).open(claim(1))
    with pytest.raises(SinkRejected, match=r"column 'k' is .*cannot be one of `key_columns`"):
        await writer.write(of(table_of(k=key), 0, 1), Permit())
    assert not (tmp_path / "table" / LOG).exists()
