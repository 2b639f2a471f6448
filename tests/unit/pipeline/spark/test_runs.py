"""Runs of Spark jobs: their sessions, how they are cancelled, and how they are given up."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from patience import PATIENCE_S, until_async
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from unit.pipeline.spark.connect_server import Server, Session, impatient

from leasehold.pipeline.errors import EngineUnavailable, TransformError
from leasehold.pipeline.executors_wait import ExecutorsWait
from leasehold.pipeline.spark.connect import Connected
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.jvm import Running
from leasehold.pipeline.spark.runs import Run, Runs
from leasehold.pipeline.spark.session import PipelineSession
from leasehold.pipeline.spark.transform import SparkTransform
from leasehold.pipeline.spark.waiting import Waiting
from leasehold.pipeline.spark.watch import KNOWN, UNKNOWN, ClusterAnswer, TaskCounts, waits

CLUSTER = "spark://spark:7077"


@pytest.fixture
def runs(server: Server) -> Runs:
    """Each session gets a module."""
    return Runs(server.engine, "p", lambda own: own.add_module("orders.zip"))


def runs_of(server: Server, name: str = "p") -> Runs:
    """Sessions need nothing."""
    return Runs(server.engine, name, lambda own: None)


def session_of(run: Run) -> Session:
    return cast(Session, run.session.session)


@pytest.mark.parametrize("is_long", [False, True])
async def test_modules_that_did_not_arrive_are_sent_again(server: Server, runs: Runs, is_long: bool) -> None:
    """Or executors lack them for as long as this Spark is used."""
    server.fails["addArtifacts"] = OSError("no space left")
    with pytest.raises(TransformError, match="no space left"):
        await runs.carry_out(session_of, is_long=is_long)
    _, failed = server.sessions
    session = await runs.carry_out(session_of, is_long=is_long)
    assert len(session.modules) == 1
    assert (failed.releases, failed.is_closed) == (1, True)
    assert server.engine.running().is_alive


async def test_a_session_that_could_not_be_opened_is_closed(server: Server, runs: Runs) -> None:
    """Or each attempt would leave one on the server."""
    server.fails["set"] = OSError("refused")
    with pytest.raises(TransformError, match="refused"):
        await runs.carry_out(session_of)
    _, failed = server.sessions
    assert (failed.releases, failed.is_closed) == (1, True)


async def test_a_server_that_is_away_does_not_have_to_end_a_session(server: Server, runs: Runs) -> None:
    """Each question would wait for it."""
    server.fails["addArtifacts"] = ValueError("Cannot invoke RPC on closed channel!")
    with pytest.raises(EngineUnavailable):
        await runs.carry_out(session_of)
    _, failed = server.sessions
    assert (failed.releases, failed.is_closed) == (0, True)


@pytest.mark.parametrize("has_run", [False, True])
async def test_a_server_that_freezes_while_a_session_is_opened_is_given_up(
    server: Server, runs: Runs, monkeypatch: pytest.MonkeyPatch, has_run: bool
) -> None:
    """has_run: whether the job has a session already, on a connection that is not used any more."""
    if has_run:
        await runs.carry_out(session_of)
        server.engine.running().is_broken = True
    server.is_frozen = True
    with impatient(monkeypatch):
        found = await asyncio.gather(*(runs.carry_out(session_of) for _ in range(3)), return_exceptions=True)
    assert server.outlasted == []
    assert [type(each) for each in found] == [EngineUnavailable] * 3
    assert any("'sc://spark' has not answered for 0.1 s" in str(each) for each in found)
    assert all(each.is_closed for each in server.sessions)
    server.thaw()
    assert await runs.carry_out(session_of) is server.sessions[-1]


async def test_a_job_that_is_cancelled_while_its_session_is_opened_never_begins(server: Server, runs: Runs) -> None:
    begun: list[Run] = []
    server.is_frozen = True
    hung = asyncio.create_task(runs.carry_out(begun.append))
    await asyncio.to_thread(server.is_called.wait, PATIENCE_S)
    hung.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hung
    server.thaw()
    await asyncio.to_thread(server.engine._jobs.shutdown)  # waits for the job
    assert not begun
    assert not server.sessions[-1].is_cut


async def test_a_long_run_reports_its_own_error_though_spark_was_stopped_meanwhile(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def share_with(own: PipelineSession, pool: str | None) -> None:
        if pool is None:
            raise AttributeError("'NoneType' object has no attribute 'setLocalProperty'")

    def work(run: Run) -> None:
        raise EngineUnavailable("Spark has died")

    monkeypatch.setattr(PipelineSession, "share_with", share_with)
    with pytest.raises(EngineUnavailable, match=r"^Spark has died$"):
        await runs_of(server).carry_out(work, is_long=True)


# Sessions that are lost, one by one


def invalid(handle: str) -> SparkConnectGrpcException:
    return SparkConnectGrpcException(
        message=f"[INVALID_HANDLE.{handle}] The handle is invalid.",
        errorClass=f"INVALID_HANDLE.{handle}",
        grpc_status_code=grpc.StatusCode.INTERNAL,
    )


@dataclass
class Busy:
    """A long job of another pipeline, which runs until it is ended. session: its own, once it runs."""

    session: Session | None = None
    is_running: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def __call__(self, run: Run) -> str:
        self.session = session_of(run)
        self.is_running.set()
        self.may_end.wait(PATIENCE_S)
        self.session._call("run")
        return "finished"


@pytest.fixture
async def busy(server: Server) -> AsyncIterator[tuple[Busy, asyncio.Task[str]]]:
    work = Busy()
    task = asyncio.create_task(runs_of(server, "busy").carry_out(work, is_long=True))
    await asyncio.to_thread(work.is_running.wait, PATIENCE_S)
    yield work, task
    work.may_end.set()
    await asyncio.gather(task, return_exceptions=True)


Others = tuple[Busy, asyncio.Task[str]]


async def finish(busy: Others) -> None:
    """It was not disturbed, and its session ended on the server as always."""
    work, task = busy
    assert work.session is not None
    assert not work.session.is_cut
    work.may_end.set()
    assert await task == "finished"
    assert (work.session.releases, work.session.is_closed) == (1, True)


def run_in(sessions: list[Session], session: Session) -> Session:
    sessions.append(session)
    session._call("run")
    return session


async def test_a_pipeline_whose_idle_session_the_server_has_ended_opens_another_at_once(
    server: Server, busy: Others
) -> None:
    runs, used = runs_of(server), list[Session]()
    await runs.carry_out(lambda run: run_in(used, session_of(run)))
    server.fails["run"] = invalid("SESSION_CLOSED")
    found = await runs.carry_out(lambda run: run_in(used, session_of(run)))
    assert used == [used[0], used[0], found]
    assert found is not used[0]
    assert used[0].is_closed
    assert await runs.carry_out(session_of) is found
    await finish(busy)


async def test_a_pipeline_whose_sessions_are_always_ended_reports_it(server: Server) -> None:
    runs, used = runs_of(server), list[Session]()

    def work(run: Run) -> None:
        server.fails["run"] = invalid("SESSION_CLOSED")
        run_in(used, session_of(run))

    with pytest.raises(EngineUnavailable, match="has ended this session, as it does after an hour without a call"):
        await runs.carry_out(work)
    assert len(used) == 2
    assert all(each.is_closed for each in used)


@pytest.mark.parametrize("handle", ["SESSION_CHANGED", "SESSION_NOT_FOUND", "OPERATION_NOT_FOUND"])
@pytest.mark.parametrize("is_long", [False, True])
async def test_a_session_that_is_lost_costs_no_other_pipeline_its_job(
    server: Server, busy: Others, handle: str, is_long: bool
) -> None:
    runs, used = runs_of(server), list[Session]()
    server.fails["run"] = invalid(handle)
    with pytest.raises(EngineUnavailable, match=r"has lost this host's session|no longer knows this job"):
        await runs.carry_out(lambda run: run_in(used, session_of(run)), is_long=is_long)
    found = await runs.carry_out(lambda run: run_in(used, session_of(run)), is_long=is_long)
    assert used[0].is_closed
    assert found is not used[0]
    assert found is server.sessions[-1]
    await finish(busy)


async def test_a_session_that_is_lost_while_its_job_waits_is_given_up_alone(
    server: Server, busy: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a server that was restarted, behind a proxy that has not ended the call."""
    runs, lost, woken = runs_of(server), list[Session](), list[bool]()

    def work(run: Run) -> None:
        lost.append(session_of(run))
        lost[0].fails["get"] = invalid("SESSION_CHANGED")
        woken.append(lost[0].wakes.wait(PATIENCE_S))
        lost[0]._call("run")

    monkeypatch.setattr("leasehold.pipeline.spark.runs.LOOK_S", 0.01)
    with pytest.raises(EngineUnavailable, match="has lost this host's session, perhaps in a restart"):
        await runs.carry_out(work)
    assert woken == [True]
    assert await runs.carry_out(session_of) is server.sessions[-1]
    assert lost[0].is_closed
    await finish(busy)


async def test_a_question_in_a_session_that_is_closed_meanwhile_costs_no_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, closes, goes_on = threading.Event(), threading.Event(), threading.Event()

    def ask(name: str) -> None:
        asks.set()
        closes.wait(PATIENCE_S)
        raise ValueError("Cannot invoke RPC on closed channel!")

    def release() -> None:
        closes.set()
        goes_on.wait(PATIENCE_S)  # the host looks at the job again

    def work(run: Run) -> bool:
        session = session_of(run)
        monkeypatch.setattr(session, "get", ask)
        monkeypatch.setattr(session, "release_session", release)
        monkeypatch.setattr(server.sessions[0], "get", lambda name: goes_on.set())
        return asks.wait(PATIENCE_S)

    monkeypatch.setattr("leasehold.pipeline.spark.runs.LOOK_S", 0.01)
    assert await runs_of(server).carry_out(work, is_long=True)
    assert goes_on.is_set()
    assert server.engine.running().is_alive


async def test_a_question_about_one_job_does_not_wait_for_those_about_others(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a server that answers each of many in some seconds would seem to answer none in time."""
    both, are_asked = threading.Barrier(2), threading.Event()

    def ask(name: str) -> None:
        if not are_asked.is_set():
            both.wait(PATIENCE_S)
            are_asked.set()

    def work(run: Run) -> bool:
        monkeypatch.setattr(session_of(run), "get", ask)
        return are_asked.wait(PATIENCE_S)

    monkeypatch.setattr("leasehold.pipeline.spark.runs.LOOK_S", 0.01)
    assert await asyncio.gather(*(runs_of(server, name).carry_out(work) for name in "pq")) == [True, True]


async def test_another_server_at_the_address_is_checked_before_a_session_is_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_of(server)
    await runs.carry_out(session_of)
    monkeypatch.setattr(Session, "version", "4.0.0")
    server.fails["run"] = invalid("SESSION_CLOSED")
    with pytest.raises(EngineUnavailable, match=r"has Spark 4\.0\.0, which is older than PySpark"):
        await runs.carry_out(lambda run: run_in([], session_of(run)))
    assert (server.sessions[-1].releases, server.sessions[-1].is_closed) == (1, True)


@pytest.fixture
def stillness(monkeypatch: pytest.MonkeyPatch) -> None:
    """No task of the pipeline `p` runs, and its cluster is asked at once."""
    waits = TaskCounts(running=0, ended=0, left=8)
    for kind in (Connected, Running):
        monkeypatch.setattr(kind, "progress_of", lambda self, group: waits if group.startswith("p-") else None)
    monkeypatch.setattr("leasehold.pipeline.spark.runs.LOOK_S", 0.01)
    monkeypatch.setattr("leasehold.pipeline.spark.watch.ASK_S", 0.01)


async def test_a_job_that_waits_in_vain_on_a_server_ends_alone(server: Server, busy: Others, stillness: None) -> None:
    """The cores may be other hosts', and a new connection would get none of them."""
    server.engine.cluster.wait_s = 0.1
    runs, waiting = runs_of(server), list[Session]()

    def work(run: Run) -> None:
        waiting.append(session_of(run))
        waiting[0].wakes.wait(PATIENCE_S)

    with pytest.raises(EngineUnavailable, match="Jobs of other hosts may hold all cores of this server") as caught:
        await runs.carry_out(work)
    assert caught.value.is_away
    (session,) = waiting
    assert len(session.interrupted) == 1
    assert await runs.carry_out(session_of) is session
    await finish(busy)


def driver(monkeypatch: pytest.MonkeyPatch, *standings: ClusterAnswer) -> Running:
    """Of this host. standings: what its cluster answers, the last of them from then on."""
    answers = [*standings]
    monkeypatch.setattr(Running, "standing", lambda self: answers.pop(0) if len(answers) > 1 else answers[0])
    context = SimpleNamespace(sparkContext=SimpleNamespace(master=CLUSTER))
    return Running(cast(Any, context), cast(Any, SimpleNamespace(poll=lambda: None)))


def runs_on(cluster: str, wait_s: float = 600.0) -> Runs:
    return Runs(SparkEngine(master=cluster, executors_wait_s=wait_s), "p", lambda own: None)


@pytest.mark.usefixtures("stillness")
async def test_a_job_that_waits_in_vain_leaves_the_driver_of_this_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another driver would lose the place of this one in the queue, or its pending pods."""
    running = driver(monkeypatch, ClusterAnswer(True, "its master has no workers"))
    given_up = await runs_on(CLUSTER, 0.1)._watch(Run("p-1", running))
    assert "executors cannot reach the driver" in str(given_up.why)
    assert "(its master has no workers)" in str(given_up.why)
    assert (given_up.why.is_away, running.is_alive) == (True, True)


@pytest.mark.usefixtures("stillness")
async def test_a_driver_of_this_host_starts_again_if_its_cluster_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.pipeline.spark.watch.SILENT_S", 0.1)
    running = driver(monkeypatch, UNKNOWN)
    given_up = await runs_on(CLUSTER)._watch(Run("p-1", running))
    assert "has not answered" in str(given_up.why)
    assert not running.is_alive


@pytest.mark.usefixtures("stillness")
async def test_a_driver_of_this_host_starts_again_if_its_master_has_forgotten_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = driver(monkeypatch, KNOWN, ClusterAnswer(False))
    given_up = await runs_on(CLUSTER)._watch(Run("p-1", running))
    assert "no longer knows this host's application" in str(given_up.why)
    assert not running.is_alive


@pytest.mark.usefixtures("stillness")
async def test_a_master_that_never_answers_holds_up_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.pipeline.spark.watch.SILENT_S", 0.1)
    monkeypatch.setattr("leasehold.pipeline.spark.runs.ANSWER_S", 0.05)
    asked, answers = threading.Event(), threading.Event()

    def standing(self: Running) -> ClusterAnswer:
        asked.set()
        answers.wait(PATIENCE_S)
        return KNOWN

    running = driver(monkeypatch, KNOWN)
    monkeypatch.setattr(Running, "standing", standing)
    given_up = await runs_on(CLUSTER)._watch(Run("p-1", running))
    answers.set()
    assert asked.is_set()
    assert "has not answered" in str(given_up.why)


@pytest.mark.usefixtures("stillness")
async def test_a_task_that_begins_while_the_cluster_is_asked_keeps_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict follows another look, because an answer may take a long time."""
    monkeypatch.setattr("leasehold.pipeline.spark.watch.SILENT_S", 0.0)
    questions: list[str] = []
    looks: list[str] = []

    def standing(self: Running) -> ClusterAnswer:
        questions.append("asked")
        return UNKNOWN

    def progress_of(self: Running, group: str) -> TaskCounts:
        runs = len(questions) >= 2
        looks.extend(["runs"] * runs)
        return TaskCounts(running=int(runs), ended=0, left=8)

    running = driver(monkeypatch, UNKNOWN)
    monkeypatch.setattr(Running, "standing", standing)
    monkeypatch.setattr(Running, "progress_of", progress_of)
    watching = asyncio.create_task(runs_on(CLUSTER)._watch(Run("p-1", running)))
    await until_async(lambda: len(looks) > 3 or watching.done())
    assert not watching.done()
    watching.cancel()
    await asyncio.wait({watching})
    assert running.is_alive


@pytest.mark.usefixtures("stillness")
async def test_a_wait_is_noted_while_the_cluster_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or up to 20 s of a wait would count towards `batch_timeout_s` until the answer comes."""
    asked, answers = threading.Event(), threading.Event()
    running, runs, noted = driver(monkeypatch, KNOWN), runs_on(CLUSTER), []
    questions: list[str] = []

    def standing(self: Running) -> ClusterAnswer:
        questions.append("asked")
        if len(questions) > 1:
            asked.set()
            answers.wait(PATIENCE_S)
        return KNOWN

    def note(more_s: float) -> None:
        if asked.is_set():
            noted.append(more_s)

    monkeypatch.setattr(Running, "standing", standing)
    with runs._engine.waiting.noting(note):
        watching = asyncio.create_task(runs._watch(Run("p-1", running)))
        await until_async(lambda: len(noted) > 5 or watching.done())
        answers.set()
        watching.cancel()
        await asyncio.wait({watching})
    assert len(questions) == 2


@pytest.mark.usefixtures("stillness")
async def test_tasks_that_end_between_looks_are_work(monkeypatch: pytest.MonkeyPatch) -> None:
    running, runs = driver(monkeypatch, KNOWN), runs_on(CLUSTER)
    looks = count(1)
    monkeypatch.setattr(Running, "progress_of", lambda self, group: TaskCounts(0, next(looks), 8))
    watching = asyncio.create_task(runs._watch(Run("p-1", running)))
    ran_at = runs._engine.cluster.ran_at
    await until_async(lambda: runs._engine.cluster.ran_at > ran_at or watching.done())
    assert not watching.done()
    watching.cancel()
    await asyncio.wait({watching})


@pytest.mark.usefixtures("stillness")
async def test_a_wait_is_shown_and_noted_until_the_job_has_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    monkeypatch.setattr("leasehold.pipeline.spark.waiting.REPORTED_S", 0.05)
    running, runs, noted = driver(monkeypatch, ClusterAnswer(True, "its master has no workers")), runs_on(CLUSTER), []
    of_another_pipeline = SparkTransform(runs._engine, "q", sql="SELECT partition FROM events")
    with of_another_pipeline.noting_waits(lambda more_s: noted.append(runs.wait)):
        watching = asyncio.create_task(runs._watch(Run("p-1", running)))
        await until_async(lambda: len(noted) > 20)
        watching.cancel()
        await asyncio.wait({watching})
    (wait,) = {type(each) for each in noted}
    assert wait is ExecutorsWait
    assert runs.wait is None
    lines = [record for record in caplog.records if record.name.startswith("leasehold")]
    assert {line.message for line in lines[:-1]} == {"waiting for executors"}
    assert all("its master has no workers" in vars(line)["why"] for line in lines[:-1])
    assert lines[-1].message == "no longer waiting for executors"


def test_the_log_has_one_line_every_30_seconds_whatever_the_number_of_jobs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    waiting = Waiting(CLUSTER)
    for second in range(100):
        for job in ("1", "2"):
            waiting.note("p", job, second, "", second)
        waiting.note("q", "3", second / 2, "", second)
    assert [vars(record)["seconds"] for record in caplog.records] == [30, 60, 90]
    assert (waiting.of("p"), waiting.of("q")) == (
        ExecutorsWait(99, waits(CLUSTER)),
        ExecutorsWait(49.5, waits(CLUSTER)),
    )
    for pipeline, job in (("p", "1"), ("p", "2"), ("q", "3"), ("q", "3")):
        waiting.end(pipeline, job)
    assert [record.message for record in caplog.records[3:]] == ["no longer waiting for executors"]
    waiting.note("p", "4", 9, "", 200)
    waiting.end("p", "4")
    assert len(caplog.records) == 4


def test_the_log_goes_on_if_jobs_begin_and_end_while_others_wait(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    waiting, logged = Waiting(CLUSTER), list[int]()
    waiting.note("p", "long", 500, "", 0)
    for second in range(100):
        first = second // 20 * 20
        for began in (first, first - 20):  # each waits for 40 s
            waiting.note("p", str(began), second - began, "", second)
        waiting.end("p", "long")
        waiting.end("p", str(first - 40))
        logged += [second] * (len(caplog.records) - len(logged))
    assert {record.message for record in caplog.records} == {"waiting for executors"}
    assert logged == [0, 30, 60, 90]


def test_a_wait_is_noted_for_all_pipelines_of_the_host_and_each_second_once() -> None:
    """While all threads have jobs that wait, those of other pipelines do not begin."""
    waiting, noted = Waiting(CLUSTER), list[float]()
    with waiting.noting(noted.append):
        waiting.note("p", "1", 8.0, "", 108.0)
        waiting.note("q", "2", 3.0, "", 108.5)
        waiting.note("p", "1", 9.0, "", 109.0)
        waiting.end("p", "1")
        waiting.end("q", "2")
        waiting.note("q", "3", 8.0, "", 200.0)
    waiting.note("q", "3", 9.0, "", 201.0)
    assert noted == [8.0, 0.5, 0.5, 8.0]
