"""What executors staged: it counts once an entry names it, and stale stagings are cleared away by their names."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from unit.pipeline.connectors.files.sink.places import Permit, claim, output

from pipeline.connectors.files.sink import Directory, FilesSink, snapshot_of
from pipeline.connectors.files.sink.sink import FilesWriter
from pipeline.connectors.files.sink.snapshot import leftovers
from pipeline.contract import event_table
from pipeline.errors import Fenced, NotTrusted
from pipeline.sink import Output
from pipeline.staging import NotStaged, StagedPart

PARTITION = claim(1).partition
COLUMNS = event_table("a", []).schema


async def staged(writer: FilesWriter, numbers: Sequence[int], unique: int = 0) -> StagedPart:
    """As an executor does it, by the stager that was sent there."""
    stager = await writer.make_stager(writer.position, COLUMNS)
    sent = pickle.loads(pickle.dumps(stager))
    return sent.stage(event_table(PARTITION, numbers), f"{unique:032x}")  # type: ignore[no-any-return]


def batch(writer: FilesWriter, to: int, *parts: StagedPart) -> Output:
    empty = event_table(PARTITION, [])
    return Output(table=empty, start=writer.position, to=str(to), events=to - int(writer.position or 0), staged=parts)


def files_in(path: Path) -> list[str]:
    return sorted(each.relative_to(path).as_posix() for each in path.rglob("staged/**/*.parquet"))


def sequences(path: Path) -> list[int]:
    found = snapshot_of(Directory(path)).table()
    return found["sequence"].to_pylist() if found.num_columns else []


async def test_parts_count_together_once_an_entry_names_them(tmp_path: Path) -> None:
    writer = await FilesSink(Directory(tmp_path)).open(claim(1))
    parts = [await staged(writer, [1, 2]), await staged(writer, [4, 3], 1)]
    assert sequences(tmp_path) == []
    assert leftovers(Directory(tmp_path), snapshot_of(Directory(tmp_path))) == []
    await writer.write(batch(writer, 4, *parts), Permit())
    assert sequences(tmp_path) == [1, 2, 3, 4]
    assert writer.position == "4"
    files = snapshot_of(Directory(tmp_path)).files
    assert {(file.version, file.epoch, file.start, file.to) for file in files} == {(1, 1, None, "4")}
    await writer.write(output(4, 6), Permit())
    assert sequences(tmp_path) == [1, 2, 3, 4, 5, 6]


async def test_what_an_attempt_staged_that_nobody_returned_is_no_output(tmp_path: Path) -> None:
    writer = await FilesSink(Directory(tmp_path)).open(claim(1))
    await staged(writer, [1, 2], 7)
    part = await staged(writer, [1, 2], 8)
    await writer.write(batch(writer, 2, part), Permit())
    assert sequences(tmp_path) == [1, 2]


@pytest.mark.parametrize("of", ["an older epoch", "another batch"])
async def test_parts_of_another_claim_or_batch_are_refused(of: str, tmp_path: Path) -> None:
    sink = FilesSink(Directory(tmp_path))
    first = await sink.open(claim(1))
    part = await staged(first, [1, 2])
    writer = await sink.open(claim(2)) if of == "an older epoch" else first
    if of == "another batch":
        await writer.write(output(0, 5), Permit())
    with pytest.raises(NotStaged, match=r"staged at epoch 1 from None, and not at epoch"):
        await writer.write(batch(writer, 9, part), Permit())
    assert sequences(tmp_path) == ([] if of == "an older epoch" else [1, 2, 3, 4, 5])


async def test_a_zombie_commits_nothing_that_its_executors_staged(tmp_path: Path) -> None:
    zombie = await FilesSink(Directory(tmp_path)).open(claim(1))
    parts = [await staged(zombie, [1, 2])]
    owner = await FilesSink(Directory(tmp_path)).open(claim(2))
    with pytest.raises(Fenced):
        await zombie.write(batch(zombie, 2, *parts), Permit())
    await owner.write(batch(owner, 3, await staged(owner, [1, 2, 3])), Permit())
    assert sequences(tmp_path) == [1, 2, 3]


async def test_a_claim_clears_what_was_staged_at_lower_epochs_and_is_not_named(tmp_path: Path) -> None:
    first = await FilesSink(Directory(tmp_path)).open(claim(1))
    kept = await staged(first, [1, 2])
    await first.write(batch(first, 2, kept), Permit())
    await staged(first, [3], 5)
    second = await FilesSink(Directory(tmp_path)).open(claim(2))
    assert files_in(tmp_path) == [kept.name]
    under_way = await staged(second, [3, 4])
    late = await staged(first, [3], 6)  # an executor of the old owner
    assert leftovers(Directory(tmp_path), snapshot_of(Directory(tmp_path))) == [late.name]
    await second.write(batch(second, 4, under_way), Permit())
    assert sequences(tmp_path) == [1, 2, 3, 4]


async def test_what_later_owners_staged_is_no_leftover(tmp_path: Path) -> None:
    """A reader may have seen the manifest before the later owner claimed it."""
    first = await FilesSink(Directory(tmp_path)).open(claim(1))
    await first.write(batch(first, 2, await staged(first, [1, 2])), Permit())
    seen = snapshot_of(Directory(tmp_path))
    second = await FilesSink(Directory(tmp_path)).open(claim(2))
    part = await staged(second, [3, 4])
    assert leftovers(Directory(tmp_path), seen) == []
    await second.write(batch(second, 4, part), Permit())
    assert sequences(tmp_path) == [1, 2, 3, 4]


async def test_staged_output_waits_for_trust_and_stays(tmp_path: Path) -> None:
    writer = await FilesSink(Directory(tmp_path)).open(claim(1))
    part = await staged(writer, [1, 2])
    with pytest.raises(NotTrusted):
        await writer.write(batch(writer, 2, part), Permit(trusted=lambda: False))
    await writer.write(batch(writer, 2, part), Permit())
    assert sequences(tmp_path) == [1, 2]


async def test_the_stager_is_for_places_that_other_processes_reach(tmp_path: Path) -> None:
    class Alone(Directory):
        def for_executors(self) -> None:  # type: ignore[override]
            return None

    writer = await FilesSink(Alone(tmp_path)).open(claim(1))
    assert await writer.make_stager(None, COLUMNS) is None


def test_tables_of_any_types_are_staged(tmp_path: Path) -> None:
    async def story() -> None:
        writer = await FilesSink(Directory(tmp_path), format="jsonl").open(claim(1))
        stager = await writer.make_stager(None, COLUMNS)
        assert stager is not None
        part = stager.stage(pa.table({"n": [1], "t": ["x"]}), "0" * 32)
        await writer.write(batch(writer, 1, part), Permit())

    asyncio.run(story())
    assert snapshot_of(Directory(tmp_path)).table().to_pylist() == [{"n": 1, "t": "x"}]
