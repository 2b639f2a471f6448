"""Spark: one context a process, one session a pipeline, and the fast path of a micro-batch through it.

The only module that imports pyspark. Everything that talks to the JVM runs on threads of its own, never on the event loop.
The fast path: an Arrow table in one chunk -> createDataFrame without going through a local relation -> native expressions ->
one task where the batch is small -> toArrow. A job costs some 20 ms that way, and several times that with the defaults.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.batch import Batch
from pipeline.errors import EngineUnavailable, NotImportable, PipelineError, TransformError
from pipeline.event import EVENT_SCHEMA
from pipeline.imports import imported
from pipeline.java import require_java
from pipeline.micro_batch import JobFailed, MicroBatches
from pipeline.parse import StrictParse, strict_parse
from pipeline.plan import PARTITION, mixing
from pipeline.schema import read_schema

T = TypeVar("T")
VIEW = "events"
SMALL_BATCH_EVENTS = 20_000
"""Up to here one task is quicker than dealing the rows out to several."""
THREADS_MAX = 16
_CORES = re.compile(r"local\[(\d+)")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ?(?P<text>[^\n]*)")
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*")


class SparkEngine:
    """One Spark context, started when the first transform needs it and stopped with the last. Restarts when its JVM died."""

    def __init__(
        self,
        *,
        master: str = "local[2]",
        remote: str | None = None,
        driver_memory: str = "1g",
        conf: Mapping[str, str] | None = None,
    ) -> None:
        """conf: more of Spark's own settings, which win over ours. They appear in process lists: no secrets."""
        self._conf = {**_defaults(master, driver_memory), **(conf or {})}
        self._remote = remote
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="spark")
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._session: SparkSession | None = None
        self._users = 0

    def transform(
        self, name: str, *, sql: str | None = None, function: str | None = None, schema: str | None = None
    ) -> SparkTransform:
        """A pipeline's transform: SQL over the view `events`, or `module:function` from DataFrame to DataFrame, or (with a
        schema alone) the parsed columns as they are."""
        self._users += 1
        return SparkTransform(self, name, sql=sql, function=function, schema=schema)

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` on one of the engine's threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def session(self) -> SparkSession:
        """The running root session, started or started again where needed. Blocks. Raises EngineUnavailable."""
        with self._starting:
            if self._session is None or not self.is_alive:
                self._forget()
                self._session = self._connected() if self._remote else self._started()
            return self._session

    @property
    def is_alive(self) -> bool:
        return self._remote is not None or (self._process is not None and self._process.poll() is None)

    @property
    def is_remote(self) -> bool:
        return self._remote is not None

    async def release(self) -> None:
        """One transform less; the last one stops Spark."""
        self._users -= 1
        if self._users == 0:
            await self.call(self._stop)
            self._threads.shutdown(wait=False)

    def _started(self) -> SparkSession:
        require_java()
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        conf = SparkConf(loadDefaults=False).setAll(list(self._conf.items()))
        with tempfile.TemporaryFile() as output:
            try:
                # Its output would litter ours; only when it does not start is it worth a look.
                gateway = launch_gateway(conf, {"stdout": subprocess.DEVNULL, "stderr": output})  # type: ignore[no-untyped-call]
                self._process = gateway.proc
                return SparkSession(SparkContext(gateway=gateway, conf=conf))
            except (PySparkException, Py4JError, OSError) as error:
                output.seek(0)
                told = output.read().decode(errors="replace").strip().splitlines()
                raise EngineUnavailable(f"Spark did not start: {told[-1] if told else error}") from error

    def _connected(self) -> SparkSession:
        try:
            return SparkSession.builder.remote(self._remote or "").getOrCreate()
        except (PySparkException, ImportError, OSError) as error:
            raise EngineUnavailable(
                f"the Spark Connect server at '{self._remote}' cannot be used: {_said(error)}"
            ) from error

    def _stop(self) -> None:
        with self._starting:
            if self._session is not None and self.is_alive:
                with suppress(Py4JError, PySparkException, OSError):
                    self._session.stop()
            self._forget()

    def _forget(self) -> None:
        """Leave nothing of a context that is gone, or the next one could not start."""
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()  # that is how its JVM is told to end
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            if self._process.poll() is None:
                self._process.kill()
        if self._session is not None and not self.is_remote:
            if SparkContext._gateway is not None:  # noqa: SLF001 - pyspark has no other way to start anew
                with suppress(Py4JError, OSError):
                    SparkContext._gateway.shutdown()  # noqa: SLF001
            SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
            SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
        self._session = self._process = None


class SparkTransform:
    """One pipeline's transform, in a session of its own. Implements pipeline.transform.Transform."""

    def __init__(
        self, engine: SparkEngine, name: str, *, sql: str | None, function: str | None, schema: str | None
    ) -> None:
        self._engine = engine
        self._name = name
        self._sql = sql
        self._function_path = function
        self._schema = schema
        self._function: Callable[[DataFrame], DataFrame] | None = None
        self._parse: StrictParse | None = None
        self._root: SparkSession | None = None
        self._own: SparkSession | None = None
        self._analysis = threading.Lock()
        self._numbers = count()
        self._batches: MicroBatches | None = None
        self.description = "not prepared"

    async def prepare(self) -> None:
        """Raises TransformError, EngineUnavailable."""
        columns, why_not = await self._engine.call(self._checked)
        sharing = "batches share jobs" if why_not is None else f"one job per partition ({why_not})"
        self.description = f"yields {', '.join(columns)}; {sharing}"
        self._batches = MicroBatches(self, shares_jobs=why_not is None)

    async def apply(self, batch: Batch) -> pa.Table:
        assert self._batches is not None, "a transform is prepared before it is used"
        return await self._batches.apply(batch)

    async def close(self) -> None:
        if self._batches is not None:
            await self._batches.close()
        await self._engine.release()

    # pipeline.micro_batch.Jobs

    async def run(self, events: pa.Table) -> pa.Table:
        return await self._cancellable(lambda: self._collected(events, self._output))

    async def misfit(self, events: pa.Table) -> tuple[int, str] | None:
        if self._parse is None:
            return None
        found = await self._cancellable(lambda: self._collected(events, self._misfits))
        if found.num_rows == 0:
            return None
        first = found.sort_by("sequence").slice(0, 1).to_pylist()[0]
        return events.column("sequence").to_pylist().index(first["sequence"]), first["reason"]

    async def _cancellable(self, work: Callable[[], pa.Table]) -> pa.Table:
        """A job that ends when its caller is cancelled, its Python workers too."""
        job = f"{self._name}-{next(self._numbers)}"

        def tagged() -> pa.Table:
            with _translated(self._engine):
                session = self._session()
                if self._engine.is_remote:
                    session.addTag(job)
                else:
                    session.sparkContext.setJobGroup(job, f"micro-batch of {self._name}", interruptOnCancel=True)
                return work()

        running = asyncio.ensure_future(self._engine.call(tagged))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody asks any more
            await asyncio.shield(self._engine.call(lambda: self._cancel(job)))
            raise

    def _cancel(self, job: str) -> None:
        with suppress(Py4JError, PySparkException, OSError):
            if self._engine.is_remote:
                self._session().interruptTag(job)
            elif self._own is not None:
                self._own.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(job)  # noqa: SLF001

    # On a thread

    def _session(self) -> SparkSession:
        root = self._engine.session()
        if root is not self._root:
            self._root, self._own = root, root.newSession()
        assert self._own is not None
        return self._own

    def _collected(self, events: pa.Table, query: Callable[[DataFrame], DataFrame]) -> pa.Table:
        session = self._session()
        with self._analysis:  # the view's name is the session's
            frame = query(session.createDataFrame(events))
        if events.num_rows <= SMALL_BATCH_EVENTS:
            frame = frame.coalesce(1)
        return frame.toArrow().combine_chunks()

    def _output(self, events: DataFrame) -> DataFrame:
        return self._transformed(self._parsed(events))

    def _misfits(self, events: DataFrame) -> DataFrame:
        assert self._parse is not None
        reasons = events.selectExpr(*self._parse.raw).selectExpr(*self._parse.typed)
        return reasons.selectExpr("sequence", self._parse.reason).where("reason IS NOT NULL")

    def _parsed(self, events: DataFrame) -> DataFrame:
        if self._parse is None:
            return events
        typed = events.selectExpr(*self._parse.raw).selectExpr(*self._parse.typed)
        return typed.where(self._parse.accepted).selectExpr(*self._parse.columns)

    def _transformed(self, events: DataFrame) -> DataFrame:
        if self._function is not None:
            return self._function(events)
        if self._sql is None:
            return events
        events.createOrReplaceTempView(VIEW)
        return events.sparkSession.sql(self._sql)

    def _checked(self) -> tuple[list[str], str | None]:
        """The output's columns, and why batches may not share jobs (None where they may). Raises TransformError."""
        with _translated(self._engine):
            session = self._session()
        try:
            self._function = self._imported()
            if self._schema is not None:
                self._parse = strict_parse(read_schema(_json_of(self._schema)))
            given = self._parsed(session.createDataFrame(EVENT_SCHEMA.empty_table()))
            # Of an empty table the optimizer would leave nothing to look at.
            frame = self._transformed(session.createDataFrame(session.sparkContext.emptyRDD(), given.schema))
            columns = frame.columns
            why_not = None if self._engine.is_remote else mixing(_plan(frame))
        except (ParseException, AnalysisException) as error:
            raise TransformError(f"pipeline '{self._name}': {_said(error)}") from error
        except NotImportable as error:
            raise TransformError(f"pipeline '{self._name}': {error}") from error
        except TransformError as error:
            raise TransformError(f"pipeline '{self._name}': {error}") from error
        if PARTITION not in columns:
            raise TransformError(
                f"pipeline '{self._name}': the transform drops the column '{PARTITION}': select it, and group by it"
            )
        return columns, why_not

    def _imported(self) -> Callable[[DataFrame], DataFrame] | None:
        if self._function_path is None:
            return None
        found = imported(self._function_path)
        if not callable(found):
            raise TransformError(
                f"'{self._function_path}' is no function: name one that takes a DataFrame and returns one"
            )
        return found


@contextmanager
def _translated(engine: SparkEngine) -> Iterator[None]:
    """What Spark raises, as what it means for the batch."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        if not engine.is_alive or isinstance(error, Py4JNetworkError | ConnectionError):
            raise EngineUnavailable("Spark's JVM has died; it is started again for the next batch") from error
        raise JobFailed(_said(error)) from error


def _defaults(master: str, driver_memory: str) -> dict[str, str]:
    found = _CORES.match(master)
    cores = int(found[1]) if found else os.cpu_count() or 2
    return {
        "spark.master": master,
        "spark.app.name": "leasehold",
        "spark.driver.memory": driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:-DontCompileHugeMethods",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.execution.arrow.localRelationThreshold": "0",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.task.maxFailures": "1",
        "spark.driver.maxResultSize": "256m",
        **({"spark.local.dir": "/dev/shm"} if _has_shared_memory() else {}),  # noqa: S108 - Spark makes a directory of its own
    }


def _has_shared_memory(bytes_min: int = 1 << 30) -> bool:
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= bytes_min and os.access("/dev/shm", os.W_OK)  # noqa: S108


def _json_of(ddl: str) -> Mapping[str, object]:
    value: dict[str, object] = json.loads(StructType.fromDDL(ddl).json())
    return value


def _plan(frame: DataFrame) -> list[dict[str, Any]]:
    text = frame._jdf.queryExecution().optimizedPlan().toJSON()  # noqa: SLF001 - Spark tells its plan nowhere else
    return list(json.loads(text))


def _said(error: Exception) -> str:
    """The line of an error that a person can use, without a Java stack."""
    text = str(error)
    if "Traceback (most recent call last)" in text:  # of the user's own Python, in a worker
        lines = [line for line in text.splitlines() if line and not line.startswith((" ", "\t", "JVM", "SQLSTATE"))]
        named = [
            line for line in lines if re.match(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Warning|Interrupt)\b", line)
        ]
        if named:
            return named[-1].strip()
    if (found := _CONDITION.search(text)) is not None:
        return _STATE.sub("", found["text"]).strip() or found[1]
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
