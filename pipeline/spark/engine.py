"""One Spark context a process: started when it is first needed, or before; stopped with the last transform.

Everything that talks to Spark runs on threads of its own, never on the event loop. What transforms need besides (Arrow, and the
parsing of bodies) is imported with the first of them: Spark's JVM takes seconds to start, and should have begun by then.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pipeline.errors import EngineUnavailable
from pipeline.spark.catalyst import contract_of, is_same, runs_again
from pipeline.spark.jvm import Running, connected, started
from pipeline.spark.master import INVARIANTS, defaults
from pipeline.spark.partition_contract import Contract

# A pipeline's own Spark session, and what is kept in it: the plan of a small batch, to be run again over the next ones.
#
# Planning a query and generating its code takes Spark longer than running it over a few events. A DataFrame may be run as
# often as one likes, and a plan without a state of its own (pipeline.spark.catalyst) reads its source anew each time; so the
# source's rows are exchanged in between. The query is optimized anew for every batch, and the kept plan is run only where
# nothing has changed: nobody has to know what in a query depends on the moment. Spark has no public name for the rows. Where
# its insides are not as they are known here, nothing is kept, and each batch has a plan to itself.


VIEW = "events"
SMALL_BATCH_EVENTS = 10_000
"""Up to here Arrow's rows come as one Spark partition anyway; saying so saves every shuffle behind it."""
KEPT_BYTES_MAX = 1024 * 1024
"""A plan that is kept holds on to the events of its last run."""


@dataclass(eq=False, slots=True)
class Kept:
    """A query over one source, whose rows are exchanged between runs. One run at a time.

    source: in a session where the view is this source for good. rows: the JVM's partition of the source's RDD, which holds them.
    output: of the query, when it was last planned. schema: of the events.
    """

    query: Callable[[DataFrame], DataFrame]
    source: DataFrame
    rows: Any
    output: DataFrame
    schema: pa.Schema
    is_free: threading.Lock = field(default_factory=threading.Lock)

    def is_current(self) -> bool:
        """The output is what the query means now, and can be run again. False where it never can."""
        now = self.query(self.source)
        if is_same(self.output._jdf, now._jdf):  # noqa: SLF001 - Spark tells its plans nowhere else
            return True
        self.output = now
        return runs_again(self.source._jdf, now._jdf)  # noqa: SLF001

    def run(self, rows: Any) -> pa.Table:
        getattr(self.rows, "values_$eq")(rows.values())
        return self.output.toArrow()


@dataclass(eq=False, slots=True)
class Own:
    """A pipeline's own session: its views and temporary functions are nobody else's."""

    running: Running
    session: SparkSession = field(init=False)
    kept: Kept | None = None
    is_looked_at: bool = False
    """Whether it is known by now if a plan can be kept."""

    def __post_init__(self) -> None:
        self.session = self.running.session.newSession()
        for name, value in INVARIANTS.items():
            self.session.conf.set(name, value)

    def begin(self, group: str, name: str) -> None:
        """What this thread does from now on belongs to the group."""
        if self.running.is_remote:
            self.session.clearTags()
            self.session.addTag(group)
        else:
            self.session.sparkContext.setJobGroup(group, f"micro-batch of {name}", interruptOnCancel=True)

    def has_run_jobs(self) -> bool:
        """Whether this thread's group has run any jobs so far. Over Connect nobody can tell."""
        context = self.session.sparkContext
        context._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001 - the tracker hears of jobs over it
        return bool(context.statusTracker().getJobIdsForGroup(context.getLocalProperty("spark.jobGroup.id")))

    def cancel(self, group: str) -> None:
        with suppress(PySparkException, Py4JError, OSError):  # it has ended, or all of Spark has
            if self.running.is_remote:
                self.session.interruptTag(group)
            else:
                self.session.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(group)  # noqa: SLF001 - in Scala alone

    def events(self, table: pa.Table) -> DataFrame:
        """What the transform sees."""
        frame = self._sent(table)
        return frame.coalesce(1) if table.num_rows <= SMALL_BATCH_EVENTS else frame

    def forget_view(self) -> None:
        """Or the events of this batch stay in the JVM until the next one comes. Over Connect a view is looked up late."""
        if not self.running.is_remote:
            self.session.catalog.dropTempView(VIEW)

    def keep(self, events: pa.Table, query: Callable[[DataFrame], DataFrame]) -> None:
        """The plan of a query over the view, where it can be run again and means the same a moment later."""
        if self.is_looked_at or not _is_small(events) or self.running.is_remote:
            return
        self.is_looked_at = True
        with suppress(Py4JError, AttributeError, TypeError):  # another Spark, with other insides
            source = Own(self.running).events(events)
            source.createOrReplaceTempView(VIEW)
            first, second = query(source), query(source)
            if is_same(first._jdf, second._jdf) and runs_again(source._jdf, second._jdf):  # noqa: SLF001
                self.kept = Kept(query, source, _rows_of(source), second, events.schema)

    def run_again(self, events: pa.Table) -> pa.Table | None:
        """The output of the query that was kept; None where there is none, or not for these events, or it is busy."""
        kept = self.kept
        if kept is None or events.schema != kept.schema or not _is_small(events):
            return None
        if not kept.is_free.acquire(blocking=False):
            return None
        try:
            if kept.is_current():
                return kept.run(_rows_of(self._sent(events)))
            self.kept = None
            return None
        finally:
            kept.is_free.release()

    def _sent(self, table: pa.Table) -> DataFrame:
        """In one chunk: Spark takes several times as long for many."""
        table = table.combine_chunks()
        schema = _schema_of(table)
        if self.running.is_remote:
            return self.session.createDataFrame(table, schema)
        rows = SMALL_BATCH_EVENTS
        if table.num_rows > rows:  # a task for each core, since tasks of Spark's usual size cost half as much again
            rows = max(rows, -(-table.num_rows // self.session.sparkContext.defaultParallelism))
        # What createDataFrame does, less the two dozen calls to the JVM that ask for these settings.
        return self.session._create_from_arrow_table(table, schema, "UTC", True, False, rows)  # noqa: SLF001

    def unknown(self, none: pa.Table) -> DataFrame:
        """As `events`, of a source that the optimizer cannot know to be empty."""
        schema = _schema_of(none)  # to send it and ask Spark would take a tenth of a host's start
        if self.running.is_remote:
            return self.session.createDataFrame([], schema)
        return self.session.createDataFrame(self.session.sparkContext.emptyRDD(), schema)

    def contract(self, source: DataFrame, output: DataFrame) -> Contract:
        if self.running.is_remote:
            return Contract(None, "Spark Connect does not show plans")
        return contract_of(source._jdf, output._jdf)  # noqa: SLF001 - Spark tells its plan nowhere else


def _schema_of(events: pa.Table) -> StructType:
    return from_arrow_schema(events.schema, prefer_timestamp_ntz=True)  # a timestamp without zone has none


def _is_small(events: pa.Table) -> bool:
    return 0 < events.num_rows <= SMALL_BATCH_EVENTS and bool(events.nbytes <= KEPT_BYTES_MAX)


def _rows_of(source: DataFrame) -> Any:
    """The one partition of a small batch's RDD. Where it is not as known: AttributeError, TypeError, Py4JError."""
    leaf = source._jdf.queryExecution().analyzed().collectLeaves().apply(0)  # noqa: SLF001
    return leaf.rdd().dependencies().apply(0).rdd().partitions()[0]


T = TypeVar("T")
JOB_THREADS_MAX = 32


class SparkEngine:
    """One Spark context, started when the first transform needs it and stopped with the last.

    Where its JVM dies, whatever runs raises EngineUnavailable, and the next job starts another.
    """

    def __init__(
        self,
        *,
        master: str = "local[2]",
        remote: str | None = None,
        driver_memory: str = "1g",
        result_bytes_max: int = 512 * 1024 * 1024,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        """remote: a Spark Connect server instead of `master`. result_bytes_max: of one job's output.

        conf: more of Spark's own settings, which win over ours (but for INVARIANTS). Those of the JVM's start
        (`spark.driver.*`, jars, files) appear in process lists: no secrets in them.
        """
        self._conf = {**defaults(master, driver_memory, result_bytes_max), **(conf or {}), **INVARIANTS}
        self._remote = remote
        self._jobs = ThreadPoolExecutor(JOB_THREADS_MAX, thread_name_prefix="spark-job")
        self._control = ThreadPoolExecutor(2, thread_name_prefix="spark-control")  # so that jobs can be cancelled
        self._lock = threading.Lock()
        self._running: Running | None = None
        self._begun: Future[Running] | None = None
        self._starts_ended = 0
        self._failed: EngineUnavailable | None = None
        self._starting: subprocess.Popen[bytes] | None = None
        self._is_stopped = False
        self._users = 0
        self.numbers = count()
        """One for each group of jobs: cancelling a group must never end another."""

    def use(self) -> None:
        """One transform more, until it is released."""
        self._users += 1

    @property
    def place(self) -> str:
        """Where Spark runs, for people."""
        return self._remote or self._conf["spark.master"]

    def begin(self) -> None:
        """Starts in the background what transforms will need. If that fails, so does every transform, for the same reason."""
        self._begun = self._control.submit(self._run)

    def running(self) -> Running:
        """Spark, started or started again where needed. Blocks. Raises EngineUnavailable.

        Callers that wait for one start share its failure: pipelines do not try the same thing one after the other.
        """
        if self._begun is not None and not self._is_stopped and (error := self._begun.exception()) is not None:
            raise EngineUnavailable(str(error)) from error
        return self._run()

    def _run(self) -> Running:
        starts_ended = self._starts_ended
        with self._lock:
            if self._is_stopped:
                raise EngineUnavailable("Spark is stopped")
            if self._running is None or not self._running.is_alive:
                if self._failed is not None and self._starts_ended != starts_ended:
                    raise EngineUnavailable(str(self._failed)) from self._failed
                self._running = self._start()
            return self._running

    def _start(self) -> Running:
        self._stop()
        self._failed = None
        try:
            return connected(self._remote) if self._remote else started(self._conf, self._launched)
        except EngineUnavailable as error:
            self._failed = error
            raise
        finally:
            self._starting = None
            self._starts_ended += 1

    def _launched(self, process: subprocess.Popen[bytes]) -> None:
        self._starting = process
        if self._is_stopped:
            process.kill()

    async def job(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._jobs, work)

    async def control(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._control, work)

    async def release(self) -> None:
        """One transform less; the last one stops Spark."""
        self._users -= 1
        if self._users == 0:
            await self.control(self.stop)
            self._jobs.shutdown(wait=False)
            self._control.shutdown(wait=False)

    def stop(self) -> None:
        """For good. Blocks. Jobs that are under way end with EngineUnavailable, and so does a start."""
        self._is_stopped = True
        if (starting := self._starting) is not None:
            starting.kill()
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._running is not None:
            self._running.stop()
        self._running = None
