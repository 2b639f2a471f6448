"""What executors staged: it counts once an entry names it, and stale stagings are cleared away by their names."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import platform
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from unit.pipeline.connectors.files.sink.places import Killed, MemoryPlace, Permit, Way, claim, output

from leasehold.pipeline.connectors.files.sink import Directory, FilesSink, snapshot_of
from leasehold.pipeline.connectors.files.sink.entry import MANIFEST, STAGED_VERSIONS, folders_of
from leasehold.pipeline.connectors.files.sink.manifest import FAN
from leasehold.pipeline.connectors.files.sink.sink import FilesWriter
from leasehold.pipeline.connectors.files.sink.snapshot import leftovers
from leasehold.pipeline.contract import event_table
from leasehold.pipeline.errors import Fenced, NotTrusted, SinkRejected, SinkUnavailable
from leasehold.pipeline.sink import Output
from leasehold.pipeline.staging import NotStaged, StagedPart

PARTITION = claim(1).partition
COLUMNS = event_table("a", []).schema


@pytest.fixture
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is lost in tests that write many files."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


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


def everything_in(path: Path) -> list[Path]:
    return sorted(path.rglob("*"))


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


@pytest.mark.parametrize(("there", "why"), [(None, "is missing here"), (b"half", "has 4 bytes here")])
async def test_a_part_that_only_its_executor_can_read_is_not_named(
    there: bytes | None, why: str, tmp_path: Path
) -> None:
    """As of a worker on which the volume of the sink is not mounted."""
    writer = await FilesSink(Directory(tmp_path)).open(claim(1))
    part = await staged(writer, [1, 2])
    path = tmp_path / part.name
    path.unlink()
    if there is not None:
        path.write_bytes(there)
    with pytest.raises(
        NotStaged, match=rf"staged '{path}' with [\d,]+ bytes, but it {why}: mount the sink's directory"
    ):
        await writer.write(batch(writer, 2, part), Permit())
    assert (sequences(tmp_path), writer.position) == ([], None)


@pytest.mark.parametrize("under_the_path", ["nothing", "a mount point", "what an executor staged"])
async def test_an_executor_without_the_sinks_directory_writes_nothing(under_the_path: str, tmp_path: Path) -> None:
    """As on a worker on which the volume of the sink is not mounted. Earlier releases have staged there."""
    root, volume = tmp_path / "out", tmp_path / "volume"
    writer = await FilesSink(Directory(root)).open(claim(1))
    await staged(writer, [1, 2])
    root.rename(volume)
    if under_the_path != "nothing":
        root.mkdir()
    if under_the_path == "what an executor staged":
        for folder in ("_leasehold/.writing", files_in(volume)[0].rpartition("/")[0]):
            (root / folder).mkdir(parents=True)
    before = everything_in(tmp_path)
    why = f"on '{platform.node()}' finds no '{folders_of('bank', PARTITION).manifest}' in '{root}'.*: mount that under the same"
    with pytest.raises(SinkRejected, match=why):
        await staged(writer, [1, 2], 1)
    assert everything_in(tmp_path) == before


async def test_an_executor_stages_once_the_directory_is_mounted(tmp_path: Path) -> None:
    root, volume = tmp_path / "out", tmp_path / "volume"
    writer = await FilesSink(Directory(root)).open(claim(1))
    root.rename(volume)
    with pytest.raises(SinkRejected, match=re.escape(f"in '{root}'")):
        await staged(writer, [1, 2])
    volume.rename(root)
    await writer.write(batch(writer, 2, await staged(writer, [1, 2])), Permit())
    assert sequences(root) == [1, 2]


@pytest.mark.parametrize(("error", "kind"), [(errno.EACCES, SinkRejected), (errno.EIO, SinkUnavailable)])
async def test_an_executor_that_cannot_see_whether_the_directory_is_the_sinks_says_why(
    error: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await FilesSink(Directory(tmp_path)).open(claim(1))

    def stat(path: Path, **_: object) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", stat)
        with pytest.raises(kind, match=re.escape(f"directory '{tmp_path}' cannot be reached: ")):
            await staged(writer, [1, 2])
    assert files_in(tmp_path) == []


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


@pytest.mark.parametrize("batches", [1, STAGED_VERSIONS - 2, STAGED_VERSIONS - 1, 3 * STAGED_VERSIONS, 200])
@pytest.mark.usefixtures("fast_disk")
async def test_a_claim_clears_what_the_last_owner_had_staged_ahead(batches: int, tmp_path: Path) -> None:
    """However many batches came before, and although the manifest was folded meanwhile.

    One batch is staged while another is written.
    """
    sink = FilesSink(Directory(tmp_path))
    first = await sink.open(claim(1))
    for number in range(1, batches + 1):
        await first.write(batch(first, number, await staged(first, [number])), Permit())
    ahead = await first.make_stager(str(batches + 1), COLUMNS)
    assert ahead is not None
    left = [await staged(first, [batches + 1], 5), ahead.stage(event_table(PARTITION, [batches + 2]), "6" * 32)]
    assert {part.name for part in left} < set(files_in(tmp_path))
    await sink.open(claim(2))
    assert len(files_in(tmp_path)) == batches
    assert sequences(tmp_path) == list(range(1, batches + 1))


@pytest.mark.parametrize("fate", ["killed before", "refused"])
async def test_a_claim_clears_what_the_claim_before_did_not_come_to_clear(fate: str, tmp_path: Path) -> None:
    first = await FilesSink(Directory(tmp_path)).open(claim(1))
    await first.write(batch(first, 1, await staged(first, [1])), Permit())
    left = await staged(first, [2])

    def fates(call: str, name: str) -> str:
        return fate if call == "names" and "staged" in name else "done"

    sink = FilesSink(Way(Directory(tmp_path), fates))
    with pytest.raises(Killed) if fate == "killed before" else nullcontext():
        await sink.open(claim(2))
    assert left.name in files_in(tmp_path)
    await FilesSink(Directory(tmp_path)).open(claim(3))
    assert left.name not in files_in(tmp_path)
    assert sequences(tmp_path) == [1]


async def test_a_claim_keeps_what_was_staged_at_its_own_epoch(tmp_path: Path) -> None:
    """By an attempt at the same claim: its owner may still commit it."""
    sink = FilesSink(Directory(tmp_path))
    part = await staged(await sink.open(claim(1)), [1, 2])
    again = await sink.open(claim(1))
    await again.write(batch(again, 2, part), Permit())
    assert sequences(tmp_path) == [1, 2]


@pytest.mark.usefixtures("fast_disk")
async def test_a_claim_leaves_old_leftovers_to_the_command(tmp_path: Path) -> None:
    sink = FilesSink(Directory(tmp_path))
    first = await sink.open(claim(1))
    part, late = await staged(first, [1]), await staged(first, [1], 9)
    await first.write(batch(first, 1, part), Permit())
    for number in range(2, 3 * STAGED_VERSIONS):
        await first.write(batch(first, number, await staged(first, [number])), Permit())
    await sink.open(claim(2))
    assert leftovers(Directory(tmp_path), snapshot_of(Directory(tmp_path))) == [late.name]


@pytest.mark.usefixtures("fast_disk")
async def test_a_claim_clears_nothing_if_entries_were_folded_away_meanwhile(tmp_path: Path) -> None:
    """It was stalled, and cannot see what they name."""
    first = await FilesSink(Directory(tmp_path)).open(claim(1))
    kept = await staged(first, [1])
    await first.write(batch(first, 1, kept), Permit())
    for number in range(2, 60):
        await first.write(output(number - 1, number), Permit())
    path = Directory(tmp_path)
    folders = folders_of("bank", PARTITION)
    stalled = (await FilesSink(path).open(claim(2)))._manifest
    heir = await FilesSink(path).open(claim(3))
    for number in range(60, 300):
        await heir.write(output(number - 1, number), Permit())
    path.put(f"{folders.staging(stalled.head.version, 1, '59')}-{'0' * 32}.parquet", b"late")
    assert stalled.stagings_left() == []
    assert kept.name in files_in(tmp_path)


class Counted:
    """What is listed outside the manifest, how many names there are in the manifest, and what is read."""

    listed = manifest = read = 0

    def names(self, folder: str) -> list[str]:
        found: list[str] = super().names(folder)  # type: ignore[misc]
        is_manifest = folder.startswith(MANIFEST)
        self.manifest = len(found) if is_manifest else self.manifest
        self.listed += 0 if is_manifest else len(found)
        return found

    def get(self, name: str) -> bytes | None:
        self.read += 1
        found: bytes | None = super().get(name)  # type: ignore[misc]
        return found


class CountedDirectory(Counted, Directory):
    """Hosts and executors share it."""


class CountedContainer(Counted, MemoryPlace):
    """As blobs are: names are flat."""

    def for_executors(self, mark: str) -> CountedContainer:  # type: ignore[override]
        return self


async def cost_of_a_claim(place: CountedDirectory | CountedContainer, batches: int) -> tuple[int, int]:
    """Names listed beside the manifest, and files read, after one owner has committed so many batches of three parts."""
    sink = FilesSink(place)
    first = await sink.open(claim(1))
    for number in range(1, batches + 1):
        stager = await first.make_stager(first.position, COLUMNS)
        assert stager is not None
        parts = [stager.stage(event_table(PARTITION, [number]), f"{unique:032x}") for unique in range(3)]
        await first.write(batch(first, number, *parts), Permit())
    place.listed = place.read = 0
    await sink.open(claim(2))
    assert place.manifest < 100
    return place.listed, place.read


@pytest.mark.parametrize("kind", ["directory", "container"])
@pytest.mark.usefixtures("fast_disk")
async def test_a_claim_lists_and_reads_no_more_because_more_was_committed(kind: str, tmp_path: Path) -> None:
    small, large = [
        await cost_of_a_claim(
            CountedDirectory(tmp_path / str(batches)) if kind == "directory" else CountedContainer(), batches
        )
        for batches in (2 * FAN, 4 * FAN)
    ]
    assert small == large
    assert large <= (3 * 2 * STAGED_VERSIONS, 2 * STAGED_VERSIONS + 1)


async def test_a_claim_does_not_look_for_what_no_executor_can_stage() -> None:
    place = MemoryPlace()
    looked: list[str] = []

    def fates(call: str, name: str) -> str:
        if call == "names":
            looked.append(name)
        return "done"

    await FilesSink(Way(place, fates)).open(claim(1))
    assert looked
    assert not [name for name in looked if "staged" in name]


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
        def for_executors(self, mark: str) -> None:  # type: ignore[override]
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
