"""One Spark context for each process: started when it is first needed, or earlier; stopped with the last transform.

Everything that talks to Spark runs on threads of its own, never on the event loop. What else transforms need (Arrow, and the
parsing of bodies) is imported with the first transform: Spark's JVM takes seconds to start, and should have begun by then.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark.master import INVARIANTS, address, defaults
from leasehold.pipeline.spark.waiting import Waiting
from leasehold.pipeline.spark.watch import WAIT_S, Cluster

if TYPE_CHECKING:
    from leasehold.pipeline.spark.connect import Connected
    from leasehold.pipeline.spark.jvm import Running

T = TypeVar("T")
JOB_THREADS_MAX = 32
"""Far more than RANGED_JOBS_MAX: jobs in which executors read may take minutes, and other batches must not wait for them."""


class SparkEngine:
    """One Spark context, started when the first transform needs it and stopped with the last.

    If its JVM dies, running jobs raise EngineUnavailable, and the next job starts another.
    """

    def __init__(
        self,
        *,
        master: str = "local[2]",
        remote: str | None = None,
        driver_memory: str = "1g",
        result_bytes_max: int = 512 * 1024 * 1024,
        conf: Mapping[str, str] | None = None,
        executors_wait_s: float = WAIT_S,
    ) -> None:
        """remote: a Spark Connect server instead of `master`. result_bytes_max: of one job's output.

        conf: more of Spark's own settings, which win over ours (except INVARIANTS). Those of the JVM's start
        (`spark.driver.*`, jars, files) appear in process lists, so they must not contain secrets.
        executors_wait_s: how long a job may wait for executors of a cluster.
        """
        self._conf = {**defaults(master, driver_memory, result_bytes_max), **(conf or {}), **INVARIANTS}
        self._remote = remote
        self._jobs = ThreadPoolExecutor(JOB_THREADS_MAX, thread_name_prefix="spark-job")
        self._control = ThreadPoolExecutor(2, thread_name_prefix="spark-control")  # so that jobs can be cancelled
        # So that no look waits for the others.
        self._watching = ThreadPoolExecutor(JOB_THREADS_MAX, thread_name_prefix="spark-watch")
        self._asking = ThreadPoolExecutor(
            1, thread_name_prefix="spark-ask"
        )  # so that a silent cluster does not delay looks at jobs
        self._lock = threading.Lock()
        self._running: Running | None = None
        self._modules: TemporaryDirectory[str] | None = None
        self._begun: Future[Running] | None = None
        self._starts_ended = 0
        self._failed: EngineUnavailable | None = None
        self._starting: subprocess.Popen[bytes] | Connected | None = None
        self._is_stopped = False
        self._users = 0
        self.cluster = Cluster(executors_wait_s)
        """Its times are those of the event loop's clock."""
        self.waiting = Waiting(self.place)
        self.numbers = count()
        """A new number for each group of jobs: cancelling a group must never end another."""

    def use(self) -> None:
        """Count one more transform, until it is released."""
        self._users += 1

    @property
    def place(self) -> str:
        """Spark's location, for people. Without the parameters of `remote`, which may include a token."""
        return address(self._remote) if self._remote else self._conf["spark.master"]

    @property
    def is_cluster(self) -> bool:
        """Whether executors, or all of Spark, are elsewhere."""
        return self._remote is not None or not self._conf["spark.master"].startswith("local")

    @property
    def modules(self) -> Path:
        """The directory of modules for executors. It outlives transforms: a later executor fetches all modules that were ever
        added, and fails every job if one is missing."""
        with self._lock:
            self._modules = self._modules or TemporaryDirectory(prefix="leasehold-modules-")
            return Path(self._modules.name)

    def begin(self) -> None:
        """Starts in the background what transforms will need. If that fails, so does every transform that waits for it."""
        self._begun = self._control.submit(self._run)

    def running(self) -> Running:
        """Spark, started or started again if needed. Blocks. Raises EngineUnavailable.

        Callers that wait for one start share its failure: pipelines do not try the same thing one after the other. A start by
        `begin` is tried again only if Spark was away.
        """
        if (begun := self._begun) is not None and not self._is_stopped and (error := begun.exception()) is not None:
            is_away = isinstance(error, EngineUnavailable) and error.is_away
            self._begun = None if is_away else begun
            raise EngineUnavailable(str(error), is_away=is_away) from error
        return self._run()

    def _run(self) -> Running:
        starts_ended = self._starts_ended
        with self._lock:
            if self._is_stopped:
                raise EngineUnavailable("Spark is stopped")
            if self._running is None or not self._running.is_alive:
                if self._failed is not None and self._starts_ended != starts_ended:
                    raise EngineUnavailable(str(self._failed), is_away=self._failed.is_away) from self._failed
                self._running = self._start()
            return self._running

    def _start(self) -> Running:
        self._stop()
        self._failed = None
        # A host without transforms never imports PySpark.
        from leasehold.pipeline.spark.connect import connect
        from leasehold.pipeline.spark.jvm import start_jvm

        try:
            return connect(self._remote, self._launched) if self._remote else start_jvm(self._conf, self._launched)
        except EngineUnavailable as error:
            self._failed = error
            raise
        finally:
            self._starting = None
            self._starts_ended += 1

    def _launched(self, starting: subprocess.Popen[bytes] | Connected) -> None:
        self._starting = starting
        if self._is_stopped:
            starting.kill()

    async def run_job(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._jobs, work)

    async def run_control(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._control, work)

    async def run_watch(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._watching, work)

    async def ask_cluster(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._asking, work)

    async def release(self) -> None:
        """Count one transform fewer; the last one stops Spark."""
        self._users -= 1
        if self._users == 0:
            await asyncio.to_thread(self.stop)  # this ends the calls that occupy our own threads
            self._jobs.shutdown(wait=False)
            self._control.shutdown(wait=False)
            self._watching.shutdown(wait=False)
            self._asking.shutdown(wait=False)

    def stop(self) -> None:
        """Stop for good. Blocks. Running jobs, and a start, end with EngineUnavailable."""
        self._is_stopped = True
        if (starting := self._starting) is not None:
            starting.kill()
        with self._lock:
            self._stop()
            if self._modules is not None:
                self._modules.cleanup()
                self._modules = None

    def _stop(self) -> None:
        if self._running is not None:
            self._running.stop()
        self._running = None
