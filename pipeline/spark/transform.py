"""A pipeline's transform in Spark: checked once, then run over micro-batches by the fast path.

The fast path: an Arrow table in one chunk -> createDataFrame without going through a local relation -> native expressions ->
one task where the batch is small -> toArrow. With the defaults a small job takes several times as long.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructType

from leasehold.common.cancellation import await_shielded
from leasehold.common.nesting import parsed_json
from pipeline.batch import Batch, without
from pipeline.errors import (
    EngineUnavailable,
    NotImportable,
    PipelineError,
    Poison,
    RangeRefused,
    SinkRejected,
    TransformError,
)
from pipeline.event import EVENT_SCHEMA
from pipeline.imports import imported, require_module
from pipeline.limits import FIRST_ONE, JSON_LEVELS_MAX, Isolation
from pipeline.parsing.parse import Misfit, parse
from pipeline.parsing.schema import Struct, read_schema
from pipeline.poison import JobFailed, Prepared, Refused, Slice
from pipeline.ranges import RangedBatch, RangeReader
from pipeline.spark.connect import lost_server
from pipeline.spark.engine import SparkEngine
from pipeline.spark.executors import OutputTask, RangeTask, collected, new_attempt, own_version
from pipeline.spark.jvm import Running, text_of
from pipeline.spark.micro_batch import MicroBatches, split
from pipeline.spark.partition_contract import PARTITION, Contract
from pipeline.spark.pyspark_internals import of_plans, plan_of
from pipeline.spark.reason import blame, last_words, reason_of
from pipeline.spark.session import VIEW, PipelineSession, columns_read
from pipeline.spark.user_modules import pack
from pipeline.spark.watch import LOOK_S, Watch, still
from pipeline.sql_text import schema_problem, sql_problem
from pipeline.staging import NotStaged, Ranged, Stager, put_together
from pipeline.transform import Checked, Transform, TransformSpec

T = TypeVar("T")
AT_ONCE_BYTES_MAX = 4 * 1024
"""Batches up to this size are parsed on the event loop. That takes 0.6 ms, and up to 1.3 ms if bodies do not fit the schema."""
ANSWER_S = 20.0
"""How long a driver on a cluster, or a Connect server, may take to report the progress of a job."""
CLOSE_S = 5.0
"""How long the jobs of a transform that is closed may take to end."""
RETURNED_BYTES_MAX = 128 * 1024 * 1024
"""What the tasks of one job over ranges hand back together, if their output cannot be staged."""
CANCEL_TIMEOUT_S = 30.0
"""How long a cancelled job may take to end. Python workers in an endless loop are killed within a few seconds; only a
`module:function` that never returns a DataFrame cannot be ended."""


class SparkTransform(Transform):
    """One pipeline's transform: a job over all batches that wait, in a session of its own.

    sql: over the view `events`. function: `module:function` from DataFrame to DataFrame. With a schema alone the parsed columns
    are the output as they are.
    goes_on: whether the rest of a batch is processed in which some bodies do not fit the schema.
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

    async def apply_ranges(self, batch: RangedBatch, reader: RangeReader, stager: Stager | None) -> Ranged:
        try:
            return await self._job.run_ranged(batch, reader, stager)
        except (JobFailed, TransformError, NotStaged, SinkRejected) as error:
            raise RangeRefused(f"executors cannot process the events behind {batch.start!r}: {error}") from error

    async def close(self) -> None:
        """Jobs that do not end soon end with Spark, if no other transform uses it."""
        closing = asyncio.ensure_future(self._close_batches())
        await asyncio.wait({closing}, timeout=CLOSE_S)
        await self._engine.release()
        await closing

    async def _close_batches(self) -> None:
        if self._batches is not None:
            await self._batches.close()


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """Why a job is given up. answers: whether its Spark still takes commands."""

    why: EngineUnavailable
    spark: Running
    answers: bool


class SparkJob:
    """Implements micro_batch.Job: slices of batches through a transform, in a session of its own."""

    def __init__(self, engine: SparkEngine, spec: TransformSpec) -> None:
        self._spec = spec
        self._engine = engine
        self._function: Callable[[DataFrame], DataFrame] | None = None
        self._columns: Struct | None = None
        self._own: PipelineSession | None = None
        self._apart: dict[str, PipelineSession] = {}
        """Groups of long jobs over Connect -> their sessions."""
        self._analysis = threading.Lock()
        self._checked: Checked | None = None

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
        self._checked = await self._cancellable(self._check)
        return self._checked

    async def prepare(self, slice: Slice) -> Prepared:
        """Small ones at once: a thread's turn would take longer."""
        if slice.batch.bytes <= AT_ONCE_BYTES_MAX:
            return self._prepared(slice)
        return await self._engine.run_job(lambda: self._prepared(slice))

    async def run(self, slices: Sequence[Prepared]) -> list[pa.Table | Refused]:
        return await self._cancellable(lambda own: self._outputs(own, slices))

    async def run_ranged(self, batch: RangedBatch, reader: RangeReader, stager: Stager | None) -> Ranged:
        """One job over events that executors read. Cancelling it ends it first.

        Raises JobFailed, TransformError, NotStaged, EngineUnavailable.
        """
        return await self._cancellable(lambda own: self._ranged(own, batch, reader, stager), is_long=True)

    async def _cancellable(self, work: Callable[[PipelineSession], T], *, is_long: bool = False) -> T:
        """Work on a thread, as a group of Spark jobs that ends with its caller, Python workers and all."""
        group = f"{self._spec.name}-{next(self._engine.numbers)}"
        running = asyncio.ensure_future(self._engine.run_job(lambda: self._grouped(group, work, is_long)))
        try:
            if self._engine.is_cluster:
                await self._wait_watching(running, group)
            return await await_shielded(running)
        except asyncio.CancelledError:
            await self._end(running, group, lambda own: own.cancel(group))
            raise

    async def _wait_watching(self, running: asyncio.Future[Any], group: str) -> None:
        """Returns when the job on a cluster has ended. Raises EngineUnavailable if it stands still."""
        watching = asyncio.create_task(self._watch(group), name=f"watch {group}")
        try:
            both: set[asyncio.Future[Any]] = {running, watching}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                given_up = watching.result()
                await self._end(
                    running, group, lambda own: own.cancel(group) if given_up.answers else given_up.spark.sever()
                )
                raise given_up.why
        finally:
            watching.cancel()

    async def _end(self, running: asyncio.Future[Any], group: str, end: Callable[[PipelineSession], None]) -> None:
        """End a job whose result no caller retrieves."""
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        if (own := self._apart.get(group, self._own)) is not None:
            ending = asyncio.ensure_future(self._engine.run_control(lambda: end(own)))
            done, _ = await asyncio.wait({ending}, timeout=ANSWER_S)
            if done:
                ending.result()
            elif own.running.is_remote:
                await asyncio.to_thread(own.running.sever)
            await asyncio.wait({running}, timeout=CANCEL_TIMEOUT_S)

    async def _watch(self, group: str) -> _GivenUp:
        """Returns once a job stands still."""
        clock, place = asyncio.get_running_loop().time, self._engine.place
        watch = Watch(clock())
        while True:
            await asyncio.sleep(LOOK_S)
            if (own := self._own) is None or not own.running.is_alive:  # Spark starts, or starts again
                watch.note(None, clock())
                continue
            spark, progress = own.running, None
            try:
                async with asyncio.timeout(ANSWER_S):
                    progress = await self._engine.run_watch(partial(spark.progress_of, group))
            except TimeoutError:
                why = EngineUnavailable(f"Spark at '{place}' has not answered for {ANSWER_S:g} s")
                return _GivenUp(why, spark, answers=False)
            except Exception as error:  # or a JVM that has died, which the job notices itself
                if (lost := lost_server(error, spark)) is not None:
                    return _GivenUp(lost, spark, answers=False)
            watch.note(progress, clock())
            if progress is not None and progress.running:
                self._engine.ran_at = clock()
            if watch.is_still(clock(), self._engine.ran_at):
                spark.is_broken = True
                return _GivenUp(EngineUnavailable(still(place)), spark, answers=True)

    # On a thread

    def _grouped(self, group: str, work: Callable[[PipelineSession], T], is_long: bool) -> T:
        """is_long: not in the session of the pipeline, if its queries had to wait for this one there."""
        running = self._engine.running()
        try:
            own = self._session(running)
            if is_long and own.looks_views_up_late:
                return self._apart_from_others(own, group, work)
            own.begin(group, self._spec.name)
            return work(own)
        except (Exception, SystemExit) as error:
            raise _translated(error, running) from error

    def _apart_from_others(self, shared: PipelineSession, group: str, work: Callable[[PipelineSession], T]) -> T:
        own = self._apart[group] = PipelineSession(shared.running)
        try:
            self._send_modules(own)
            own.begin(group, self._spec.name)
            return work(own)
        finally:
            del self._apart[group]
            own.close()

    def _session(self, running: Running) -> PipelineSession:
        with self._analysis:
            if self._own is None or self._own.running is not running:
                self._own = PipelineSession(running)
                self._send_modules(self._own)
            return self._own

    def _send_modules(self, own: PipelineSession) -> None:
        """To workers on other machines, once the function was imported. Raises TransformError."""
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

    def _outputs(self, own: PipelineSession, slices: Sequence[Prepared]) -> list[pa.Table | Refused]:
        tables = [each.events for each in slices if each.events is not None]
        partitions = [each.slice.partition for each in slices if each.events is not None]
        has_events = any(len(each.slice.range) for each in slices)
        if not tables or (has_events and not any(table.num_rows for table in tables)):
            outputs = iter(self._of_nothing(len(tables)))
        else:
            outputs = iter(split(self._collected(own, pa.concat_tables(tables)), partitions))
        found = [None if each.events is None else next(outputs) for each in slices]
        return [
            Refused(each.poison, output) if each.poison else cast(pa.Table, output)
            for each, output in zip(slices, found, strict=True)
        ]

    def _of_nothing(self, count: int) -> list[pa.Table]:
        assert self._checked is not None, "a job is checked before it is run"
        return [self._checked.columns.empty_table()] * count

    def _parsed(self, events: pa.Table) -> tuple[pa.Table, Sequence[Misfit]]:
        """Those whose bodies fit, with the schema's columns beside the event's own. And why the others do not."""
        if self._columns is None:
            return events, ()
        parsed = parse(self._columns, events.column("body"))
        events, columns = _fitting(events, parsed.misfits), parsed.columns
        joined = pa.Table.from_arrays(
            [*events.columns, *columns.columns], schema=pa.unify_schemas([events.schema, columns.schema])
        )
        return joined, parsed.misfits

    def _collected(self, own: PipelineSession, events: pa.Table) -> pa.Table:
        if (again := own.run_again(events)) is not None:
            return again
        collected = self._run(own, own.events(events), DataFrame.toArrow)
        if self._function is None:
            own.keep(events, self._queried)
        return collected

    def _run(self, own: PipelineSession, events: DataFrame, collect: Callable[[DataFrame], pa.Table]) -> pa.Table:
        """What the transform makes of events, collected."""
        with own.views:  # the view's name is the session's
            output = self._transformed(events)
            if self._spec.sql is not None:
                own.forget_view()
                if own.looks_views_up_late:  # the view of another job would take the place of this one's
                    return collect(output)
        return collect(output)

    def _ranged(self, own: PipelineSession, batch: RangedBatch, reader: RangeReader, stager: Stager | None) -> Ranged:
        assert self._checked is not None, "a job is checked before it is run"
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
            stager=stager,
            returned_bytes_max=RETURNED_BYTES_MAX // len(batch.ranges),
        )
        returned = self._run(own, own.ranged(task, reads), lambda frame: own.returned(frame, output))
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
        """Where the events are their session's view already."""
        return events if self._spec.sql is None else events.sparkSession.sql(self._spec.sql)

    def _check(self, own: PipelineSession) -> Checked:
        try:
            self._function = self._imported()
            self._send_modules(own)
            self._columns = self._read_schema(own)
            none, _ = self._parsed(EVENT_SCHEMA.empty_table())
            source = own.unknown(none)
            output = self._analyzed(source)
            why_not = self._jobs_of_its_own(own)
            with ThreadPoolExecutor(
                1, "spark-contract"
            ) as beside:  # half of the check: Spark describes plans by reflection
                checking = beside.submit(own.contract, source, output, self._spec.sql)
                try:
                    reads = self._reads(own, none, source, output)
                    columns = self._collected(own, none.select(reads)).schema
                finally:  # if both fail, this error is reported
                    contract = _kept(checking.result())
        except (TransformError, NotImportable) as error:
            raise TransformError(f"pipeline '{self._spec.name}': {error}") from error
        except (Exception, SystemExit) as error:
            found = _translated(error, own.running)
            kind = EngineUnavailable if isinstance(found, EngineUnavailable) else TransformError
            raise kind(f"pipeline '{self._spec.name}': {found}") from error
        return Checked(reads=reads, columns=columns, why_not_shared=why_not or contract.why_not)

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

    def _analyzed(self, source: DataFrame) -> DataFrame:
        """Raises TransformError."""
        with self._analysis:
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
        """The columns that Spark needs to see: those an SQL reads. A function may look at any, and at another one tomorrow."""
        every: list[str] = none.column_names
        if self._spec.sql is None or own.running.is_remote:
            return every
        read = of_plans(lambda: columns_read(plan_of(source), plan_of(output)), frozenset(every))
        reads = [name for name in every if name in read]
        try:
            of_these = self._analyzed(own.unknown(none.select(reads)))
        except (AnalysisException, TransformError):  # `* EXCEPT (body)` reads no body, and names it
            return every
        return reads if of_these.schema == output.schema else every

    def _jobs_of_its_own(self, own: PipelineSession) -> str | None:
        """Why batches share no jobs, where the function ran some when it was called: asked before the check runs one."""
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


def _translated(error: BaseException, running: Running) -> Exception:
    """What Spark raises, as what it means for the batch."""
    if isinstance(error, PipelineError):
        return error
    text = text_of(error)
    if (lost := lost_server(error, running)) is not None:
        return lost
    if (text is None or not isinstance(error, Py4JJavaError)) and _is_of_connection(error) and running.has_died():
        words = last_words(running.last_lines)
        why = f" ({words})" if words else ""
        return EngineUnavailable(f"Spark's JVM has died{why}; the next batch starts another")
    if text is None:
        return EngineUnavailable("Spark's JVM no longer answers")
    if isinstance(error, AnalysisException):
        return TransformError(reason_of(text))
    if not isinstance(error, PySparkException | Py4JError):
        return TransformError(f"{type(error).__name__}: {text}".splitlines()[0])
    match blame(text):
        case "engine":
            lives_on = "SPARK_JOB_CANCELLED" in text or ("ExecutorLostFailure" in text and running.is_cluster)
            running.is_broken = running.is_broken or not lives_on
            return EngineUnavailable(f"Spark could not run the job: {reason_of(text)}")
        case "transform":
            return TransformError(reason_of(text))
        case "output":
            return TransformError(f"the output of one batch is too large ({reason_of(text)}): make batches smaller")
    return JobFailed(reason_of(text))


def _is_of_connection(error: BaseException) -> bool:
    return isinstance(error, Py4JError | OSError | EOFError)


def _fitting(events: pa.Table, misfits: Sequence[Misfit]) -> pa.Table:
    return without(events, [misfit.index for misfit in misfits])
