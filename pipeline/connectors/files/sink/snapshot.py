"""The manifest's reader: which files count now, for pyarrow, DuckDB, Spark and people.

    from leasehold.pipeline.connectors.files.sink import Directory, snapshot_of

    snapshot = snapshot_of(Directory("out"))
    snapshot.table()                                    # an Arrow table
    duckdb.read_parquet(snapshot.paths, union_by_name=True)
    spark.read.option("mergeSchema", True).parquet(*snapshot.paths)

Each partition is seen at one moment: whole batches, without a gap, up to `position`. Different partitions may be seen at
different moments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from leasehold.pipeline.connectors.files.sink.entry import (
    MANIFEST,
    DataFile,
    Folders,
    Listing,
    epoch_of,
    folder_of,
    folders_in,
    folders_of,
    version_of,
)
from leasehold.pipeline.connectors.files.sink.formats import decoded
from leasehold.pipeline.connectors.files.sink.manifest import entry_of, files_of, listed, steps
from leasehold.pipeline.connectors.files.sink.storage import FilesDamaged, FilesUnavailable, Storage

READS_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFiles:
    """position: the feed's position up to which the files hold output. version: of the newest entry in the manifest."""

    pipeline: str
    partition: str
    generation: int
    epoch: int
    position: str | None
    ended: bool
    version: int
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """partitions: in the order of pipeline and name."""

    place: Storage
    partitions: tuple[PartitionFiles, ...]

    @property
    def files(self) -> list[DataFile]:
        """The files of each partition in the order of delivery."""
        return [file for partition in self.partitions for file in partition.files]

    @property
    def paths(self) -> list[str]:
        """Absolute paths of a directory's files, addresses of a container's."""
        return [self.place.locate(file.name) for file in self.files]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def tables(self) -> Iterator[pa.Table]:
        """The rows file by file, each file checked against the manifest's digest. Raises FilesDamaged, FilesUnavailable."""
        return (decoded(content, file.format) for file, content in self.contents())

    def contents(self) -> Iterator[tuple[DataFile, bytes]]:
        """The bytes of each file, checked against the manifest's digest. Raises as `tables` does."""
        return ((file, self._content(file)) for file in self.files)

    def table(self) -> pa.Table:
        """All rows. A column that some files lack is null in their rows.

        Raises FilesDamaged, FilesUnavailable; ValueError if a column changed its type: read `tables()` and cast.
        """
        tables = list(self.tables())
        if not tables:
            return pa.table({})
        try:
            return pa.concat_tables(tables, promote_options="default")
        except pa.ArrowException as error:
            raise ValueError(f"the files of {self.place.identity} have a column in several types: {error}") from error

    def _content(self, file: DataFile) -> bytes:
        content = self.place.get(file.name)
        if content is None or hashlib.sha256(content).hexdigest() != file.sha256:
            what = "is missing" if content is None else "was changed"
            raise FilesDamaged(f"'{self.place.locate(file.name)}' {what}: restore it from a backup")
        return content


def snapshot_of(place: Storage, *, pipeline: str | None = None, partition: str | None = None) -> Snapshot:
    """The files that count now, of all pipelines or of one. Nothing is written. Raises FilesUnavailable, FilesDamaged."""
    folder = MANIFEST if pipeline is None else f"{MANIFEST}/{folder_of(pipeline)}"
    if pipeline is not None and partition is not None:
        folders = [folders_of(pipeline, partition)]
    else:
        folders = list(folders_in(place.names(folder)))
    found = (_partition(place, each) for each in folders)
    wanted = [each for each in found if each is not None and partition in (None, each.partition)]
    return Snapshot(place, tuple(sorted(wanted, key=lambda each: (each.pipeline, each.partition))))


def leftovers(place: Storage, snapshot: Snapshot) -> list[str]:
    """Data files of attempts that failed. Deleting them is safe, also during writes.

    For each partition, files that no entry names: those for an entry that exists, and those that executors staged at an epoch
    below that of the newest entry. What is written for the next entry stays.
    """
    left = []
    for partition in snapshot.partitions:
        named = {file.name for file in partition.files}
        for name in place.names(folders_of(partition.pipeline, partition.partition).data):
            version, epoch = version_of(name), epoch_of(name)
            is_past = version is not None and version <= partition.version
            is_stale = epoch is not None and epoch < partition.epoch
            if (is_past or is_stale) and name not in named:
                left.append(name)
    return left


def _partition(place: Storage, folders: Folders) -> PartitionFiles | None:
    """Starts over if a fold replaced what it was about to read."""
    for _ in range(READS_MAX):
        listing = listed(place, folders)
        if listing.head is None:
            return None
        head = entry_of(place, folders, listing.head)
        files = None if head is None else _files(place, folders, listing)
        if head is not None and files is not None:
            return PartitionFiles(
                pipeline=head.pipeline,
                partition=head.partition,
                generation=head.generation,
                epoch=head.epoch,
                position=head.position,
                ended=head.ended,
                version=head.version,
                files=files,
            )
    raise FilesUnavailable(f"'{folders.manifest}' keeps changing, or has a gap: try again, or restore it from a backup")


def _files(place: Storage, folders: Folders, listing: Listing) -> tuple[DataFile, ...] | None:
    """The files of all entries up to the head; None if an entry is missing."""
    files: list[DataFile] = []
    version = -1
    for step in steps(listing):
        found = files_of(place, folders, step)
        if found is None:
            return None
        files += found
        version = step.last
    return tuple(files) if version == listing.head else None
