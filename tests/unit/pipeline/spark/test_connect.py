"""What errors of a Connect server's client mean."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import grpc
import pyspark
import pytest
from pyspark.errors import PySparkAssertionError, PySparkRuntimeError
from pyspark.errors.exceptions.connect import AnalysisException, SparkConnectException, SparkConnectGrpcException

from pipeline.errors import EngineUnavailable
from pipeline.spark.connect import LOOKS_A_QUESTION, Connected, address, loss, lost_server, require_version
from pipeline.spark.engine import SparkEngine
from pipeline.spark.watch import Progress

PATIENCE_S = 10.0
"""How long a call to a server that stands still waits, if its channel is not closed."""

RPC = """<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "Connection refused"
\tdebug_error_string = "UNKNOWN:Error received from peer"
>"""
LOST = "it has lost this host's session, as after a restart"


def of_grpc(code: grpc.StatusCode, message: str = "said", name: str | None = None) -> SparkConnectGrpcException:
    return SparkConnectGrpcException(message=message, errorClass=name, grpc_status_code=code)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (of_grpc(grpc.StatusCode.INTERNAL, name="INVALID_HANDLE.SESSION_CHANGED"), LOST),
        (of_grpc(grpc.StatusCode.INTERNAL, name="INVALID_HANDLE.SESSION_NOT_FOUND"), LOST),
        (SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={}), LOST),
        (PySparkRuntimeError(errorClass="RESPONSE_ALREADY_RECEIVED", messageParameters={"error_type": "x"}), LOST),
        (PySparkAssertionError("Received incorrect server side session identifier for request."), LOST),
        (of_grpc(grpc.StatusCode.UNAVAILABLE, RPC), "Connection refused"),
        (of_grpc(grpc.StatusCode.UNAUTHENTICATED, "no token"), "no token"),
        (ValueError("Cannot invoke RPC on closed channel!"), "the connection was closed"),
    ],
)
def test_a_session_that_is_of_no_more_use(error: Exception, why: str) -> None:
    assert loss(error) == why


@pytest.mark.parametrize(
    "error",
    [
        AnalysisException("[UNRESOLVED_COLUMN] no such column", grpc_status_code=grpc.StatusCode.INTERNAL),
        of_grpc(grpc.StatusCode.INTERNAL, "division by zero", name="DIVIDE_BY_ZERO"),
        ValueError("of the user's function"),
    ],
)
def test_an_error_of_the_job_leaves_the_session(error: Exception) -> None:
    connected = Connected(None, remote="sc://spark:15002")  # type: ignore[arg-type]
    assert lost_server(error, connected) is None
    assert connected.is_alive


def test_a_lost_server_is_named_and_its_sessions_not_used_again() -> None:
    connected = Connected(None, remote="sc://spark:15002/;token=secret")  # type: ignore[arg-type]
    lost = lost_server(of_grpc(grpc.StatusCode.UNAVAILABLE, "away"), connected)
    assert str(lost) == "the Spark Connect server at 'sc://spark:15002' cannot be used: away"
    assert not connected.is_alive


def test_an_address_is_without_the_token() -> None:
    assert address("sc://spark:15002/;token=secret;use_ssl=true") == "sc://spark:15002"


def test_a_server_that_is_older_than_the_client_is_refused() -> None:
    with pytest.raises(EngineUnavailable, match=r"has Spark 3\.5\.1, which is older than PySpark"):
        require_version("sc://spark", "3.5.1")
    require_version("sc://spark", pyspark.__version__)
    require_version("sc://spark", "99.0.0")


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
    """Of a server that stands still: calls wait until their channel is closed, and so would `close`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut = threading.Event()
        self._channel = SimpleNamespace(close=self.is_cut.set)

    def release_session(self) -> None:
        super().release_session()
        self.is_cut.wait(PATIENCE_S)

    def close(self) -> None:
        self.is_cut.wait(PATIENCE_S)
        super().close()


class Session:
    """As far as `Connected` uses one. asked: how often the server was asked for a setting."""

    def __init__(self, client: Client | None = None) -> None:
        self.client, self.conf = client or Client(), self
        self.asked = self.stops = 0

    def registerProgressHandler(self, handler: object) -> None:  # noqa: N802 - as PySpark names it
        pass

    def get(self, name: str) -> str:
        self.asked += 1
        return "UTC"

    def stop(self) -> None:
        self.stops += 1


class Stage:
    num_tasks, num_completed_tasks = 3, 1


def connected() -> tuple[Connected, Session]:
    session = Session()
    return Connected(session, remote="sc://spark"), session  # type: ignore[arg-type]


def test_the_progress_of_a_job_is_what_its_own_thread_heard_last() -> None:
    spark, _ = connected()
    spark.begin("a-1")
    assert spark.progress_of("a-1") is None
    spark._note([Stage(), Stage()], 2, "operation", False)
    assert spark.progress_of("a-1") == Progress(running=2, ended=2, left=4)
    assert spark.progress_of("b-1") is None
    spark.begin("a-2")
    assert spark.progress_of("a-1") is None
    assert spark.progress_of("a-2") is None


def test_a_server_is_asked_now_and_then_whether_it_is_there() -> None:
    spark, session = connected()
    for _ in range(2 * LOOKS_A_QUESTION):
        spark.progress_of("a-1")
    assert session.asked == 2


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
    monkeypatch.setattr("pipeline.spark.connect.END_S", 0.2)
    sessions = [Session(Silent()) for _ in range(4)]
    spark = Connected(sessions[0], remote="sc://spark", _sessions=sessions[1:])  # type: ignore[arg-type]
    began = time.monotonic()
    spark.stop()
    assert time.monotonic() - began < PATIENCE_S / 2
    assert [(each.client.releases, each.client.is_closed) for each in sessions] == [(1, True)] * 4


def test_a_server_that_stands_still_does_not_hold_up_the_end_of_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.spark.connect.END_S", 0.2)
    spark, _ = connected()
    own = Session(Silent())
    spark._sessions.append(own)  # type: ignore[arg-type]
    began = time.monotonic()
    spark.forget_session(own)  # type: ignore[arg-type]
    assert time.monotonic() - began < PATIENCE_S / 2
    assert (own.client.releases, own.client.is_closed) == (1, True)


def test_a_session_that_is_opened_during_a_stop_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    spark, _ = connected()
    late = Session()
    monkeypatch.setattr("pipeline.spark.connect._session", lambda remote: late)
    spark.stop()
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
    monkeypatch.setattr("pipeline.spark.connect._session", lambda remote: starting)
    engine = SparkEngine(remote="sc://spark")
    engine.begin()
    assert starting.asks.wait(PATIENCE_S)
    began = time.monotonic()
    engine.stop()
    assert time.monotonic() - began < PATIENCE_S / 2
    assert starting.client.is_closed


def test_sessions_of_a_lost_server_are_closed_before_anything_asks_it() -> None:
    spark, session = connected()
    closed_first: list[bool] = []
    session.stop = lambda: closed_first.append(session.client.is_closed)  # type: ignore[method-assign]
    spark.is_broken = True
    spark.stop()
    assert closed_first == [True]


def test_a_session_of_its_own_is_forgotten_and_closed() -> None:
    spark, _ = connected()
    own = Session()
    spark._sessions.append(own)  # type: ignore[arg-type]
    spark.forget_session(own)  # type: ignore[arg-type]
    assert (own.client.releases, own.client.is_closed, own.stops, spark._sessions) == (1, True, 1, [])
