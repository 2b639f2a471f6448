"""What executors do with ranges: read and parse them before the transform, and hand its rows back or stage them after it.

Runs in Python workers, which need this package in the host's version. They send back one row for each piece of output.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from leasehold.common.distribution import own_version
from leasehold.common.nesting import parsed_json
from leasehold.pipeline.errors import SinkUnavailable
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.limits import JSON_LEVELS_MAX, RETURNED_BYTES_MAX
from leasehold.pipeline.parsing.parse import parse
from leasehold.pipeline.parsing.schema import Struct
from leasehold.pipeline.ranges import EventRange, RangeReader
from leasehold.pipeline.staging import StagedPart, Stager, described

READ_BYTES = 4 * 1024 * 1024
"""How much is parsed at a time: smaller tables are put together."""
RETURNED = pa.schema([pa.field("part", pa.string()), pa.field("rows", pa.binary())])
"""part: a StagedPart as JSON. rows: an Arrow stream. One of the two is null."""


class CannotProcess(Exception):
    """Raised in a Python worker, with a text for people: the host then reads the events itself."""


class DestinationAway(Exception):
    """Raised in a Python worker. The host tries again later. The text begins with the task's sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTask:
    """The first half: row number -> the events of that range, with the schema's columns.

    columns: those of the pipeline's schema; None if it has none. schema: of the events that it yields.
    """

    version: str
    partition: str
    ranges: tuple[EventRange, ...]
    reader: RangeReader
    columns: Struct | None
    schema: pa.Schema

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_version(self.version)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._read(self.ranges[number])

    def _read(self, each: EventRange) -> Iterator[pa.RecordBatch]:
        for events in _together(self.reader.read_range(self.partition, each)):
            yield from self._parsed(events).to_batches()

    def _parsed(self, events: pa.Table) -> pa.Table:
        columns = {name: events.column(name) for name in events.column_names}
        if self.columns is not None:
            parsed = parse(self.columns, events.column("body"))
            if parsed.misfits:
                raise CannotProcess(f"{len(parsed.misfits)} bodies do not fit the schema: {parsed.misfits[0]}")
            columns |= {name: parsed.columns.column(name) for name in parsed.columns.column_names}
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema).combine_chunks()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTask:
    """The second half: the transform's rows -> RETURNED. stager: None to hand back all.

    - `ranges`: how many ranges the job reads.
    - `returned_bytes_max`: the most that all tasks of the job together hand back, each its share (`share_of`).
    - `collected_bytes_max`: with a stager, the most that a task hands back, even if its share is larger; more is staged.
    - `part_bytes_max`: the size in memory at which a part is staged.
    - `sign`: a prefix of this job, which no event can contain. By it the host finds errors of the destination in Spark's errors.
    """

    version: str
    partition: str
    ranges: int
    stager: Stager | None
    sign: str
    collected_bytes_max: int = 1024 * 1024
    returned_bytes_max: int = RETURNED_BYTES_MAX
    part_bytes_max: int = 64 * 1024 * 1024

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_version(self.version)
        share = share_of(task_number(), self.ranges, self.returned_bytes_max)
        held: list[pa.RecordBatch] = []
        size, has_staged = 0, False
        for batch in batches:
            self._check(batch)
            held.append(batch)
            size += batch.nbytes
            if self.stager is None and size > share:
                raise CannotProcess(
                    f"a task has more than {share} bytes of output, its share of the {self.returned_bytes_max} that all tasks of"
                    " a job may return, and nothing to stage it with. Use a sink with staging, or raise host.buffer_bytes_max"
                )
            if self.stager is not None and size >= self.part_bytes_max:
                yield self._staged(self.stager, held)
                held, size, has_staged = [], 0, True
        if sum(batch.num_rows for batch in held):
            if self.stager is not None and (has_staged or size > min(share, self.collected_bytes_max)):
                yield self._staged(self.stager, held)
            else:
                yield returned(None, pa.Table.from_batches(held))

    def _check(self, batch: pa.RecordBatch) -> None:
        own = pc.fill_null(pc.equal(batch.column("partition"), self.partition), fill_value=False)
        if batch.num_rows and not pc.all(own).as_py():
            raise CannotProcess(f"the transform yields rows of another partition than '{self.partition}'")

    def _staged(self, stager: Stager, held: list[pa.RecordBatch]) -> pa.RecordBatch:
        table = pa.Table.from_batches(held)
        try:
            return returned(described(stager.stage(table, new_attempt()), table), None)
        except SinkUnavailable as error:
            raise DestinationAway(f"{self.sign}{error}") from error

    def why_away(self, text: str) -> str | None:
        """Why the destination could not be used, if the text of Spark's error shows that."""
        _, sign, rest = text.partition(self.sign)
        return rest.partition("\n")[0] if sign else None


def share_of(number: int, ranges: int, bytes_max: int) -> int:
    """How many bytes the task with this number may hand back, so that all tasks, however many, stay within `bytes_max`. Pure.

    A job has as many tasks as ranges, unless a shuffle or a UNION adds some; Spark decides how many while it runs. So in a
    job with N ranges, the first N tasks share three quarters. The next N share half of the rest, the N after them a sixth of it,
    then a twelfth and so on: 1 / (turn * (turn + 1)), whose sum stays below 1.
    """
    turn = number // ranges
    of_turn = 3 * bytes_max // 4 if turn == 0 else bytes_max // (4 * turn * (turn + 1))
    return of_turn // ranges


def task_number() -> int:
    """This task's number among those that hand output back, from 0. All attempts at a task have the same."""
    context = TaskContext.get()
    assert context is not None, "tasks run in Spark's Python workers"
    return context.partitionId()


def check_version(version: str) -> None:
    """Raises CannotProcess if this worker has another version than the host's."""
    if version != own_version():
        raise CannotProcess(
            f"executors have Leasehold {own_version()}, and this host has {version}: install the same version there"
        )


def returned(part: StagedPart | None, table: pa.Table | None) -> pa.RecordBatch:
    text = None if part is None else json.dumps(asdict(part))
    rows = None
    if table is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        rows = sink.getvalue().to_pybytes()
    return pa.RecordBatch.from_arrays([pa.array([text], pa.string()), pa.array([rows], pa.binary())], schema=RETURNED)


def collected(found: pa.Table, columns: pa.Schema) -> list[pa.Table | StagedPart]:
    """What tasks handed back, with these columns, and what they staged, in the order of the tasks. found: a table of RETURNED."""
    pieces: list[pa.Table | StagedPart] = []
    for part, rows in zip(found.column("part").to_pylist(), found.column("rows").to_pylist(), strict=True):
        if part is not None:
            pieces.append(StagedPart(**parsed_json(part, JSON_LEVELS_MAX)))
        if rows is not None:
            pieces.append(pa.ipc.open_stream(rows).read_all().cast(columns))
    return pieces


def _together(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Put small tables together to some megabytes, because each parse has its own costs."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        held.append(table)
        size += table.nbytes
        if size >= READ_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables([EVENT_SCHEMA.empty_table(), *held])


def new_attempt() -> str:
    """A unique name, for each attempt at a task and for each of its parts."""
    return uuid.uuid4().hex
