"""What executors stage for a Delta table: it counts once a commit names it, and never if a later owner came first."""

from __future__ import annotations

import asyncio
import pickle
import platform
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from delta_log import read_log
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from patience import PATIENCE_S
from unit.pipeline.connectors.files.delta.owners import Frozen, ending_at
from unit.pipeline.connectors.files.delta.tables import Permit, claim, numbers_in, output, sink_in
from unit.pipeline.connectors.files.sink.places import Killed

from leasehold.pipeline.connectors.files.delta import DeltaSink, location_of
from leasehold.pipeline.connectors.files.delta.record import app_id_of
from leasehold.pipeline.connectors.files.delta.sink import DeltaWriter
from leasehold.pipeline.connectors.files.delta.staged import prefix_of
from leasehold.pipeline.connectors.files.sink import Directory
from leasehold.pipeline.contract import event_table
from leasehold.pipeline.crash_point import watch_points
from leasehold.pipeline.errors import Fenced, NotTrusted, SinkRejected
from leasehold.pipeline.sink import Output
from leasehold.pipeline.staging import NotStaged, StagedPart

PIPELINE, PARTITION = claim(1).pipeline, claim(1).partition
COLUMNS = event_table(PARTITION, []).schema
POINTS = ("record put", "before commit", "commit written")
"""What lies between staging and the next batch."""


async def stage(writer: DeltaWriter, numbers: Sequence[int], unique: int = 0) -> StagedPart:
    """As an executor does it, by the stager that was sent there."""
    stager = await writer.make_stager(writer.position, COLUMNS)
    sent = pickle.loads(pickle.dumps(stager))
    return sent.stage(event_table(PARTITION, numbers), f"{unique:032x}")  # type: ignore[no-any-return]


def batch(writer: DeltaWriter, to: int, *parts: StagedPart) -> Output:
    empty = event_table(PARTITION, [])
    return Output(table=empty, start=writer.position, to=str(to), events=to - int(writer.position or 0), staged=parts)


def everything_in(path: Path) -> list[Path]:
    return sorted(path.rglob("*"))


async def deliver(path: Path, epoch: int, upto: int) -> None:
    """One owner's life: it claims, and commits what is missing, two events a batch, each staged as two parts."""
    sink = sink_in(path)
    try:
        writer = await sink.open(claim(epoch))
        while (done := int(writer.position or 0)) < upto:
            parts = [await stage(writer, [number], number) for number in (done + 1, done + 2)]
            await writer.write(batch(writer, done + 2, *parts), Permit())
    finally:
        await sink.close()


async def test_parts_count_together_once_a_commit_names_them(tmp_path: Path) -> None:
    writer = await sink_in(tmp_path).open(claim(1))
    parts = [await stage(writer, [1, 2]), await stage(writer, [4, 3], 1)]
    assert (numbers_in(tmp_path), writer.position) == ([], None)
    await writer.write(batch(writer, 4, *parts), Permit())
    assert (numbers_in(tmp_path), writer.position) == ([1, 2, 3, 4], "4")
    assert list(read_log(tmp_path).files) == [part.name for part in parts]
    await writer.write(output(4, 6), Permit())
    assert numbers_in(tmp_path) == [1, 2, 3, 4, 5, 6]


async def test_names_bear_lease_epoch_and_the_beginning_of_the_batch(tmp_path: Path) -> None:
    writer = await sink_in(tmp_path).open(claim(3))
    await writer.write(output(0, 2), Permit())
    part = await stage(writer, [3], 5)
    assert part.name == f"part-{prefix_of(app_id_of(PIPELINE, PARTITION), 3, '2')}-{5:032x}.zstd.parquet"


async def test_a_part_that_the_output_does_not_name_never_counts(tmp_path: Path) -> None:
    writer = await sink_in(tmp_path).open(claim(1))
    await stage(writer, [1, 2], 7)
    await writer.write(batch(writer, 2, await stage(writer, [1, 2], 8)), Permit())
    assert numbers_in(tmp_path) == [1, 2]


@pytest.mark.parametrize("of", ["an older epoch", "another batch"])
async def test_parts_of_another_epoch_or_batch_are_refused(of: str, tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    first = await sink.open(claim(1))
    part = await stage(first, [1, 2])
    writer = await sink.open(claim(2)) if of == "an older epoch" else first
    if of == "another batch":
        await writer.write(output(0, 5), Permit())
    with pytest.raises(NotStaged, match=r"staged at epoch 1 from None, and not at epoch"):
        await writer.write(batch(writer, 9, part), Permit())
    assert numbers_in(tmp_path) == ([] if of == "an older epoch" else [1, 2, 3, 4, 5])


@pytest.mark.parametrize(("there", "why"), [(None, "is missing here"), (b"half", "has 4 bytes here")])
async def test_a_part_that_only_its_executor_can_read_is_not_committed(
    there: bytes | None, why: str, tmp_path: Path
) -> None:
    writer = await sink_in(tmp_path).open(claim(1))
    part = await stage(writer, [1, 2])
    (tmp_path / part.name).unlink()
    if there is not None:
        (tmp_path / part.name).write_bytes(there)
    with pytest.raises(NotStaged, match=rf"{why}: mount the sink's directory"):
        await writer.write(batch(writer, 2, part), Permit())
    assert (numbers_in(tmp_path), writer.position) == ([], None)


@pytest.mark.parametrize("has_staged", [False, True], ids=["empty", "with what an executor staged"])
@pytest.mark.parametrize("has_output", [False, True], ids=["a new table", "a table"])
async def test_an_executor_without_the_table_writes_nothing(tmp_path: Path, has_output: bool, has_staged: bool) -> None:
    """As on a worker on which the volume of the table is not mounted. Earlier releases have staged there."""
    root = tmp_path / "table"
    writer = await sink_in(root).open(claim(1))
    if has_output:
        await writer.write(output(0, 1), Permit())
    await stage(writer, [2, 3])
    root.rename(tmp_path / "volume")
    if has_staged:
        (root / "_leasehold/.writing").mkdir(parents=True)
    stager = await writer.make_stager(writer.position, COLUMNS)
    before = everything_in(tmp_path)
    assert stager is not None
    with pytest.raises(
        SinkRejected,
        match=f"on '{platform.node()}' finds no '_delta_log' in '{root}'.*: mount that under the same path",
    ):
        stager.stage(event_table(PARTITION, [2, 3]), "1" * 32)
    assert everything_in(tmp_path) == before
    if not has_staged:
        (tmp_path / "volume").rename(root)
        part = stager.stage(event_table(PARTITION, [2, 3]), "2" * 32)
        await writer.write(batch(writer, 3, part), Permit())
        assert numbers_in(root) == [*([1] if has_output else []), 2, 3]


@pytest.mark.parametrize("is_deleted", [False, True], ids=["there", "deleted"])
@pytest.mark.parametrize("has_output", [False, True], ids=["a new table", "a table"])
async def test_a_zombie_commits_nothing_that_its_executors_staged(
    tmp_path: Path, has_output: bool, is_deleted: bool
) -> None:
    """It is fenced also if its parts were deleted since: it need not find out by its next batch."""
    zombie = await sink_in(tmp_path).open(claim(1))
    if has_output:
        await zombie.write(output(0, 1), Permit())
    part = await stage(zombie, [2, 3])
    owner = await sink_in(tmp_path).open(claim(2))
    if is_deleted:
        (tmp_path / part.name).unlink()
    with pytest.raises(Fenced) as fenced:
        await zombie.write(batch(zombie, 3, part), Permit())
    assert fenced.value.epoch == 2
    await owner.write(batch(owner, 3, await stage(owner, [2, 3])), Permit())
    with pytest.raises(Fenced):
        await zombie.write(batch(zombie, 3, part), Permit())
    assert numbers_in(tmp_path) == [*([1] if has_output else []), 2, 3]


async def test_staged_output_waits_for_trust_and_stays(tmp_path: Path) -> None:
    writer = await sink_in(tmp_path).open(claim(1))
    part = await stage(writer, [1, 2])
    with pytest.raises(NotTrusted):
        await writer.write(batch(writer, 2, part), Permit(trusted=lambda: False))
    await writer.write(batch(writer, 2, part), Permit())
    assert numbers_in(tmp_path) == [1, 2]


async def test_a_part_survives_columns_that_the_table_gets_before_its_commit(tmp_path: Path) -> None:
    writer = await sink_in(tmp_path).open(claim(1))
    part = await stage(writer, [1, 2])
    DeltaTable(str(tmp_path)).alter.add_columns([Field("more", PrimitiveType("string"))])
    await writer.write(batch(writer, 2, part), Permit())
    assert [(row["sequence"], row["more"]) for row in read_log(tmp_path).rows()] == [(1, None), (2, None)]


def test_places_that_executors_cannot_reach_have_no_stager(tmp_path: Path) -> None:
    class Alone(Directory):
        def for_executors(self, mark: str) -> None:  # type: ignore[override]
            return None

    async def story() -> None:
        writer = await DeltaSink(Alone(tmp_path), location_of(tmp_path)).open(claim(1))
        assert await writer.make_stager(None, COLUMNS) is None

    asyncio.run(story())


@pytest.mark.parametrize("point", POINTS)
def test_an_owner_that_dies_with_staged_output_leaves_what_the_next_one_finishes(tmp_path: Path, point: str) -> None:
    with ending_at(point, 3), pytest.raises(Killed):
        asyncio.run(deliver(tmp_path, 1, 8))
    asyncio.run(deliver(tmp_path, 2, 8))
    assert numbers_in(tmp_path) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("point", POINTS)
def test_an_owner_that_wakes_with_staged_output_after_another_one_has_written_is_fenced(
    tmp_path: Path, point: str
) -> None:
    frozen = Frozen(point, 3)
    ends: list[BaseException] = []

    def own_first() -> None:
        try:
            asyncio.run(deliver(tmp_path, 1, 8))
        except Fenced as error:
            ends.append(error)

    with watch_points(frozen):
        thread = threading.Thread(target=own_first)
        thread.start()
        assert frozen.is_there.wait(PATIENCE_S)
        asyncio.run(deliver(tmp_path, 2, 6))
        frozen.goes_on.set()
        thread.join(PATIENCE_S)
    assert len(ends) == 1
    asyncio.run(deliver(tmp_path, 3, 10))
    assert numbers_in(tmp_path) == list(range(1, 11))
