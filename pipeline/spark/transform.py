"""A pipeline's transform in Spark: checked once, then run over micro-batches by the fast path.

The fast path: an Arrow table in one chunk -> createDataFrame without going through a local relation -> native expressions ->
one task if the batch is small -> toArrow. With the defaults a small job takes several times as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import cast

import pyarrow as pa
import pyspark
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructType

from leasehold.common.distribution import own_version
from leasehold.common.nesting import parsed_json
from leasehold.pipeline.batch import Batch, without
from leasehold.pipeline.errors import (
    EngineUnavailable,
    NotImportable,
    Poison,
    RangeRefused,
    SinkRejected,
    SinkUnavailable,
    TransformError,
)
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.executors_wait import ExecutorsWait
from leasehold.pipeline.imports import imported, require_module
from leasehold.pipeline.limits import FIRST_ONE, JSON_LEVELS_MAX, RETURNED_BYTES_MAX, Isolation
from leasehold.pipeline.parsing.parse import Misfit, parse
from leasehold.pipeline.parsing.schema import Struct, read_schema
from leasehold.pipeline.poison import JobFailed, Prepared, Refused, Slice
from leasehold.pipeline.ranges import RangedBatch, RangeReader, RangeReads
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.executors import OutputTask, RangeTask, collected, new_attempt
from leasehold.pipeline.spark.failures import failure_of
from leasehold.pipeline.spark.jvm import text_of
from leasehold.pipeline.spark.micro_batch import MicroBatches, split
from leasehold.pipeline.spark.partition_contract import PARTITION, Contract
from leasehold.pipeline.spark.pyspark_internals import of_plans, plan_of
from leasehold.pipeline.spark.reason import reason_of
from leasehold.pipeline.spark.runs import Run, Runs
from leasehold.pipeline.spark.session import VIEW, PipelineSession, columns_read
from leasehold.pipeline.spark.user_modules import pack
from leasehold.pipeline.sql_text import schema_problem, sql_problem
from leasehold.pipeline.staging import NotStaged, Ranged, Stager, put_together
from leasehold.pipeline.transform import Checked, Transform, TransformSpec

AT_ONCE_BYTES_MAX = 4 * 1024
"""Batches up to this size are parsed on the event loop. That takes 0.6 ms, and up to 1.3 ms if bodies do not fit the schema."""
CLOSE_S = 5.0
"""How long the jobs of a transform that is closed may take to end."""


class SparkTransform(Transform):
    """One pipeline's transform: a job over all batches that wait, in a session of its own.

    sql: over the view `events`. function: `module:function` from DataFrame to DataFrame. With only a schema, the parsed
    columns are the output as they are.
    goes_on: whether the rest of a batch is processed if some of its bodies do not fit the schema.
    """

    def __init__(
        self,
        engine: SparkEngine,
        name: str,
        *,
        sql: str | None = None,
        function: str | None = None,
        schema: str | None = None,
        goes_on: bool = False,
        isolation: Isolation = FIRST_ONE,
    ) -> None:
        self._engine = engine
        engine.use()
        self._job = SparkJob(
            engine, TransformSpec(name=name, sql=sql, function=function, schema=schema, goes_on=goes_on)
        )
        # The columns of a schema have other names than the event's own.
        self.yields_events = sql is None and function is None
        self._isolation = isolation
        self._batches: MicroBatches | None = None
        self.checked: Checked | None = None

    @property
    def description(self) -> str:
        return "not prepared" if self.checked is None else str(self.checked)

    @property
    def waits_for(self) -> str:
        return f"Spark ({self._engine.place})"

    async def prepare(self) -> None:
        """Raises TransformError, EngineUnavailable."""
        self.checked = await self._job.check()
        self._batches = MicroBatches(self._job, shares_jobs=self.checked.shares_jobs, isolation=self._isolation)

    async def apply(self, batch: Batch) -> pa.Table:
        assert self._batches is not None, "a transform is prepared before it is used"
        assert self.checked is not None
        if batch.events == 0:
            return self.checked.columns.empty_table()
        return await self._batches.apply(batch)

    reads_ranges = True

    @property
    def columns(self) -> pa.Schema:
        assert self.checked is not None, "a transform is prepared before it is used"
        return self.checked.columns

    @property
    def range_reads(self) -> RangeReads:
        assert self.checked is not None, "a transform is prepared before it is used"
        return self.checked.range_reads

    async def apply_ranges(
        self, batch: RangedBatch, reader: RangeReader, stager: Stager | None, bytes_max: int = RETURNED_BYTES_MAX
    ) -> Ranged:
        try:
            return await self._job.run_ranged(batch, reader, stager, bytes_max)
        except (JobFailed, TransformError, NotStaged, SinkRejected) as error:
            raise RangeRefused(f"executors cannot process the events after {batch.start!r}: {error}") from error

    @property
    def executors_wait(self) -> ExecutorsWait | None:
        return self._job.executors_wait

    def noting_waits(self, note: Callable[[float], object]) -> AbstractContextManager[None]:
        return self._engine.waiting.noting(note)

    async def close(self) -> None:
        """Jobs that do not end soon end with Spark, if no other transform uses it."""
        closing = asyncio.ensure_future(self._close_batches())
        await asyncio.wait({closing}, timeout=CLOSE_S)
        await self._engine.release()
        await closing

    async def _close_batches(self) -> None:
        if self._batches is not None:
            await self._batches.close()


class SparkJob:
    """Implements micro_batch.Job: slices of batches through a transform, in a session of its own."""

    def __init__(self, engine: SparkEngine, spec: TransformSpec) -> None:
        self._spec = spec
        self._engine = engine
        self._function: Callable[[DataFrame], DataFrame] | None = None
        self._columns: Struct | None = None
        self._runs = Runs(engine, spec.name, self._send_modules)
        self._checked: Checked | None = None

    @property
    def executors_wait(self) -> ExecutorsWait | None:
        return self._runs.wait

    async def check(self) -> Checked:
        """Find out what the transform is, before the first run. Raises TransformError, EngineUnavailable."""
        for setting, text, problem in (
            ("schema", self._spec.schema, schema_problem),
            ("sql", self._spec.sql, sql_problem),
        ):
            if text is not None and (why := problem(text)) is not None:
                raise TransformError(f"pipeline '{self._spec.name}': `{setting}` {why}")
        if self._spec.function is not None:
            try:
                require_module(self._spec.function)
            except NotImportable as error:
                raise TransformError(f"pipeline '{self._spec.name}': {error}") from error
        self._checked = await self._runs.carry_out(self._check)
        return self._checked

    async def prepare(self, slice: Slice) -> Prepared:
        """Small slices are parsed at once: waiting for a thread would take longer."""
        if slice.batch.bytes <= AT_ONCE_BYTES_MAX:
            return self._prepared(slice)
        return await self._engine.run_job(lambda: self._prepared(slice))

    async def run(self, slices: Sequence[Prepared]) -> list[pa.Table | Refused]:
        return await self._runs.carry_out(lambda run: self._outputs(run, slices))

    async def run_ranged(
        self, batch: RangedBatch, reader: RangeReader, stager: Stager | None, bytes_max: int
    ) -> Ranged:
        """One job over events that executors read. If it is cancelled, it first ends the job.

        Raises JobFailed, TransformError, NotStaged, EngineUnavailable, SinkUnavailable.
        """
        return await self._runs.carry_out(lambda run: self._ranged(run, batch, reader, stager, bytes_max), is_long=True)

    # On a thread

    def _send_modules(self, own: PipelineSession) -> None:
        """Send modules to workers on other machines, once the function was imported. Raises TransformError."""
        if self._function is None or not self._engine.is_cluster:
            return
        assert self._spec.function is not None
        if (path := pack(self._spec.function, self._engine.modules)) is not None:
            own.add_module(path)

    def _prepared(self, slice: Slice) -> Prepared:
        assert self._checked is not None, "a job is checked before it is run"
        seen, misfits = self._parsed(slice.table)
        poison = tuple(Poison(index=each.index, reason=str(each), is_misfit=True) for each in misfits)
        is_kept = self._spec.goes_on or not poison
        return Prepared(slice, seen.select(self._checked.reads) if is_kept else None, poison)

    def _outputs(self, run: Run, slices: Sequence[Prepared]) -> list[pa.Table | Refused]:
        tables = [each.events for each in slices if each.events is not None]
        partitions = [each.slice.partition for each in slices if each.events is not None]
        has_events = any(len(each.slice.range) for each in slices)
        if not tables or (has_events and not any(table.num_rows for table in tables)):
            outputs = iter(self._of_nothing(len(tables)))
        else:
            outputs = iter(split(self._collected(run, pa.concat_tables(tables)), partitions))
        found = [None if each.events is None else next(outputs) for each in slices]
        return [
            Refused(each.poison, output) if each.poison else cast(pa.Table, output)
            for each, output in zip(slices, found, strict=True)
        ]

    def _of_nothing(self, count: int) -> list[pa.Table]:
        assert self._checked is not None, "a job is checked before it is run"
        return [self._checked.columns.empty_table()] * count

    def _parsed(self, events: pa.Table) -> tuple[pa.Table, Sequence[Misfit]]:
        """The events whose bodies fit, with the schema's columns in addition to their own; and why the others do not fit."""
        if self._columns is None:
            return events, ()
        parsed = parse(self._columns, events.column("body"))
        events, columns = _fitting(events, parsed.misfits), parsed.columns
        joined = pa.Table.from_arrays(
            [*events.columns, *columns.columns], schema=pa.unify_schemas([events.schema, columns.schema])
        )
        return joined, parsed.misfits

    def _collected(self, run: Run, events: pa.Table) -> pa.Table:
        own = run.session
        if (again := own.run_again(events)) is not None:
            return again
        collected = self._run(run, own.events(events), DataFrame.toArrow)
        if self._function is None:
            own.keep(events, self._queried)
        return collected

    def _run(self, run: Run, events: DataFrame, collect: Callable[[DataFrame], pa.Table]) -> pa.Table:
        """What the transform makes of events, collected."""
        own = run.session
        with own.views:  # the view's name is the session's
            run.check_wanted()  # it may have waited for another job's view
            output = self._transformed(events)
            if self._spec.sql is not None:
                own.forget_view()
                if own.looks_views_up_late:  # the view of another job would take the place of this one's
                    return collect(output)
        return collect(output)

    def _ranged(
        self,
        run: Run,
        batch: RangedBatch,
        reader: RangeReader,
        stager: Stager | None,
        bytes_max: int,
    ) -> Ranged:
        assert self._checked is not None, "a job is checked before it is run"
        own = run.session
        none, _ = self._parsed(EVENT_SCHEMA.empty_table())
        reads = self._checked.reads
        task = RangeTask(
            version=own_version(),
            partition=batch.partition,
            ranges=batch.ranges,
            reader=reader,
            columns=self._columns,
            schema=none.select([name for name in reads if name != PARTITION] or [PARTITION]).schema,
        )
        output = OutputTask(
            version=own_version(),
            partition=batch.partition,
            ranges=len(batch.ranges),
            stager=stager,
            returned_bytes_max=bytes_max,
            sign=f"{new_attempt()}: ",
        )

        def collect(frame: DataFrame) -> pa.Table:
            if self._function is not None and not reader.is_repeatable:  # each call may return another plan
                own.check_reads_once(frame)
            return own.returned(frame, output)

        try:
            returned = self._run(run, own.ranged(task, reads), collect)
        except Exception as error:
            if (why := output.why_away(text_of(error) or "")) is not None:
                raise SinkUnavailable(f"executors cannot stage output: {why}") from error
            raise
        table, staged = put_together(
            collected(returned, self._checked.columns), self._checked.columns, stager, new_attempt
        )
        (table,) = split(table, [batch.partition])
        return Ranged(table, staged)

    def _transformed(self, events: DataFrame) -> DataFrame:
        if self._function is not None:
            return self._function(events)
        if self._spec.sql is not None:
            events.createOrReplaceTempView(VIEW)
        return self._queried(events)

    def _queried(self, events: DataFrame) -> DataFrame:
        """The query's output, if the events are already their session's view."""
        return events if self._spec.sql is None else events.sparkSession.sql(self._spec.sql)

    def _check(self, run: Run) -> Checked:
        own = run.session
        try:
            self._function = self._imported()
            self._send_modules(own)
            self._columns = self._read_schema(own)
            none, _ = self._parsed(EVENT_SCHEMA.empty_table())
            source = own.unknown(none)
            output = self._analyzed(own, source)
            why_not = self._jobs_of_its_own(own)
            with ThreadPoolExecutor(
                1, "spark-contract"
            ) as beside:  # half of the check: Spark describes plans by reflection
                checking = beside.submit(own.contract, source, output, self._spec.sql)
                counting = beside.submit(own.range_reads, source, output, self._spec)
                if own.looks_views_up_late:  # what follows replaces the view `events`
                    counting.exception()  # the only thread has then finished both
                try:
                    reads = self._reads(own, none, source, output)
                    columns = self._collected(run, none.select(reads)).schema
                finally:  # if both fail, this error is reported
                    contract, range_reads = _kept(checking.result()), counting.result()
        except (TransformError, NotImportable) as error:
            raise TransformError(f"pipeline '{self._spec.name}': {error}") from error
        except (Exception, SystemExit) as error:
            found = failure_of(error, own.running, own)
            kind = EngineUnavailable if isinstance(found, EngineUnavailable) else TransformError
            raise kind(f"pipeline '{self._spec.name}': {found}") from error
        range_reads = range_reads if why_not is None else replace(range_reads, why_again=why_not)
        return Checked(
            reads=reads, columns=columns, why_not_shared=why_not or contract.why_not, range_reads=range_reads
        )

    def _imported(self) -> Callable[[DataFrame], DataFrame] | None:
        if self._spec.function is None:
            return None
        found = imported(self._spec.function)
        if not callable(found):
            raise TransformError(
                f"'{self._spec.function}' is not a function: name one that takes a DataFrame and returns one"
            )
        return cast(Callable[[DataFrame], DataFrame], found)

    def _read_schema(self, own: PipelineSession) -> Struct | None:
        if self._spec.schema is None:
            return None
        with ThreadPoolExecutor(1, "spark-analyzer") as beside:  # what comes next is loaded while the parser is
            beside.submit(own.session.range, 0)
            try:
                schema = StructType.fromDDL(self._spec.schema)
            except PySparkException as error:
                if (text := text_of(error)) is None:
                    raise
                raise TransformError(f"schema: {reason_of(text)}") from error
        return read_schema(parsed_json(schema.json(), JSON_LEVELS_MAX))

    def _analyzed(self, own: PipelineSession, source: DataFrame) -> DataFrame:
        """Raises TransformError."""
        with own.views:
            output = self._transformed(source)
        if not isinstance(output, DataFrame):
            raise TransformError(f"'{self._spec.function}' returned {type(output).__name__}, not a DataFrame")
        names = output.columns
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise TransformError(f"the output has several columns `{twice[0]}`: name each once")
        if PARTITION not in names:
            raise TransformError(f"the output has no column `{PARTITION}`: select it, and group by it")
        if output.schema[PARTITION].dataType != StringType():
            raise TransformError(f"the output's `{PARTITION}` is not a STRING: leave it unchanged")
        return output

    def _reads(self, own: PipelineSession, none: pa.Table, source: DataFrame, output: DataFrame) -> Sequence[str]:
        """The columns that Spark needs to see: those that the SQL reads. A function may read any, and others tomorrow."""
        every: list[str] = none.column_names
        if self._spec.sql is None or own.running.is_remote:
            return every
        read = of_plans(lambda: columns_read(plan_of(source), plan_of(output)), frozenset(every))
        reads = [name for name in every if name in read]
        try:
            of_these = self._analyzed(own, own.unknown(none.select(reads)))
        except (AnalysisException, TransformError):  # `* EXCEPT (body)` does not read `body`, but names it
            return every
        return reads if of_these.schema == output.schema else every

    def _jobs_of_its_own(self, own: PipelineSession) -> str | None:
        """Why batches share no jobs if the function has run jobs of its own. Called before the check runs a job."""
        if self._function is None or own.running.is_remote or (has_run := own.has_run_jobs()) is False:
            return None
        runs = "runs Spark jobs" if has_run else f"may, with PySpark {pyspark.__version__}, run Spark jobs"
        return f"'{self._spec.function}' {runs} of its own, over all partitions"


def _kept(contract: Contract) -> Contract:
    """Raises TransformError."""
    if contract.keeps_partition is False:
        raise TransformError(
            f"the output's `{PARTITION}` is not the events' own: select it as it is, and group and join by it"
        )
    return contract


def _fitting(events: pa.Table, misfits: Sequence[Misfit]) -> pa.Table:
    return without(events, [misfit.index for misfit in misfits])
