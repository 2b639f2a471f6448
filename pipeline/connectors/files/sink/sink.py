"""The sink `files`: each batch's output is one file, and counts from the moment the manifest names it (docs/protocol.md).

A claim is an entry of the manifest, and so is every batch. Each is put under the number after the last one's, which only one
writer can do. So a later claim shuts out every earlier writer, output and position move in one step, and no reader sees a data
file that no entry names.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from leasehold.common.standing import Standing
from leasehold.pipeline.connectors.files.place_sink import PlaceSink, PlaceWriter, send_on_thread
from leasehold.pipeline.connectors.files.sink import entry as entries
from leasehold.pipeline.connectors.files.sink.entry import DataFile, folders_of, version_of
from leasehold.pipeline.connectors.files.sink.formats import Compression, Format, encoded, ordered
from leasehold.pipeline.connectors.files.sink.manifest import Manifest, head_of, open_manifest
from leasehold.pipeline.connectors.files.sink.storage import (
    Check,
    FilesError,
    FilesRefused,
    FilesUnavailable,
    Storage,
    check_staged,
    put_again,
)
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import Ambiguous, Fenced, NotTrusted, SinkRejected, SinkUnavailable
from leasehold.pipeline.sink import Claim, Output, Permit
from leasehold.pipeline.staging import NotStaged, StagedPart, Stager

THREADS = 16
_STATE = re.compile(r"(\d{1,18}):(\d{1,18})")


class FilesOutputSink(PlaceSink):
    """The manifest holds each partition's position."""

    def __init__(self, place: Storage, *, format: Format = "parquet", compression: Compression = "zstd") -> None:
        super().__init__(place, THREADS)
        self._format: Format = format
        self._compression: Compression = compression

    @property
    def identity(self) -> str:
        return self._place.identity

    async def open(self, claim: Claim) -> FilesWriter:
        manifest = await self.run(lambda: self._open_manifest(claim))
        return FilesWriter(self, manifest, claim.compare)

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        head = await self.run(lambda: head_of(self._place, folders_of(pipeline, partition)))
        return None if head is None else Standing(head.generation, head.position)

    def _open_manifest(self, claim: Claim) -> Manifest:
        try:
            manifest = open_manifest(self._place, claim, seen=_seen(claim), new_id=_unique)
        except ValueError as error:
            raise SinkRejected(str(error)) from error
        except Ambiguous as error:  # the claim may stand; the next one outranks it
            raise SinkUnavailable(str(error)) from error
        with suppress(FilesError):
            self._clear(manifest)
        return manifest

    def _clear(self, manifest: Manifest) -> None:
        """Delete the files of earlier owners' attempts at this entry: it is ours, so it never names them."""
        version = manifest.head.version
        for name in self._place.names(manifest.folders.data_of(version)):
            if version_of(name) == version:
                self._place.delete(name)
        if self._place.for_executors(manifest.folders.manifest) is not None:
            for name in manifest.stagings_left():
                self._place.delete(name)

    # What a writer does, on a thread

    def write_output(self, manifest: Manifest, output: Output, check: Check) -> None:
        manifest.fold_if_due()
        unnamed = entries.moved(manifest.head, output, _unique(), ())
        if output.staged:
            try:
                check_staged(self._place, output.staged, epoch=manifest.head.epoch, start=output.start)
            except NotStaged:
                manifest.check_newest()  # a later owner may have deleted the parts
                raise
            files = tuple(
                self._data_file(manifest, output, part.name, part.rows, part.bytes, part.sha256)
                for part in output.staged
            )
            manifest.append(replace(unnamed, files=files), check)
            return
        if not output.table.num_rows:
            manifest.append(unnamed, check)
            return
        crash_point("before file")
        file = self._staged(manifest, output, check)
        crash_point("file put")
        try:
            manifest.append(replace(unnamed, files=(file,)), check)
        except (Fenced, NotTrusted, FilesUnavailable):  # surely not named; after Ambiguous it may be
            with suppress(FilesError):
                self._place.delete(file.name)
            raise

    def stager(self, manifest: Manifest, start: str | None) -> FilesStager | None:
        if (place := self._place.for_executors(manifest.folders.manifest)) is None:
            return None
        head = manifest.head
        return FilesStager(
            place=place,
            prefix=manifest.folders.staging(head.version, head.epoch, start),
            format=self._format,
            compression=self._compression,
            epoch=head.epoch,
            start=start,
        )

    def _data_file(self, manifest: Manifest, output: Output, name: str, rows: int, bytes: int, sha256: str) -> DataFile:
        """The file as its entry will name it."""
        head = manifest.head
        return DataFile(
            name=name,
            format=self._format,
            rows=rows,
            bytes=bytes,
            sha256=sha256,
            version=head.version + 1,
            generation=head.generation,
            epoch=head.epoch,
            start=output.start,
            to=output.to,
        )

    def _staged(self, manifest: Manifest, output: Output, check: Check) -> DataFile:
        content = encoded(ordered(output.table), self._format, self._compression)
        name = manifest.folders.attempt(manifest.head.version + 1, _unique(), self._format)
        put_again(self._place, name, content, check)
        digest = hashlib.sha256(content).hexdigest()
        return self._data_file(manifest, output, name, output.table.num_rows, len(content), digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesStager(Stager):
    """Puts one file for each part to where the writer's entry can name it."""

    place: Storage
    prefix: str
    format: Format
    compression: Compression
    epoch: int
    start: str | None

    def stage(self, table: pa.Table, unique: str) -> StagedPart:
        content = encoded(ordered(table), self.format, self.compression)
        name = f"{self.prefix}-{unique}.{self.format}"
        try:
            put_again(self.place, name, content)
        except FilesRefused as error:
            raise SinkRejected(str(error)) from error
        except FilesError as error:
            raise SinkUnavailable(str(error)) from error
        digest = hashlib.sha256(content).hexdigest()
        return StagedPart(
            epoch=self.epoch, start=self.start, name=name, rows=table.num_rows, bytes=len(content), sha256=digest
        )


class FilesWriter(PlaceWriter):
    def __init__(
        self, sink: FilesOutputSink, manifest: Manifest, compare: Callable[[str | None, str | None], int]
    ) -> None:
        self._sink = sink
        self._manifest = manifest
        self._compare = compare
        self._copy_head()

    async def write(self, output: Output, permit: Permit) -> None:
        assert self._compare(output.start, self.position) == 0, "a write starts where the one before ended"
        await send_on_thread(self._sink, permit, lambda check: self._sink.write_output(self._manifest, output, check))
        self._copy_head()

    async def make_stager(self, start: str | None, columns: pa.Schema) -> Stager | None:
        return self._sink.stager(self._manifest, start)

    async def end(self, permit: Permit) -> None:
        manifest = self._manifest
        ended = entries.ended(manifest.head, _unique())
        await send_on_thread(self._sink, permit, lambda check: manifest.append(ended, check))
        self._copy_head()

    def _copy_head(self) -> None:
        head = self._manifest.head
        self.position = head.position
        self.state = f"{head.generation}:{head.version}"


def _seen(claim: Claim) -> int:
    """The newest entry that the lease knows of in this generation; -1 if it knows none."""
    found = _STATE.fullmatch(claim.state)
    return int(found[2]) if found and int(found[1]) == claim.generation else -1


def _unique() -> str:
    return uuid.uuid4().hex
