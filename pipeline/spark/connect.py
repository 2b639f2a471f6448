"""Sessions on a Spark Connect server, and what its client's errors mean for them.

The client waits minutes for a server that is away, without a message. Here a call fails after some seconds, so that a host can
log what it waits for, and try again. A server that was restarted has lost its sessions, so the next batch opens new ones.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.errors import EngineUnavailable
from pipeline.spark.jvm import Running
from pipeline.spark.pyspark_internals import close_channel
from pipeline.spark.reason import reason_of
from pipeline.spark.watch import Progress

ATTEMPTS: dict[str, Any] = {
    "max_retries": 6,
    "initial_backoff": 100,
    "backoff_multiplier": 2.0,
    "max_backoff": 2_000,
    "jitter": 100,
}
"""How often a call is tried, with times in milliseconds. If the server refuses connections, it fails within 5 s."""
END_S = 5.0
"""How long a server may take to end sessions, all together. It also ends unused ones by itself."""
LOOKS_A_QUESTION = 5
"""How many looks at jobs there are for each question whether the server is there."""
_LOST = ("INVALID_HANDLE", "NO_ACTIVE_SESSION", "RESPONSE_ALREADY_RECEIVED")
"""What errors of a server begin with that does not know the session, or the operation, any more."""
_AWAY = frozenset(
    ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED")
)
"""gRPC's codes for calls that fail whatever their events are."""
_FAILURES = (PySparkException, ImportError, OSError, ValueError)


def connect(remote: str, launched: Callable[[Connected], None] = lambda starting: None) -> Connected:
    """Blocks for some seconds. launched: gets what connects at once, so that it can be killed meanwhile.

    Raises EngineUnavailable.
    """
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)  # it is raised as well
    connected = None
    try:
        connected = Connected(_session(remote), remote=remote)
        launched(connected)
        version = connected.session.version
    except _FAILURES as error:
        if connected is not None:
            connected.kill()
        raise EngineUnavailable(
            f"the Spark Connect server at '{address(remote)}' cannot be used: {_why(error)}"
        ) from error
    require_version(remote, version)
    return connected


def address(remote: str) -> str:
    """For people: without its parameters, among which may be a token."""
    return remote.partition(";")[0].rstrip("/")


def require_version(remote: str, version: str) -> None:
    """version: the server's. Raises EngineUnavailable if it may not understand this client."""
    if _release(version) < _release(pyspark.__version__):
        raise EngineUnavailable(
            f"the Spark Connect server at '{address(remote)}' has Spark {version}, which is older than PySpark"
            f" {pyspark.__version__} here: update the server, or pip install 'pyspark[connect]=={version}'"
        )


def _release(version: str) -> tuple[int, int]:
    """The major and the minor number. A version of another form counts as the newest."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (sys.maxsize, 0)


def _session(remote: str) -> SparkSession:
    session = SparkSession.builder.remote(remote).create()
    from pyspark.sql.connect.client.retries import DefaultPolicy  # the extra `connect` may be missing

    cast(Any, session).client.set_retry_policies([DefaultPolicy(**ATTEMPTS)])
    return session


def _close(*sessions: SparkSession) -> None:
    """Also if their server is away. What is left open is closed when Python ends, which may then wait forever."""
    for session in sessions:
        with suppress(Exception):  # whatever state the client is in
            close_channel(session)
    for session in sessions:
        with suppress(Exception):
            cast(Any, session).client.close()
        with suppress(Exception):
            session.stop()  # its client is closed: this only removes it as PySpark's default session


def _end(*sessions: SparkSession) -> None:
    """End them on their server, all at once, because one that stands still answers none. What still waits ends with `_close`.

    Not with `session.stop`, which waits under a lock that PySpark's sessions share.
    """
    ending = [threading.Thread(target=_end_one, args=(each,), name="spark-end", daemon=True) for each in sessions]

    def end_all() -> None:
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()

    all_ended = threading.Thread(target=end_all, name="spark-end", daemon=True)
    all_ended.start()
    all_ended.join(END_S)


def _end_one(session: SparkSession) -> None:
    with suppress(Exception):  # it, or its server, is gone
        cast(Any, session).client.release_session()


def _why(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return f"{reason_of(str(error))}: pip install 'pyspark[connect]=={pyspark.__version__}'"
    return f"{_said(error)}: start it, or correct `spark.remote`"


@dataclass(eq=False, slots=True, kw_only=True)
class Connected(Running):
    """Sessions on one server. The root session asks whether the server is there."""

    remote: str
    _looks: int = 0
    _sessions: list[SparkSession] = field(default_factory=list)
    _jobs: dict[int, tuple[str, Progress | None]] = field(default_factory=dict)
    """Thread -> the group of the job that it waits for, and the progress that the server reported last."""

    @property
    def place(self) -> str:
        return address(self.remote)

    @property
    def is_cluster(self) -> bool:
        return True

    def new_session(self) -> SparkSession:
        session = _session(self.remote)
        self._sessions.append(session)
        if self.is_broken:  # `sever` may not have seen it
            _close(session)
        session.registerProgressHandler(cast(Any, self._note))
        return session

    def forget_session(self, session: SparkSession) -> None:
        self._sessions.remove(session)
        if not self.is_broken:
            _end(session)
        _close(session)

    def begin(self, group: str) -> None:
        """This thread waits for a job of the group from now on."""
        self._jobs[threading.get_ident()] = (group, None)

    def progress_of(self, group: str) -> Progress | None:
        """Blocks until the server answers. Raises what `loss` reads."""
        self._looks += 1
        if self._looks % LOOKS_A_QUESTION == 0:
            self.session.conf.get("spark.sql.session.timeZone")
        return next((progress for each, progress in list(self._jobs.values()) if each == group), None)

    def sever(self) -> None:
        """Every call that waits for the server ends."""
        self.is_broken = True
        _close(self.session, *self._sessions)

    def kill(self) -> None:
        """Calls that wait for the server, also those of other threads, fail now."""
        self.sever()

    def stop(self) -> None:
        if not self.is_broken:
            self.is_broken = True  # so that sessions opened from now on are closed
            _end(*self._sessions, self.session)
        self.sever()

    def _note(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Called on the thread that waits."""
        me, stages = threading.get_ident(), list(stages or ())
        if me in self._jobs:
            ended = sum(each.num_completed_tasks for each in stages)
            left = sum(each.num_tasks for each in stages) - ended
            self._jobs[me] = (self._jobs[me][0], Progress(inflight_tasks, ended, left))


def lost_server(error: BaseException, running: Running) -> EngineUnavailable | None:
    """What an error of a call means if it makes all sessions useless; they are not used again. None if it does not."""
    if not isinstance(running, Connected) or (why := loss(error)) is None:
        return None
    running.is_broken = True
    return EngineUnavailable(f"the Spark Connect server at '{running.place}' cannot be used: {why}")


def loss(error: BaseException) -> str | None:
    """Why a session whose call has raised this is useless now; None if it is not. Pure."""
    name = _name(error)
    if name.startswith(_LOST) or "server side session identifier" in str(error):
        return "it has lost this host's session, as after a restart"
    if name == "RETRIES_EXCEEDED" or _code(error) in _AWAY:
        return _said(error)
    is_of_channel = isinstance(error, ValueError) and "closed channel" in str(error)
    return "the connection was closed" if is_of_channel else None


def _name(error: BaseException) -> str:
    return (error.getCondition() or "") if isinstance(error, PySparkException) else ""


def _code(error: BaseException) -> str:
    """gRPC's, or nothing."""
    get: Any = getattr(error, "getGrpcStatusCode", None) or getattr(error, "code", None)
    return str(getattr(get(), "name", "")) if callable(get) else ""


def _said(error: BaseException) -> str:
    """gRPC's details of the last attempt, in one line."""
    cause = error.__cause__ if _name(error) == "RETRIES_EXCEEDED" and error.__cause__ is not None else error
    details: Any = getattr(cause, "details", None)
    return reason_of(str((details() if callable(details) else None) or cause))
