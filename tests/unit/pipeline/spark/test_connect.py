"""What errors of a Connect server's client mean."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import grpc
import pyspark
import pytest
from patience import CHANCE_S, PATIENCE_S
from pyspark.errors import PySparkAssertionError, PySparkRuntimeError
from pyspark.errors.exceptions.connect import (
    AnalysisException,
    SparkConnectException,
    SparkConnectGrpcException,
    UnknownException,
)
from pyspark.sql.connect.shell.progress import Progress, ProgressHandler, StageInfo

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark.connect import (
    CLOSED,
    LOOKS_A_QUESTION,
    LOST,
    START,
    Connected,
    address,
    connect,
    failed_call,
    is_expired,
    loss,
    lost_server,
    lost_session,
    require_version,
    session_loss,
)
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.watch import TaskCounts

"""How long a call to a server that stands still waits, if its channel is not closed."""

RPC = """<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "Connection refused"
\tdebug_error_string = "UNKNOWN:Error received from peer"
>"""
EXPIRED = "has ended this session, as it does after an hour without a call: the host opens a new one"
FORGOTTEN = "no longer knows this job: the host runs it again, in a new session"


def of_grpc(code: grpc.StatusCode, message: str = "said", name: str | None = None) -> SparkConnectGrpcException:
    return SparkConnectGrpcException(message=message, errorClass=name, grpc_status_code=code)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (of_grpc(grpc.StatusCode.UNAVAILABLE, RPC), f"Connection refused: {START}"),
        (of_grpc(grpc.StatusCode.UNAUTHENTICATED, "no token"), f"no token: {START}"),
        (ValueError("Cannot invoke RPC on closed channel!"), CLOSED),
        (ValueError("Cannot invoke RPC: Channel closed!"), CLOSED),
    ],
)
def test_a_server_that_is_away(error: Exception, why: str) -> None:
    assert loss(error) == why
    assert session_loss(error) is None


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (of_grpc(grpc.StatusCode.INTERNAL, name="INVALID_HANDLE.SESSION_CLOSED"), EXPIRED),
        (of_grpc(grpc.StatusCode.INTERNAL, name="INVALID_HANDLE.SESSION_CHANGED"), LOST),
        (of_grpc(grpc.StatusCode.INTERNAL, name="INVALID_HANDLE.SESSION_NOT_FOUND"), LOST),
        (of_grpc(grpc.StatusCode.INTERNAL, name="INVALID_HANDLE.OPERATION_NOT_FOUND"), FORGOTTEN),
        (of_grpc(grpc.StatusCode.INTERNAL, name="INVALID_HANDLE.OPERATION_ABANDONED"), FORGOTTEN),
        (SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={}), LOST),
        (PySparkRuntimeError(errorClass="RESPONSE_ALREADY_RECEIVED", messageParameters={"error_type": "x"}), LOST),
        (PySparkAssertionError("Received incorrect server side session identifier for request."), LOST),
    ],
)
def test_a_session_that_is_lost_is_so_alone(error: Exception, what: str) -> None:
    """An idle one ends by itself, and after 1,000 others that have ended, the server no longer knows why."""
    spark, session = connected()
    assert str(lost_session(error, spark)) == f"the Spark Connect server at 'sc://spark' {what}"
    assert lost_server(error, spark) is None
    assert is_expired(error) is (what == EXPIRED)
    assert spark.is_alive
    spark.stop()
    assert session.client.releases == 1


@pytest.mark.parametrize(
    "error",
    [
        AnalysisException("[UNRESOLVED_COLUMN] no such column", grpc_status_code=grpc.StatusCode.INTERNAL),
        of_grpc(grpc.StatusCode.INTERNAL, "division by zero", name="DIVIDE_BY_ZERO"),
        of_grpc(grpc.StatusCode.INTERNAL, "'server side session identifier' is no INT", name="CAST_INVALID_INPUT"),
        ValueError("of the user's function"),
    ],
)
def test_an_error_of_the_job_leaves_the_session(error: Exception) -> None:
    connected = Connected(None, remote="sc://spark:15002")  # type: ignore[arg-type]
    assert lost_server(error, connected) is None
    assert lost_session(error, connected) is None
    assert connected.is_alive


RST = "Received RST_STREAM with error code 2"
AS_OF_PYSPARK_4_0 = RPC.replace("UNAVAILABLE", "INTERNAL").replace("Connection refused", RST)


class Raw(grpc.RpcError):
    """As gRPC raises it, and as some calls of PySpark's client leave it."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INTERNAL

    def details(self) -> str:
        return RST


@pytest.mark.parametrize(
    ("error", "why", "is_alive"),
    [
        (of_grpc(grpc.StatusCode.INTERNAL, RST), f"INTERNAL: {RST}", False),
        (of_grpc(grpc.StatusCode.INTERNAL, AS_OF_PYSPARK_4_0), f"INTERNAL: {RST}", False),
        (of_grpc(grpc.StatusCode.UNKNOWN, "Stream removed"), "UNKNOWN: Stream removed", False),
        (of_grpc(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls"), "RESOURCE_EXHAUSTED: too many calls", True),
        (of_grpc(grpc.StatusCode.ABORTED, "try later"), "ABORTED: try later", True),
        (Raw(), f"INTERNAL: {RST}", False),
    ],
)
def test_a_call_that_grpc_fails_is_no_fault_of_its_events(error: Exception, why: str, is_alive: bool) -> None:
    """Its session is ended where it may still be used, and only if another connection may help."""
    spark, session = connected()
    failed = failed_call(error, spark)
    assert str(failed).startswith(
        f"a call to the Spark Connect server at 'sc://spark' failed ({why}): the host tries again."
    )
    assert spark.is_alive is is_alive
    spark.stop()
    assert session.client.releases == 1


def test_a_call_that_grpc_fails_is_known_by_its_text_in_pyspark_4_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(SparkConnectGrpcException, "getGrpcStatusCode", raising=False)
    spark, _ = connected()
    assert f"(INTERNAL: {RST})" in str(failed_call(of_grpc(grpc.StatusCode.UNKNOWN, AS_OF_PYSPARK_4_0), spark))
    assert loss(of_grpc(grpc.StatusCode.UNKNOWN, RPC)) == f"Connection refused: {START}"
    assert failed_call(of_grpc(grpc.StatusCode.UNKNOWN, "(java.lang.RuntimeException) of an event"), spark) is None


@pytest.mark.parametrize(
    "error",
    [
        of_grpc(grpc.StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max (134217745 vs. 134217728)"),
        of_grpc(grpc.StatusCode.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (9 vs. 8)"),
        of_grpc(grpc.StatusCode.RESOURCE_EXHAUSTED, "gRPC message exceeds maximum size 134217728: 134217745"),
        of_grpc(grpc.StatusCode.INVALID_ARGUMENT, "no such plan"),
        of_grpc(grpc.StatusCode.INTERNAL, RST, name="CAST_INVALID_INPUT"),
        AnalysisException(RST, grpc_status_code=grpc.StatusCode.INTERNAL),
        UnknownException(f"(java.lang.RuntimeException) {RST}", grpc_status_code=grpc.StatusCode.INTERNAL),
        of_grpc(grpc.StatusCode.INTERNAL, f"(java.lang.RuntimeException) {RST}"),
        ValueError(RST),
    ],
)
def test_an_error_about_the_data_is_not_of_the_connection(error: Exception) -> None:
    """What Spark raises may quote events, and a message may be too large because of them."""
    spark, _ = connected()
    assert failed_call(error, spark) is None
    assert spark.is_alive


def test_a_lost_server_is_named_and_its_sessions_not_used_again() -> None:
    connected = Connected(None, remote="sc://spark:15002/;token=secret")  # type: ignore[arg-type]
    lost = lost_server(of_grpc(grpc.StatusCode.UNAVAILABLE, "away"), connected)
    assert (
        str(lost)
        == "the Spark Connect server at 'sc://spark:15002' cannot be used: away: start it, or correct `spark.remote`"
    )
    assert not connected.is_alive


def test_an_address_is_without_the_token() -> None:
    assert address("sc://spark:15002/;token=secret;use_ssl=true") == "sc://spark:15002"


def test_a_server_that_is_older_than_the_client_is_refused() -> None:
    with pytest.raises(EngineUnavailable, match=r"has Spark 3\.5\.1, which is older than PySpark"):
        require_version("sc://spark", "3.5.1")
    require_version("sc://spark", pyspark.__version__)
    require_version("sc://spark", "99.0.0")


def test_a_server_that_is_older_loses_the_session_that_asked_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each attempt of a host would leave one there."""

    class Older(Session):
        version = "4.0.5"

    older = Older()
    monkeypatch.setattr("leasehold.pipeline.spark.connect._session", lambda remote: older)
    with pytest.raises(EngineUnavailable, match=r"has Spark 4\.0\.5, which is older than PySpark"):
        connect("sc://spark")
    assert (older.client.releases, older.client.is_closed) == (1, True)


@pytest.mark.parametrize(
    ("error", "remote", "is_away"),
    [
        (of_grpc(grpc.StatusCode.UNAVAILABLE, "connection refused"), "sc://127.0.0.1:1", True),
        (of_grpc(grpc.StatusCode.DEADLINE_EXCEEDED, "late"), "sc://127.0.0.1:1", True),
        (of_grpc(grpc.StatusCode.UNAVAILABLE, "no such name"), f"sc://{'x' * 63}.invalid:1/;token=secret", False),
        (of_grpc(grpc.StatusCode.UNAVAILABLE, "Trying to connect an http1.x server"), "sc://127.0.0.1:1", False),
        (of_grpc(grpc.StatusCode.UNAUTHENTICATED, "who are you"), "sc://127.0.0.1:1", False),
        (of_grpc(grpc.StatusCode.PERMISSION_DENIED, "not you"), "sc://127.0.0.1:1", False),
        (ImportError("no grpc"), "sc://127.0.0.1:1", False),
        (ValueError("no address"), "sc://127.0.0.1:1", False),
    ],
)
def test_only_a_server_that_may_answer_later_is_away(
    error: Exception, remote: str, is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(remote: str) -> None:
        raise error

    monkeypatch.setattr("leasehold.pipeline.spark.connect._session", refuse)
    with pytest.raises(EngineUnavailable, match="cannot be used: ") as refused:
        connect(remote)
    assert refused.value.is_away is is_away
    assert "secret" not in str(refused.value)


def test_a_start_is_tried_again_after_spark_was_away_and_not_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def refuse(remote: str, launched: object) -> None:
        calls.append(remote)
        raise EngineUnavailable(f"attempt {len(calls)}", is_away=len(calls) < 3)

    monkeypatch.setattr("leasehold.pipeline.spark.connect.connect", refuse)
    engine = SparkEngine(remote="sc://spark")
    engine.begin()
    found = []
    for _ in range(3):
        with pytest.raises(EngineUnavailable) as refused:
            engine.running()
        found.append((str(refused.value), refused.value.is_away))
    assert found == [("attempt 1", True), ("attempt 2", True), ("attempt 3", False)]
    refusing = SparkEngine(remote="sc://spark")
    refusing.begin()
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="attempt 4"):
            refusing.running()


# Sessions


class Client:
    """releases: how often its session was released on the server."""

    def __init__(self) -> None:
        self.is_closed = False
        self.releases = 0

    def release_session(self) -> None:
        self.releases += 1

    def close(self) -> None:
        self.is_closed = True


class Silent(Client):
    """Of a server that stands still: calls wait until their channel is closed, and so would `close`.

    outlasted: whether a call was not cut off in time.
    """

    outlasted = False

    def __init__(self) -> None:
        super().__init__()
        self.is_cut = threading.Event()
        self._channel = SimpleNamespace(close=self.is_cut.set)

    def release_session(self) -> None:
        super().release_session()
        self._wait()

    def close(self) -> None:
        self._wait()
        super().close()

    def _wait(self) -> None:
        if not self.is_cut.wait(PATIENCE_S):
            self.outlasted = True


class Session:
    """As far as `Connected` uses one. asked: how often the server was asked for a setting. fails: what that raises."""

    def __init__(self, client: Client | None = None) -> None:
        self.client, self.conf = client or Client(), self
        self.asked = self.stops = 0
        self.fails: Exception | None = None
        self.handlers: list[ProgressHandler] = []

    def registerProgressHandler(self, handler: ProgressHandler) -> None:  # noqa: N802 - as PySpark names it
        self.handlers.append(handler)

    def get(self, name: str) -> str:
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        return "UTC"

    def stop(self) -> None:
        self.stops += 1


def stage(tasks: int, ended: int, *, id: int = 0, is_done: bool = False) -> StageInfo:
    return StageInfo(stage_id=id, num_tasks=tasks, num_completed_tasks=ended, num_bytes_read=0, done=is_done)


def connected() -> tuple[Connected, Session]:
    session = Session()
    return Connected(session, remote="sc://spark"), session  # type: ignore[arg-type]


def test_the_progress_of_a_job_is_what_its_own_thread_heard_last() -> None:
    spark, _ = connected()
    own = Session()
    spark.begin("a-1", own)  # type: ignore[arg-type]
    assert spark.progress_of("a-1") is None
    spark._note([stage(3, 1), stage(3, 1)], 2, "operation", False)
    assert spark.progress_of("a-1") == TaskCounts(running=2, ended=2, left=4)
    assert spark.progress_of("b-1") is None
    spark.begin("a-2", own)  # type: ignore[arg-type]
    assert spark.progress_of("a-1") is None
    assert spark.progress_of("a-2") is None


@pytest.mark.parametrize(
    ("stages", "left"),
    [
        ([stage(1, 1)], 1),  # its executor was lost
        ([stage(2, 2, is_done=True), stage(2, 3)], 1),
        ([stage(1, 1, is_done=True)], 0),
        ([stage(2, 5, is_done=True)], 0),  # a large result may still be sent
        ([stage(2, 2, is_done=True), stage(2, 0, id=1), stage(1, 0, id=2)], 3),  # the second may be skipped
        ([stage(2, 2, is_done=True), stage(2, 0, id=1), stage(1, 1, id=2, is_done=True)], 0),  # it was skipped
        ([stage(2, 1, id=1), stage(1, 1, id=2, is_done=True)], 1),  # it runs beside the other
        ([stage(2, 0, id=1), stage(4, 3, id=2, is_done=True)], 2),  # what it had skipped is lost
    ],
)
def test_tasks_that_have_failed_are_left_until_their_stage_is_done(stages: list[StageInfo], left: int) -> None:
    spark, session = connected()
    spark.begin("a-1", session)  # type: ignore[arg-type]
    spark._note(stages, 0, "operation", False)
    assert spark.progress_of("a-1") == TaskCounts(
        running=0, ended=sum(each.num_completed_tasks for each in stages), left=left
    )


def test_a_stage_that_was_done_runs_again_if_more_of_its_tasks_end_than_it_has() -> None:
    spark, session = connected()
    spark.begin("a-1", session)  # type: ignore[arg-type]
    left = []
    for ended in (1, 2, 2, 3):
        spark._note([stage(2, ended, is_done=True), stage(2, 2, id=1, is_done=True)], 0, "operation", False)
        progress = spark.progress_of("a-1")
        assert progress is not None
        left.append(progress.left)
    assert left == [0, 0, 0, 1]


def test_a_session_hears_of_a_wait_that_begins_in_mid_job_and_forgets_it_with_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a function that runs a job and goes on without Spark would seem to wait for executors, or to have running tasks."""
    spark, own = connected()[0], Session()
    monkeypatch.setattr("leasehold.pipeline.spark.connect._session", lambda remote: own)
    spark.begin("a-1", spark.new_session())
    with Progress(handlers=own.handlers, operation_id="operation") as call:  # as PySpark's client makes it
        call.update_ticks([stage(3, 1)], 2)
        assert spark.progress_of("a-1") == TaskCounts(running=2, ended=1, left=2)
        call.update_ticks([stage(3, 3)], 0)
        assert spark.progress_of("a-1") == TaskCounts(running=0, ended=3, left=1)
    assert spark.progress_of("a-1") is None


def look(spark: Connected, group: str, times: int = 1) -> None:
    for _ in range(times * LOOKS_A_QUESTION):
        spark.progress_of(group)


def test_a_server_is_asked_now_and_then_in_the_session_of_the_job_once_it_has_one() -> None:
    spark, root = connected()
    look(spark, "a-1", 2)
    assert root.asked == 2
    own, other = Session(), Session()
    spark._sessions += [own, other]  # type: ignore[list-item]
    spark.begin("a-1", own)  # type: ignore[arg-type]
    for _ in range(LOOKS_A_QUESTION):  # side by side
        spark.progress_of("a-1")
        spark.progress_of("b-1")
    assert (root.asked, own.asked, other.asked) == (3, 1, 0)
    spark.forget_session(own)  # type: ignore[arg-type]
    look(spark, "a-1")
    assert (root.asked, own.asked) == (4, 1)


@pytest.mark.parametrize("name", ["INVALID_HANDLE.SESSION_CLOSED", "INVALID_HANDLE.SESSION_CHANGED"])
def test_a_server_that_has_ended_the_root_session_is_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    spark, root = connected()
    other, own = Session(), Session()
    spark._sessions.append(own)  # type: ignore[arg-type]
    monkeypatch.setattr("leasehold.pipeline.spark.connect._session", lambda remote: other)
    root.fails = of_grpc(grpc.StatusCode.INTERNAL, name=name)
    look(spark, "a-1", 2)
    assert (root.asked, root.client.is_closed, other.asked, spark.is_alive) == (1, True, 1, True)
    spark.stop()
    assert [each.client.releases for each in (other, own)] == [1, 1]


def test_a_root_session_that_two_looks_find_ended_is_opened_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is left open may keep Python from ending."""
    spark, root = connected()
    opened: list[Session] = []

    def session(remote: str) -> Session:
        opened.append(Session())
        if len(opened) == 1:
            other.start()
            other.join(CHANCE_S)
        return opened[0]

    monkeypatch.setattr("leasehold.pipeline.spark.connect._session", session)
    root.fails = of_grpc(grpc.StatusCode.INTERNAL, name="INVALID_HANDLE.SESSION_CLOSED")
    other = threading.Thread(target=spark._ask)
    spark._ask()
    other.join(PATIENCE_S)
    assert len(opened) == 1
    assert opened[0].asked == 1


def test_a_root_session_that_is_opened_during_an_end_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    spark, root = connected()
    other = Session()

    def session(remote: str) -> Session:
        spark.is_broken = True
        return other

    monkeypatch.setattr("leasehold.pipeline.spark.connect._session", session)
    root.fails = of_grpc(grpc.StatusCode.INTERNAL, name="INVALID_HANDLE.SESSION_CLOSED")
    look(spark, "a-1")
    assert other.client.is_closed


def test_a_server_that_is_away_answers_no_question() -> None:
    spark, root = connected()
    root.fails = of_grpc(grpc.StatusCode.UNAVAILABLE, RPC)
    with pytest.raises(SparkConnectGrpcException):
        look(spark, "a-1")
    assert not root.client.is_closed


def test_sessions_end_with_their_clients_closed_whether_the_server_is_there_or_not() -> None:
    """A client that is left open may keep Python from ending."""

    class Away(Client):
        def release_session(self) -> None:
            super().release_session()
            raise OSError("away")

    for session in (Session(), Session(Away())):
        Connected(session, remote="sc://spark").stop()  # type: ignore[arg-type]
        assert (session.client.releases, session.client.is_closed, session.stops) == (1, True, 1)


def test_a_server_that_stands_still_does_not_hold_up_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.pipeline.spark.connect.END_S", 0.2)
    sessions = [Session(Silent()) for _ in range(4)]
    spark = Connected(sessions[0], remote="sc://spark", _sessions=sessions[1:])  # type: ignore[arg-type]
    spark.stop()
    assert not any(each.client.outlasted for each in sessions)
    assert [(each.client.releases, each.client.is_closed) for each in sessions] == [(1, True)] * 4


def test_a_server_that_stands_still_does_not_hold_up_the_end_of_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.pipeline.spark.connect.END_S", 0.2)
    spark, _ = connected()
    own = Session(silent := Silent())
    spark._sessions.append(own)  # type: ignore[arg-type]
    spark.forget_session(own)  # type: ignore[arg-type]
    assert not silent.outlasted
    assert (own.client.releases, own.client.is_closed) == (1, True)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_session_that_is_opened_during_an_end_is_closed(monkeypatch: pytest.MonkeyPatch, is_stopped: bool) -> None:
    spark, _ = connected()
    late = Session()
    monkeypatch.setattr("leasehold.pipeline.spark.connect._session", lambda remote: late)
    if is_stopped:
        spark.stop()
    else:
        spark.is_broken = True  # a job was given up, and its server still takes commands
    spark.new_session()
    assert late.client.is_closed


def test_a_start_is_killed_by_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a server that stands still while a host connects to it again."""

    class Starting(Session):
        asks = threading.Event()

        @property
        def version(self) -> str:
            self.asks.set()
            assert isinstance(self.client, Silent)
            if self.client.is_cut.wait(PATIENCE_S):
                raise ValueError("Cannot invoke RPC on closed channel!")
            return pyspark.__version__

    starting = Starting(Silent())
    monkeypatch.setattr("leasehold.pipeline.spark.connect._session", lambda remote: starting)
    engine = SparkEngine(remote="sc://spark")
    engine.begin()
    assert starting.asks.wait(PATIENCE_S)
    engine.stop()
    assert starting.client.is_cut.is_set()
    assert starting.client.is_closed


def test_sessions_of_a_lost_server_are_closed_before_anything_asks_it() -> None:
    spark, session = connected()
    closed_first: list[bool] = []
    session.stop = lambda: closed_first.append(session.client.is_closed)  # type: ignore[method-assign]
    assert lost_server(of_grpc(grpc.StatusCode.UNAVAILABLE, RPC), spark) is not None
    spark.stop()
    assert (closed_first, session.client.releases) == ([True], 0)


def test_a_server_that_answers_ends_the_jobs_of_sessions_that_are_given_up() -> None:
    """They would keep executors from the jobs of the next sessions."""
    spark, session = connected()
    apart, long = Session(), Session()
    spark._sessions += [apart, long]  # type: ignore[list-item]
    spark.is_broken = True
    spark.forget_session(long)  # type: ignore[arg-type]
    spark.stop()
    assert [each.client.releases for each in (session, apart, long)] == [1, 1, 1]


def test_a_job_that_ends_with_its_session_is_no_fault_of_its_events() -> None:
    """Nor one that ends while the session is being ended, or that fails on a connection that was cut."""
    cancelled = of_grpc(grpc.StatusCode.INTERNAL, name="OPERATION_CANCELED")
    spark, session = connected()
    assert lost_server(cancelled, spark) is None
    meanwhile: list[EngineUnavailable | None] = []
    session.client.release_session = lambda: meanwhile.append(lost_server(cancelled, spark))  # type: ignore[method-assign]
    spark.stop()
    told = "this host has ended its sessions on the Spark Connect server at 'sc://spark', and tries again in new ones"
    assert [str(meanwhile[0]), str(lost_server(cancelled, spark))] == [told, told]
    cut, _ = connected()
    cut.sever()
    assert str(lost_server(cancelled, cut)).endswith(f"cannot be used: {CLOSED}")


def test_a_session_of_its_own_is_forgotten_and_closed() -> None:
    spark, _ = connected()
    own = Session()
    spark._sessions.append(own)  # type: ignore[arg-type]
    for _ in range(2):  # by two threads
        spark.forget_session(own)  # type: ignore[arg-type]
    assert (own.client.releases, own.client.is_closed, own.stops, spark._sessions) == (1, True, 1, [])
