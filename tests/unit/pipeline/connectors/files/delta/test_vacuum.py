"""A vacuum deletes what was staged at epochs that a later claim has shut out, and nothing that a reader or writer may need."""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from delta_log import LOG, read_log
from deltalake import DeltaTable
from unit.pipeline.connectors.files.delta.tables import Permit, claim, numbers_in, output, sink_in

from leasehold.pipeline.connectors.files.delta import DeltaSink, Table, location_of, vacuum_table
from leasehold.pipeline.connectors.files.delta.record import ROOM
from leasehold.pipeline.connectors.files.delta.sink import DeltaWriter
from leasehold.pipeline.connectors.files.sink import Directory
from leasehold.pipeline.contract import event_table
from leasehold.pipeline.errors import Fenced
from leasehold.pipeline.sink import Output
from leasehold.pipeline.staging import StagedPart

RETENTION_S = 7 * 86_400
COLUMNS = event_table("p", []).schema


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
async def sink(path: Path) -> AsyncIterator[DeltaSink]:
    sink = sink_in(path)
    yield sink
    await sink.close()


async def stage(writer: DeltaWriter, numbers: Sequence[int], unique: int = 0, partition: str = "p") -> StagedPart:
    stager = await writer.make_stager(writer.position, COLUMNS)
    assert stager is not None
    return stager.stage(event_table(partition, numbers), f"{unique:032x}")


def batch(writer: DeltaWriter, to: int, *parts: StagedPart) -> Output:
    return Output(table=event_table("p", []), start=writer.position, to=str(to), events=1, staged=parts)


def vacuum(path: Path, *, retention_hours: int | None = None, dry_run: bool = False) -> list[str]:
    table = Table(location_of(path))
    table.refresh()
    gone = vacuum_table(Directory(path), table, retention_hours=retention_hours, dry_run=dry_run)
    assert [name for name in gone if (path / name).exists() != dry_run] == []
    return sorted(gone)


async def test_what_an_earlier_owner_staged_and_nobody_committed_is_deleted_at_once(
    path: Path, sink: DeltaSink
) -> None:
    first = await sink.open(claim(1))
    kept = await stage(first, [1, 2])
    await first.write(batch(first, 2, kept), Permit())
    left = await stage(first, [3], 1)
    assert vacuum(path) == []
    second = await sink.open(claim(2))
    under_way = await stage(second, [3, 4])
    late = await stage(first, [3], 2)  # an executor of the earlier owner
    assert vacuum(path, dry_run=True) == sorted([left.name, late.name])
    assert vacuum(path) == sorted([left.name, late.name])
    await second.write(batch(second, 4, under_way), Permit())
    assert numbers_in(path) == [1, 2, 3, 4]
    assert vacuum(path) == []


async def test_what_a_zombie_would_commit_may_be_deleted_as_its_commit_conflicts(path: Path, sink: DeltaSink) -> None:
    zombie = await sink.open(claim(1))
    await zombie.write(output(0, 1), Permit())
    part = await stage(zombie, [2])
    owner = await sink.open(claim(2))
    assert vacuum(path) == [part.name]
    with pytest.raises(Fenced):
        await zombie.write(batch(zombie, 2, part), Permit())
    await owner.write(output(1, 2), Permit())
    assert numbers_in(path) == [1, 2]


async def test_a_claim_that_is_not_in_the_log_yet_shuts_nobody_out(path: Path, sink: DeltaSink) -> None:
    """Before its first commit, a lease has records alone, and the commit of an earlier owner may still be taken."""
    first = await sink.open(claim(1))
    part = await stage(first, [1, 2])
    [columns] = DeltaTable(str(path)).history()
    assert columns["operation"] == "CREATE TABLE"
    record = next((path / ROOM).rglob("*.json"))
    later = record.read_text().replace('"epoch":1', '"epoch":2').replace('"number":1', '"number":2')
    record.with_name(record.name.replace("1.json", "2.json")).write_text(later)
    assert vacuum(path) == []
    assert (path / part.name).exists()


async def test_committed_files_that_a_compaction_replaced_wait_for_the_retention(path: Path, sink: DeltaSink) -> None:
    first = await sink.open(claim(1))
    for number in (1, 2):
        await first.write(batch(first, number, await stage(first, [number], number)), Permit())
    version = read_log(path).version
    await sink.open(claim(2))
    DeltaTable(str(path)).optimize.compact()
    assert vacuum(path) == []
    DeltaTable(str(path)).create_checkpoint()
    assert vacuum(path) == []
    then = DeltaTable(str(path), version=version)
    assert sorted(pq.read_table(uri)["sequence"].to_pylist() for uri in then.file_uris()) == [[1], [2]]
    DeltaTable(str(path)).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    assert len(vacuum(path)) == 2
    assert sorted(numbers_in(path)) == [1, 2]


async def test_files_that_another_machine_removed_by_a_clock_that_is_ahead_stay(path: Path, sink: DeltaSink) -> None:
    first = await sink.open(claim(1))
    for number in (1, 2):
        await first.write(batch(first, number, await stage(first, [number], number)), Permit())
    await sink.open(claim(2))
    DeltaTable(str(path)).optimize.compact()
    entry = path / LOG / f"{read_log(path).version:020d}.json"
    ahead = str(int((time.time() + 3_600) * 1000))
    lines = entry.read_text().splitlines()
    removed = [line for line in lines if '"remove"' in line]
    assert len(removed) == 2
    entry.write_text("\n".join(_at(line, ahead) if line in removed else line for line in lines))
    assert vacuum(path) == []


async def test_with_a_retention_of_its_own_staged_files_wait_too(path: Path, sink: DeltaSink) -> None:
    """The log may have forgotten that it removed them."""
    first = await sink.open(claim(1))
    await first.write(output(0, 1), Permit())
    left = await stage(first, [2])
    await sink.open(claim(2))
    assert vacuum(path, retention_hours=200) == []
    os.utime(path / left.name, (0, 0))
    assert vacuum(path, retention_hours=200) == [left.name]


async def test_of_an_epoch_that_is_not_outranked_files_wait_for_the_retention(path: Path, sink: DeltaSink) -> None:
    writer = await sink.open(claim(1))
    await writer.write(output(0, 1), Permit())
    left = await stage(writer, [2])
    assert vacuum(path) == []
    then = time.time() - RETENTION_S - 60
    os.utime(path / left.name, (then, then))
    assert vacuum(path) == [left.name]


async def test_the_epochs_of_other_leases_say_nothing(path: Path, sink: DeltaSink) -> None:
    ours = await sink.open(claim(1))
    await ours.write(output(0, 1), Permit())
    part = await stage(ours, [2])
    other = await sink.open(claim(9, partition="q"))
    await other.write(output(0, 1, "q"), Permit())
    assert vacuum(path) == []
    await ours.write(batch(ours, 2, part), Permit())
    assert numbers_in(path) == [1, 2]


@pytest.mark.parametrize("content", [None, "{half"], ids=["missing", "damaged"])
async def test_a_lease_whose_record_cannot_be_read_keeps_its_files(
    path: Path, sink: DeltaSink, content: str | None
) -> None:
    first = await sink.open(claim(1))
    await first.write(output(0, 1), Permit())
    await stage(first, [2])
    await sink.open(claim(2))
    record = max((path / ROOM).rglob("*.json"))
    record.unlink()
    if content is not None:
        record.write_text(content)
    else:
        record.with_name("0.json").write_text("{}")
    assert vacuum(path) == []


def _at(line: str, deleted_ms: str) -> str:
    return re.sub(r'("deletionTimestamp":)\d+', rf"\g<1>{deleted_ms}", line)
