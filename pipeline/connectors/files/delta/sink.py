"""The sink `files` with `format: delta`: a batch's rows and its partition's position are one commit of a Delta table.

A lease is an application of the table's log, whose number names the record of its position (`record`). A claim takes the next
number, and so does every batch; a commit whose lease has another number by then conflicts. So a later claim shuts out every
earlier writer, rows and position move in one step, and no reader sees a data file that no commit names.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from leasehold.common.standing import Standing
from leasehold.pipeline.connectors.files.claims import outranked
from leasehold.pipeline.connectors.files.delta import record as records
from leasehold.pipeline.connectors.files.delta.committer import Change, ColumnsChanged, Committer, Moved
from leasehold.pipeline.connectors.files.delta.data_file import DeltaStager, put_file
from leasehold.pipeline.connectors.files.delta.record import (
    CommitRecord,
    app_id_of,
    folder_for,
    name_of,
    numbers_in,
    record_in,
)
from leasehold.pipeline.connectors.files.delta.schema import check_key, fitted, last_per_key, rows_only
from leasehold.pipeline.connectors.files.delta.staged import prefix_of
from leasehold.pipeline.connectors.files.delta.table import LOG, Added, Location, Table
from leasehold.pipeline.connectors.files.place_sink import PlaceSink, PlaceWriter, send_on_thread
from leasehold.pipeline.connectors.files.sink.formats import Compression, ordered
from leasehold.pipeline.connectors.files.sink.storage import (
    Check,
    FilesDamaged,
    FilesError,
    FilesUnavailable,
    Storage,
    check_staged,
    put_again,
)
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import Ambiguous, NotTrusted, SinkRejected, SinkUnavailable
from leasehold.pipeline.sink import (
    Claim,
    Output,
    Permit,
    to_write_again,
)
from leasehold.pipeline.staging import NotStaged, Stager

T = TypeVar("T")
THREADS = 32
"""How many partitions of a host can share a commit."""
TRIES_MAX = 20
KEPT = 64
"""Old records of a lease are deleted each time that its number is a multiple of this."""
_STATE = re.compile(r"(\d{1,18}):(\d{1,19})")


class DeltaSink(PlaceSink):
    """place: the table's directory or container, for data files and records; the sink closes it. location: the same for
    deltalake. key: columns by which rows are replaced; without any, rows are appended."""

    def __init__(
        self, place: Storage, location: Location, *, key: Sequence[str] = (), compression: Compression = "zstd"
    ) -> None:
        super().__init__(place, THREADS)
        self._key = tuple(key)
        self._compression: Compression = compression
        self._committer = Committer(Table(location, is_rewriting=bool(key)), key=key)

    @property
    def identity(self) -> str:
        return f"delta {self._place.identity}"

    async def open(self, claim: Claim) -> DeltaWriter:
        held = await self.run(lambda: self._claim(claim))
        return DeltaWriter(self, held, claim.compare)

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        head, number = await self.run(lambda: self._head(pipeline, partition))
        return None if head is None or number is None else Standing(head.generation, head.position)

    # On a thread

    def _prepare(self) -> None:
        self._place.prepare()
        self._committer.check_table()

    def _claim(self, claim: Claim) -> HeldLease:
        app_id = _require_text(lambda: app_id_of(claim.pipeline, claim.partition))
        for _ in range(TRIES_MAX):
            head, number = self._head(claim.pipeline, claim.partition)
            _check_seen(self._place, claim, number)
            record = self._put_record(records.claimed(head, claim))
            if not self._committer.has_table:
                return HeldLease(record, None)
            try:
                self._committer.commit(Change(app_id=app_id, before=number, number=record.number, check=lambda: None))
            except Moved:
                continue
            except Ambiguous as error:  # the claim may stand; the next one outranks it
                raise SinkUnavailable(str(error)) from error
            crash_point("table claimed")
            self._clear(record)
            return HeldLease(record, record.number)
        raise FilesUnavailable(
            f"other hosts keep claiming partition '{claim.partition}' of pipeline '{claim.pipeline}'"
        )

    def _head(self, pipeline: str, partition: str) -> tuple[CommitRecord | None, int | None]:
        """The record of a lease, and its number in the log: None before the lease's first commit."""
        app_id = _require_text(lambda: app_id_of(pipeline, partition))
        for _ in range(TRIES_MAX):
            number = self._committer.number_of(app_id)
            if number is None:
                return self._newest_claim(pipeline, partition), None
            name = name_of(pipeline, partition, number)
            if (content := self._place.get(name)) is not None:
                return record_in(content, name), number
            if self._committer.number_of(app_id) == number:
                raise FilesDamaged(
                    f"'{self._place.locate(name)}', with the position of partition '{partition}' of pipeline '{pipeline}', is"
                    f" missing: restore `{records.ROOM}` from a backup of the same time as the table"
                )
        raise FilesUnavailable(f"partition '{partition}' of pipeline '{pipeline}' keeps moving: try again")

    def _newest_claim(self, pipeline: str, partition: str) -> CommitRecord | None:
        """The newest claim of a lease without commits. Its batches were never committed."""
        for number in numbers_in(self._place.names(folder_for(pipeline, partition))):
            name = name_of(pipeline, partition, number)
            if (content := self._place.get(name)) is not None:
                found = record_in(content, name)
                if found.kind == "claim":
                    return found
        return None

    def _put_record(self, record: CommitRecord) -> CommitRecord:
        """Put a record under the first free number from its own on."""
        while not put_again(
            self._place, name_of(record.pipeline, record.partition, record.number), records.encoded(record)
        ):
            record = replace(record, number=record.number + 1)
        crash_point("record put")
        return record

    def write_output(self, held: HeldLease, output: Output, check: Check) -> HeldLease:
        """Raises Fenced, NotTrusted, Ambiguous, SinkRejected, OutputRefused, FilesError."""
        check_key(output.table.schema, self._key)
        if output.staged:
            self._check_parts(held, output)
        unnamed = records.moved(held.record, output)
        self._check_first(held)
        for _ in range(TRIES_MAX):
            columns = self._committer.prepare_for(output.table.schema)
            made = self._make(output, columns)
            record = self._put_record(unnamed)
            change = replace(made, app_id=record.app_id, before=held.number, number=record.number, check=check)
            try:
                self._send(change, held, [] if output.staged else [file.name for file in made.files])
            except ColumnsChanged:
                continue
            return HeldLease(record, record.number)
        raise FilesUnavailable(f"{self._place.identity}: the table's columns keep changing: try again")

    def _check_parts(self, held: HeldLease, output: Output) -> None:
        """Raises NotStaged; Fenced if the lease has a later owner: a vacuum may have deleted the parts."""
        try:
            check_staged(self._place, output.staged, epoch=held.record.epoch, start=output.start)
        except NotStaged:
            self._check_first(held)
            head, number = self._head(held.record.pipeline, held.record.partition)
            if number != held.number:
                raise outranked(held.record, head) from None
            raise

    def end(self, held: HeldLease, check: Check) -> HeldLease:
        """Raises as `write_output` does."""
        self._check_first(held)
        if not self._committer.check_table():
            return HeldLease(records.ended(held.record), None)  # there is no output, and no table to hold the end
        record = self._put_record(records.ended(held.record))
        change = Change(app_id=record.app_id, before=held.number, number=record.number, check=check)
        self._send(change, held, [])
        return HeldLease(record, record.number)

    def _make(self, output: Output, columns: pa.Schema) -> Change:
        """The change that commits the output, without a lease yet."""
        files: list[Added] = []
        rows = None
        if output.staged:
            files = [Added(name=part.name, bytes=part.bytes, stats=rows_only(part.rows)) for part in output.staged]
        elif output.table.num_rows:
            table = fitted(ordered(output.table), columns, self._key)
            if self._key:
                rows = last_per_key(table, self._key)
            else:
                crash_point("before data file")
                files = [put_file(self._place, table, self._compression, uuid.uuid4().hex)]
                crash_point("data file put")
        return Change(
            app_id="",
            before=None,
            number=0,
            check=lambda: None,
            files=tuple(files),
            columns=output.table.schema if files else None,
            rows=rows,
        )

    def _send(self, change: Change, held: HeldLease, files: Sequence[str]) -> None:
        """Commit. files: deleted again if no commit that names them was sent. A vacuum deletes those of other attempts."""
        try:
            self._committer.commit(change)
        except (Moved, ColumnsChanged, NotTrusted, FilesUnavailable) as error:
            if not change.was_sent:
                with suppress(FilesError):
                    for name in files:
                        self._place.delete(name)
            if isinstance(error, Moved):
                head = None
                with suppress(FilesError):
                    head, _ = self._head(held.record.pipeline, held.record.partition)
                raise outranked(held.record, head) from error
            raise
        if change.number % KEPT == 0:
            self._clear(held.record)

    def _check_first(self, held: HeldLease) -> None:
        """Look for a later claim before a lease's first commit, because claims are only records until then. Raises Fenced."""
        if held.number is None:
            newest = self._newest_claim(held.record.pipeline, held.record.partition)
            if newest is not None and newest.number > held.record.number:
                raise outranked(held.record, newest)

    def _clear(self, record: CommitRecord) -> None:
        """Delete old records. Those that cannot be deleted now are deleted later."""
        with suppress(FilesError):
            for number in numbers_in(self._place.names(folder_for(record.pipeline, record.partition))):
                if number < record.number:
                    self._place.delete(name_of(record.pipeline, record.partition, number))

    def stager(self, held: HeldLease, start: str | None, columns: pa.Schema) -> DeltaStager | None:
        """None if rows are merged: they go through the host."""
        if self._key or (place := self._place.for_executors(LOG)) is None:
            return None
        return DeltaStager(
            place=place,
            prefix=prefix_of(held.record.app_id, held.record.epoch, start),
            columns=self._committer.prepare_for(columns),
            compression=self._compression,
            epoch=held.record.epoch,
            start=start,
        )


@dataclass(frozen=True, slots=True)
class HeldLease:
    """What a writer knows of its lease. number: the record's in the log; None before the lease's first commit."""

    record: CommitRecord
    number: int | None


class DeltaWriter(PlaceWriter):
    def __init__(self, sink: DeltaSink, held: HeldLease, compare: Callable[[str | None, str | None], int]) -> None:
        self._sink = sink
        self._held = held
        self._compare = compare
        self._copy(held)

    async def write(self, output: Output, permit: Permit) -> None:
        assert self._compare(output.start, self.position) == 0, "a write starts where the one before ended"
        self._copy(
            await send_on_thread(self._sink, permit, lambda check: self._sink.write_output(self._held, output, check))
        )

    async def make_stager(self, start: str | None, columns: pa.Schema) -> Stager | None:
        return await self._sink.run(lambda: self._sink.stager(self._held, start, columns))

    async def end(self, permit: Permit) -> None:
        self._copy(await send_on_thread(self._sink, permit, lambda check: self._sink.end(self._held, check)))

    def _copy(self, held: HeldLease) -> None:
        self._held = held
        self.position = held.record.position
        self.state = "" if held.number is None else f"{held.record.generation}:{held.number}"


def _check_seen(place: Storage, claim: Claim, number: int | None) -> None:
    found = _STATE.fullmatch(claim.state)
    seen = int(found[2]) if found and int(found[1]) == claim.generation else 0
    if (number or 0) < seen:
        raise SinkRejected(
            f"{place.identity}: the Delta table has partition '{claim.partition}' of pipeline '{claim.pipeline}' at number"
            f" {number or 'none'}, and this lease has seen number {seen}: the table was deleted or restored, and output is lost."
            f" Restore it, or {to_write_again(claim)}"
        )


def _require_text(named: Callable[[], T]) -> T:
    try:
        return named()
    except ValueError as error:
        raise SinkRejected(str(error)) from error
