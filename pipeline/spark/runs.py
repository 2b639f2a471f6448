"""A pipeline's Spark jobs: each runs on a thread, in a session, ends with its caller, and is given up if its cluster is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from leasehold.common.cancellation import await_shielded
from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.executors_wait import ExecutorsWait
from leasehold.pipeline.spark.connect import lost_server, lost_session
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.failures import failure_of
from leasehold.pipeline.spark.jvm import Running
from leasehold.pipeline.spark.session import PipelineSession
from leasehold.pipeline.spark.watch import (
    LOOK_S,
    UNKNOWN,
    ClusterAnswer,
    JobWatch,
    TaskCounts,
    forgotten,
    in_vain,
    lost,
)

T = TypeVar("T")
ANSWER_S = 20.0
"""How long a driver on a cluster, or a Connect server, may take to report the progress of a job, and masters to answer."""
LONG = "long jobs"
"""The scheduler pool of long jobs."""
CANCEL_TIMEOUT_S = 30.0
"""How long a cancelled job may take to end. Python workers in an endless loop are killed within a few seconds; only a
`module:function` that never returns a DataFrame cannot be ended."""


@dataclass(eq=False, slots=True)
class Run:
    """One group of Spark jobs, as the event loop sees it. Its thread sets `spark` and `own` as soon as it has them."""

    group: str
    spark: Running | None = None
    """None while Spark starts, or starts again."""
    own: PipelineSession | None = None
    """None while it is opened, or while another thread opens it."""
    is_wanted: bool = True
    """Whether its caller still waits: a run without a caller begins no job."""

    @property
    def session(self) -> PipelineSession:
        """The session for its work."""
        assert self.own is not None, "work begins once there is a session"
        return self.own

    def begin(self, own: PipelineSession, name: str) -> None:
        self.own = own
        own.begin(self.group, name)
        self.check_wanted()  # after `own` is set: `cancel` may have seen none

    def check_wanted(self) -> None:
        """Raises EngineUnavailable if the caller is gone. Checked before each job: `cancel` ends only what has begun."""
        if not self.is_wanted:
            raise EngineUnavailable(f"'{self.group}' was cancelled before it began")

    def cancel(self) -> None:
        if self.own is not None:
            self.own.cancel(self.group)


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """Why a job is given up. end: ends it, and blocks."""

    why: EngineUnavailable
    spark: Running
    end: Callable[[], object]


class Runs:
    """Runs of one pipeline.

    name: the pipeline's. prepare: sets up a new session for jobs, on a thread; if it fails, the session is closed.
    """

    def __init__(self, engine: SparkEngine, name: str, prepare: Callable[[PipelineSession], None]) -> None:
        self._engine = engine
        self._name = name
        self._prepare = prepare
        self._opening = threading.Lock()
        self.own: PipelineSession | None = None

    @property
    def wait(self) -> ExecutorsWait | None:
        return self._engine.waiting.of(self._name)

    async def carry_out(self, work: Callable[[Run], T], *, is_long: bool = False) -> T:
        """Do work on a thread, as a group of Spark jobs that ends with its caller, including Python workers.

        is_long: it shares its cores with other jobs, and has a session of its own if the pipeline's queries would otherwise wait
        for it. Raises what `failure_of` makes of the work's errors.
        """
        run = Run(f"{self._name}-{next(self._engine.numbers)}")
        running = asyncio.ensure_future(self._engine.run_job(lambda: self._grouped(run, work, is_long)))
        try:
            if self._engine.is_cluster:
                await self._wait_watching(running, run)
            return await await_shielded(running)
        except asyncio.CancelledError:
            run.is_wanted = False
            running.add_done_callback(_retrieve)
            if run.spark is not None and run.own is not None:  # otherwise it ends when it has a session
                await self._end(running, run.spark, run.cancel)
            raise

    async def _wait_watching(self, running: asyncio.Future[Any], run: Run) -> None:
        """Returns when the job on a cluster has ended. Raises EngineUnavailable if it is given up."""
        watching = asyncio.create_task(self._watch(run), name=f"watch {run.group}")
        try:
            both: set[asyncio.Future[Any]] = {running, watching}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                given_up = watching.result()
                run.is_wanted = False
                running.add_done_callback(_retrieve)
                await self._end(running, given_up.spark, given_up.end)
                raise given_up.why
        finally:
            watching.cancel()

    async def _end(self, running: asyncio.Future[Any], spark: Running, end: Callable[[], object]) -> None:
        ending = asyncio.ensure_future(self._engine.run_control(end))
        done, _ = await asyncio.wait({ending}, timeout=ANSWER_S)
        if done:
            ending.result()
        elif spark.is_remote:
            await asyncio.to_thread(spark.sever)
        await asyncio.wait({running}, timeout=CANCEL_TIMEOUT_S)

    async def _watch(self, run: Run) -> _GivenUp:
        """Returns once a job is given up, or the Spark that it has obtained does not answer while its session is opened."""
        clock, cluster = asyncio.get_running_loop().time, self._engine.cluster
        watch = JobWatch(clock())
        asking: asyncio.Task[ClusterAnswer] | None = None  # beside the looks: an answer may take a long time
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                if (spark := run.spark) is None:
                    watch.note(None, clock())
                    continue
                found = await self._look(run, spark)
                if isinstance(found, _GivenUp):
                    return found
                if watch.note(found, clock()):
                    cluster.ran_at = clock()
                if asking is not None and asking.done():
                    answer, asking = asking.result(), None
                    if answer.knows is False:
                        spark.is_broken = True
                        return _GivenUp(
                            EngineUnavailable(forgotten(self._engine.place), is_away=True), spark, run.cancel
                        )
                    cluster.note(answer, clock())
                if (given_up := self._judged(run, spark, watch, clock())) is not None:
                    return given_up
                if asking is None and cluster.has_to_ask(watch, clock()):
                    cluster.asked_at = clock()
                    asking = asyncio.create_task(self._ask(spark), name=f"ask about {run.group}")
        finally:
            if asking is not None:
                asking.cancel()
            self._engine.waiting.end(self._name, run.group)

    def _judged(self, run: Run, spark: Running, watch: JobWatch, now: float) -> _GivenUp | None:
        """Why a job without running tasks is given up, or None. It waits while the cluster knows the application."""
        cluster, place, waiting = self._engine.cluster, self._engine.place, self._engine.waiting
        match cluster.judge(watch, now):
            case "waits":
                waiting.note(self._name, run.group, now - cluster.quiet_since(watch), cluster.about, now)
            case "works":
                waiting.end(self._name, run.group)
            case "lost":
                spark.is_broken = True
                return _GivenUp(EngineUnavailable(lost(place, cluster.refusal), is_away=True), spark, run.cancel)
            case "in vain":  # another driver would only lose its place in the queue
                why = in_vain(place, cluster.wait_s, cluster.about)
                return _GivenUp(EngineUnavailable(why, is_away=True), spark, run.cancel)
        return None

    async def _ask(self, spark: Running) -> ClusterAnswer:
        """UNKNOWN if the cluster does not answer in time."""
        try:
            async with asyncio.timeout(ANSWER_S):  # of several masters, each may be silent
                return await self._engine.ask_cluster(spark.standing)
        except TimeoutError:
            return UNKNOWN

    async def _look(self, run: Run, spark: Running) -> TaskCounts | _GivenUp | None:
        """The progress of the job, as far as is known; or why it is given up at once."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._engine.run_watch(partial(spark.progress_of, run.group))
        except TimeoutError:
            why = EngineUnavailable(f"Spark at '{self._engine.place}' has not answered for {ANSWER_S:g} s")
            return _GivenUp(why, spark, spark.sever)
        except Exception as error:  # or a JVM that has died, which the job notices itself
            own = run.own
            if own is not None and own.is_closed:  # meanwhile: its job has ended, or is about to
                return None
            if (lost := lost_server(error, spark)) is not None:
                return _GivenUp(lost, spark, spark.sever)
            if own is not None and (lost := lost_session(error, spark)) is not None:
                return _GivenUp(lost, spark, partial(own.lose, error))
            return None

    # On a thread

    def _grouped(self, run: Run, work: Callable[[Run], T], is_long: bool, *, is_again: bool = False) -> T:
        """is_again: whether this is the second try, in another session, because the first one had expired."""
        running = run.spark = self._engine.running()
        try:
            own = self._session(running)
            is_apart = is_long and own.looks_views_up_late
            if is_apart:
                own = self._open(running)
        except (Exception, SystemExit) as error:
            raise failure_of(error, running) from error
        try:
            run.begin(own, self._name)
            if not is_long:
                return work(run)
            own.share_with(LONG)
            try:
                return work(run)
            finally:
                with suppress(Exception):  # Spark may have been stopped, which is not what this run reports
                    own.share_with(None)
        except (Exception, SystemExit) as error:
            found = failure_of(error, running, own)
            if is_again or not own.has_expired:
                raise found from error
        finally:
            if is_apart:
                own.close()
        run.own = None
        return self._grouped(run, work, is_long, is_again=True)

    def _session(self, running: Running) -> PipelineSession:
        with self._opening:
            if self.own is None or self.own.running is not running or self.own.is_closed:
                self.own = self._open(running)
            return self.own

    def _open(self, running: Running) -> PipelineSession:
        """A new session with its modules. It is closed if they do not arrive, so that no job runs without them."""
        own = PipelineSession(running)
        try:
            self._prepare(own)
        except Exception as error:
            own.abandon(error)
            raise
        return own


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Retrieve the result of a job whose caller no longer waits, so that asyncio does not report it as lost."""
    if not done.cancelled():
        done.exception()
