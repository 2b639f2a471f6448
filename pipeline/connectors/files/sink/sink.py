"""The sink `files`: each batch's output is one file, and counts from the moment the manifest names it (docs/protocol.md).

A claim is an entry of the manifest, and so is every batch; each is put under the number that follows the last one's, which one
writer alone can do. So a later claim shuts out every earlier writer, output and position move in one step, and a data file
that no entry names is seen by no reader.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from leasehold.common.standing import Standing
from leasehold.pipeline.connectors.files.sink import entry as entries
from leasehold.pipeline.connectors.files.sink.entry import DataFile, folders_of, version_of
from leasehold.pipeline.connectors.files.sink.formats import Compression, Format, encoded, ordered
from leasehold.pipeline.connectors.files.sink.manifest import Check, Manifest, head_of, open_manifest
from leasehold.pipeline.connectors.files.sink.storage import (
    FilesDamaged,
    FilesError,
    FilesNowhere,
    FilesRefused,
    FilesUnavailable,
    FilesUncertain,
    Storage,
    check_staged,
)
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import Ambiguous, Fenced, NotTrusted, SinkNotFound, SinkRejected, SinkUnavailable
from leasehold.pipeline.sink import (
    SENDS_MAX,
    Claim,
    CloseReason,
    Output,
    Permit,
    Sink,
    SinkWriter,
    checked_until_cancelled,
)
from leasehold.pipeline.staging import NotStaged, StagedPart, Stager

T = TypeVar("T")
THREADS = 16
_STATE = re.compile(r"(\d{1,18}):(\d{1,18})")


class FilesOutputSink(Sink):
    """place: a Directory or a BlobContainer; the sink closes it. `Permit.check` is called on a thread too."""

    holds_position = True

    def __init__(self, place: Storage, *, format: Format = "parquet", compression: Compression = "zstd") -> None:
        self._place = place
        self._format: Format = format
        self._compression: Compression = compression
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="files-sink")

    @property
    def identity(self) -> str:
        return self._place.identity

    def claimed(self, state: str) -> str:
        """The manifest holds everything; the lease keeps how far it has seen it, to notice that it was deleted."""
        return state

    async def prepare(self) -> None:
        """Waiting helps neither against a refusal nor at an address that leads nowhere. Later it may: roles take their time."""
        try:
            await _on_thread(self._threads, self._place.prepare)
        except SinkUnavailable as error:
            if isinstance(error.__cause__, FilesRefused):
                raise SinkRejected(str(error)) from error
            if isinstance(error.__cause__, FilesNowhere):
                raise SinkNotFound(str(error)) from error
            raise

    async def open(self, claim: Claim) -> FilesWriter:
        manifest = await _on_thread(self._threads, lambda: self._open_manifest(claim))
        return FilesWriter(self, manifest, claim.compare)

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        head = await _on_thread(self._threads, lambda: head_of(self._place, folders_of(pipeline, partition)))
        return None if head is None else Standing(head.generation, head.position)

    async def close(self) -> None:
        await _on_thread(self._threads, self._place.close)
        self._threads.shutdown(wait=False)

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
        """What attempts of earlier owners left that died on their way to this entry: it is ours, so it never names them."""
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
                manifest.check_newest()  # a later owner may have cleared the parts away
                raise
            files = tuple(self._named(manifest, output, part) for part in output.staged)
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

    def _named(self, manifest: Manifest, output: Output, part: StagedPart) -> DataFile:
        """The staged part as its entry will name it."""
        head = manifest.head
        return DataFile(
            name=part.name,
            format=self._format,
            rows=part.rows,
            bytes=part.bytes,
            sha256=part.sha256,
            version=head.version + 1,
            generation=head.generation,
            epoch=head.epoch,
            start=output.start,
            to=output.to,
        )

    def _staged(self, manifest: Manifest, output: Output, check: Check) -> DataFile:
        content = encoded(ordered(output.table), self._format, self._compression)
        head = manifest.head
        file = DataFile(
            name=manifest.folders.attempt(head.version + 1, _unique(), self._format),
            format=self._format,
            rows=output.table.num_rows,
            bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            version=head.version + 1,
            generation=head.generation,
            epoch=head.epoch,
            start=output.start,
            to=output.to,
        )
        _put(self._place, file.name, content, check)
        return file


def _put(place: Storage, name: str, content: bytes, check: Check = lambda: None) -> None:
    """No other writer uses this name: if it exists, it is ours."""
    for attempt in range(1, SENDS_MAX + 1):
        check()
        try:
            place.put(name, content)
            return
        except FilesUncertain:
            if attempt == SENDS_MAX:
                raise


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesStager(Stager):
    """One file for each part, where the writer's entry can name it."""

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
            _put(self.place, name, content)
        except FilesRefused as error:
            raise SinkRejected(str(error)) from error
        except FilesError as error:
            raise SinkUnavailable(str(error)) from error
        digest = hashlib.sha256(content).hexdigest()
        return StagedPart(
            epoch=self.epoch, start=self.start, name=name, rows=table.num_rows, bytes=len(content), sha256=digest
        )


class FilesWriter(SinkWriter):
    """If a cancelled write is not yet in the manifest, it never will be once the partition is claimed again."""

    position: str | None = None
    state: str = ""

    def __init__(
        self, sink: FilesOutputSink, manifest: Manifest, compare: Callable[[str | None, str | None], int]
    ) -> None:
        self._sink = sink
        self._manifest = manifest
        self._compare = compare
        self._copy_head()

    async def write(self, output: Output, permit: Permit) -> None:
        assert self._compare(output.start, self.position) == 0, "a write starts where the one before ended"
        await self._send(permit, lambda check: self._sink.write_output(self._manifest, output, check))

    async def make_stager(self, start: str | None, columns: pa.Schema) -> Stager | None:
        return self._sink.stager(self._manifest, start)

    async def end(self, permit: Permit) -> None:
        manifest = self._manifest
        await self._send(permit, lambda check: manifest.append(entries.ended(manifest.head, _unique()), check))

    async def close(self, reason: CloseReason) -> None:
        """Nothing is held between writes."""

    async def _send(self, permit: Permit, send: Callable[[Check], None]) -> None:
        """`send` runs on a thread, and is given what to call before it sends."""
        permit.check()
        with checked_until_cancelled(permit) as check:
            await _on_thread(self._sink._threads, lambda: send(check))  # noqa: SLF001  # its own
        self._copy_head()

    def _copy_head(self) -> None:
        head = self._manifest.head
        self.position = head.position
        self.state = f"{head.generation}:{head.version}"


async def _on_thread(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, call)
    except FilesDamaged as error:
        raise SinkRejected(str(error)) from error
    except FilesUnavailable as error:
        raise SinkUnavailable(str(error), retry_after_s=error.retry_after_s) from error
    except FilesError as error:  # of what is tried again under another name, or counts only once an entry follows it
        raise SinkUnavailable(str(error)) from error


def _seen(claim: Claim) -> int:
    """The newest entry that the lease knows of in this generation; -1 where it knows none."""
    found = _STATE.fullmatch(claim.state)
    return int(found[2]) if found and int(found[1]) == claim.generation else -1


def _unique() -> str:
    return uuid.uuid4().hex
