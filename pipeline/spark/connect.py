"""Sessions on a Spark Connect server, and what its client's errors mean for them.

The client waits minutes for a server that is away, without a message. Here a call fails after some seconds, so that a host can
log what it waits for, and try again. A restarted server has lost its sessions, and a running one ends a session that has had no
call for an hour. So each lost session is replaced individually, and the others stay in use.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import pyspark
from pyspark.errors import PySparkAssertionError, PySparkException
from pyspark.sql import SparkSession

from leasehold.common.addresses import is_nowhere_at_once
from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark.jvm import Running
from leasehold.pipeline.spark.master import address
from leasehold.pipeline.spark.pyspark_internals import close_channel, release_of, same_version
from leasehold.pipeline.spark.reason import reason_of
from leasehold.pipeline.spark.watch import KNOWN, ClusterAnswer, TaskCounts

ATTEMPTS: dict[str, Any] = {
    "max_retries": 6,
    "initial_backoff": 100,
    "backoff_multiplier": 2.0,
    "max_backoff": 2_000,
    "jitter": 100,
}
"""How a call is retried; times in milliseconds. If the server refuses connections, the call fails after about 5 s."""
FIRST_ANSWER_S = 30.0
"""How long a server may take to answer the first call of a connection."""
END_S = 5.0
"""How long a server may take to end all sessions together. It also ends unused ones itself."""
LOOKS_A_QUESTION = 5
"""Every fifth look at a job also asks the server whether it still has the session."""
CLOSED = "the connection was closed: the host connects again"
START = "start it, or correct `spark.remote`"
LOST = "cannot be used: it has lost this host's session, perhaps in a restart: the host opens a new one"
_EXPIRED = "INVALID_HANDLE.SESSION_CLOSED"
"""The error of a server that has ended the session itself, and still runs."""
_LOST = {
    _EXPIRED: "has ended this session, as it does after an hour without a call: the host opens a new one",
    "INVALID_HANDLE.OPERATION_": "no longer knows this job: the host runs it again, in a new session",
    "INVALID_HANDLE": LOST,
    "NO_ACTIVE_SESSION": LOST,
    "RESPONSE_ALREADY_RECEIVED": LOST,
}
"""Beginning of an error about a lost session -> what happened. After 1,000 other sessions, the server also forgets that it ended
one. So no such error proves that all sessions are lost."""
_AWAY = frozenset(
    ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED")
)
"""gRPC's codes for calls that fail whatever they contain."""
_CUT = frozenset(("INTERNAL", "UNKNOWN"))
"""gRPC's own codes for calls whose stream a server or a proxy has cut off. Another connection may work."""
_DECLINED = frozenset(("RESOURCE_EXHAUSTED", "ABORTED"))
"""gRPC's own codes for calls that were answered, and may succeed later."""
_MAY_PASS = frozenset(("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")) | _CUT | _DECLINED
"""gRPC's own codes for calls to a server that is away, starts, or is busy."""
_HTTP_1 = "http1.x"
"""Part of gRPC's message about a server that speaks another protocol."""
_TOO_LARGE = re.compile(r"message larger than max|message exceeds maximum size")
"""Parts of gRPC's errors about the size of a message, which a smaller batch would reduce."""
_OF_GRPC = re.compile(r"<_\w+ of RPC that [^\n]*\n\s*status = StatusCode\.(\w+)\n")
"""Beginning of the text of a gRPC error. Errors of PySpark 4.0 show the code nowhere else."""
_OF_JAVA = re.compile(r"\((?:[\w$]+\.)+[\w$]+\) ")
"""Beginning of messages that name the class of an exception of Spark's server."""
_OF_CHANNEL = ("closed channel", "Channel closed")
"""Parts of gRPC's errors for a call on a closed channel, and for a call whose answer is a stream when its channel is closed."""
_FAILURES = (PySparkException, ImportError, OSError, ValueError)


def connect(remote: str, launched: Callable[[Connected], None] = lambda starting: None) -> Connected:
    """Blocks for some seconds, at most FIRST_ANSWER_S after the handshake.

    launched: called with the connection as soon as it exists, so that it can be killed meanwhile.

    Raises EngineUnavailable.
    """
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)  # it is raised as well
    connected = None
    is_late = threading.Event()
    try:
        connected = Connected(_session(remote), remote=remote)
        launched(connected)
        with _killed_after(FIRST_ANSWER_S, connected, is_late):
            require_version(remote, connected.session.version)
    except EngineUnavailable:
        if connected is not None:
            connected.stop()
        raise
    except _FAILURES as error:
        if connected is not None:
            connected.kill()
        why = f"it has not answered for {FIRST_ANSWER_S:g} s: restart it" if is_late.is_set() else _why(error)
        raise EngineUnavailable(
            f"the Spark Connect server at '{address(remote)}' cannot be used: {why}",
            is_away=is_late.is_set() or _may_answer_later(error, remote),
        ) from error
    return connected


def _may_answer_later(error: BaseException, remote: str) -> bool:
    """If the server does not answer, resolves its name: waiting does not help if the name does not exist. Blocks."""
    if _name(error) != "RETRIES_EXCEEDED" and _code(error) not in _MAY_PASS:
        return False
    is_other_protocol = _HTTP_1 in str(error.__cause__ or error)
    return not (is_other_protocol or is_nowhere_at_once(urlsplit(address(remote)).hostname or ""))


@contextmanager
def _killed_after(seconds: float, connected: Connected, is_late: threading.Event) -> Iterator[None]:
    """Limit the time of calls: gRPC waits forever for a server that accepts connections and answers no call."""

    def expire() -> None:
        is_late.set()
        connected.kill()

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def require_version(remote: str, version: str) -> None:
    """version: the server's. Raises EngineUnavailable if it may not understand this client."""
    if release_of(version) < release_of(pyspark.__version__):
        raise EngineUnavailable(
            f"the Spark Connect server at '{address(remote)}' has Spark {version}, which is older than PySpark"
            f" {pyspark.__version__} here: {same_version(version, 'server', 'pyspark[connect]')}"
        )


def _session(remote: str) -> SparkSession:
    session = SparkSession.builder.remote(remote).create()
    from pyspark.sql.connect.client.retries import DefaultPolicy  # the extra `connect` may be missing

    cast(Any, session).client.set_retry_policies([DefaultPolicy(**ATTEMPTS)])
    return session


def _close(*sessions: SparkSession) -> None:
    """Close sessions, also if their server is away. Python closes those left open when it ends, and may then wait forever."""
    for session in sessions:
        with suppress(Exception):  # whatever state the client is in
            close_channel(session)
    for session in sessions:
        with suppress(Exception):
            cast(Any, session).client.close()
        with suppress(Exception):
            session.stop()  # its client is closed: this only removes it as PySpark's default session


def _end(*sessions: SparkSession) -> None:
    """End sessions on their server, in parallel, because a server that hangs answers none. `_close` ends calls that still wait.

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
    return f"{_said(error)}: {START}"


@dataclass(slots=True)
class _Job:
    """progress: what the server reported last of the call that waits. looks: how many the host has taken.

    ends_of: stage that was done -> how many tasks it has ended at most, unless it runs again.
    """

    group: str
    session: SparkSession
    progress: TaskCounts | None = None
    looks: int = 0
    ends_of: dict[int, int] = field(default_factory=dict)

    def counts(self, stages: list[Any], running: int) -> TaskCounts:
        """What a report shows. Each task that ends counts as completed, even if it runs again, and a done stage stays done.

        A stage whose rows are there already is skipped, and never done. The later stage that reads them is.
        """
        whole = [each.stage_id for each in stages if each.done and each.num_completed_tasks >= each.num_tasks]
        left = 0
        for each in stages:
            ended = each.num_completed_tasks
            if each.done:  # if its rows are lost, it runs again
                has_left = ended > self.ends_of.setdefault(each.stage_id, max(ended, each.num_tasks))
            else:
                has_left = ended > 0 or each.stage_id > max(whole, default=-1)
            left += max(1, each.num_tasks - ended) if has_left else 0
        return TaskCounts(running, sum(each.num_completed_tasks for each in stages), left)


@dataclass(eq=False, slots=True, kw_only=True)
class Connected(Running):
    """Sessions on one server. While others are opened, the root session serves to ask whether the server answers.

    is_lost: whether the server does not have to end these sessions: it is away, or was asked to. is_ended: whether this host has
    ended them.
    """

    remote: str
    is_lost: bool = False
    is_ended: bool = False
    _looks: int = 0
    _sessions: list[SparkSession] = field(default_factory=list)
    _jobs: dict[int, _Job] = field(default_factory=dict)
    """Thread -> the job that it waits for."""
    _asking: threading.Lock = field(default_factory=threading.Lock)
    """Held while a look uses the root session, and perhaps replaces it."""

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
        try:
            self._sessions.remove(session)
        except ValueError:  # another thread has forgotten it
            return
        for thread, job in list(self._jobs.items()):
            if job.session is session:
                self._jobs.pop(thread, None)
        if not self.is_lost:
            _end(session)
        _close(session)

    def begin(self, group: str, session: SparkSession) -> None:
        """Note that this thread waits for a job of the group from now on."""
        self._jobs[threading.get_ident()] = _Job(group, session)

    def progress_of(self, group: str) -> TaskCounts | None:
        """Blocks until the server answers. Raises errors for `loss` or, about the job's session, for `session_loss`."""
        job = next((each for each in list(self._jobs.values()) if each.group == group), None)
        if job is None:
            self._looks += 1
            if self._looks % LOOKS_A_QUESTION == 0:
                self._ask()
            return None
        job.looks += 1
        if job.looks % LOOKS_A_QUESTION == 0:
            _ask(job.session)
        return job.progress

    def standing(self) -> ClusterAnswer:
        """A server that answers `progress_of` has this host's session, and obtains executors for its jobs."""
        return KNOWN

    def _ask(self) -> None:
        """Raises an error for `loss` if the server does not answer. If it has lost only the root session, opens another."""
        with self._asking:
            root = self.session
            try:
                _ask(root)
            except Exception as error:
                if self.is_lost or session_loss(error) is None:
                    raise
                self.session = _session(self.remote)
                _close(root)
                if self.is_broken:  # `sever` may not have seen it
                    _close(self.session)

    def sever(self) -> None:
        """End every call that waits for the server."""
        self.is_broken = self.is_lost = True
        _close(self.session, *self._sessions)

    def kill(self) -> None:
        """Make calls that wait for the server, also those of other threads, fail now."""
        self.sever()

    def stop(self) -> None:
        """Jobs end on the server too, unless it is away: jobs that still ran would keep executors from later sessions."""
        if not self.is_lost:
            self.is_broken = self.is_lost = self.is_ended = True  # so that sessions opened from now on are closed
            _end(*self._sessions, self.session)
        self.sever()

    def _note(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Called on the thread that waits."""
        if (job := self._jobs.get(threading.get_ident())) is not None:
            job.progress = None if done else job.counts(list(stages or ()), inflight_tasks)


def _ask(session: SparkSession) -> None:
    session.conf.get("spark.sql.session.timeZone")


def lost_server(error: BaseException, running: Running) -> EngineUnavailable | None:
    """What an error of a call means if it makes all sessions useless; they are not used again. None if it does not."""
    if not isinstance(running, Connected):
        return None
    why = loss(error) or (CLOSED if running.is_lost else None)
    if why is None:
        return None
    running.is_broken = running.is_lost = True
    if running.is_ended:
        return EngineUnavailable(
            f"this host has ended its sessions on the Spark Connect server at '{running.place}', and tries again in new ones",
            is_away=True,
        )
    is_away = why == CLOSED or _name(error) == "RETRIES_EXCEEDED" or _code(error) in _MAY_PASS
    return EngineUnavailable(f"the Spark Connect server at '{running.place}' cannot be used: {why}", is_away=is_away)


def lost_session(error: BaseException, running: Running) -> EngineUnavailable | None:
    """What an error of a call means if it makes its own session useless, and no other. None if it does not."""
    if not isinstance(running, Connected) or running.is_lost or (what := session_loss(error)) is None:
        return None
    return EngineUnavailable(f"the Spark Connect server at '{running.place}' {what}", is_away=True)


def failed_call(error: BaseException, running: Running) -> EngineUnavailable | None:
    """The meaning of an error that gRPC has raised, and not Spark. None for other errors, and those about the size of the data.

    It may come from a proxy, for any call. `stop` still ends sessions on the server if their connection was cut off.
    """
    if not isinstance(running, Connected) or not _is_bare(error):
        return None
    code = _code(error)
    if code not in _CUT | _DECLINED or (code == "RESOURCE_EXHAUSTED" and _TOO_LARGE.search(str(error)) is not None):
        return None
    running.is_broken = running.is_broken or code in _CUT
    return EngineUnavailable(
        f"a call to the Spark Connect server at '{running.place}' failed ({code}: {_said(error)}): the host tries again. If that"
        " does not help, look at the logs of the server, and of the proxy if there is one",
        is_away=True,
    )


def loss(error: BaseException) -> str | None:
    """Why all sessions are useless once a call has raised this, and what to do; None if they are not. Pure."""
    if session_loss(error) is not None:
        return None
    if _name(error) == "RETRIES_EXCEEDED" or _code(error) in _AWAY:
        return f"{_said(error)}: {START}"
    is_of_channel = isinstance(error, ValueError) and any(text in str(error) for text in _OF_CHANNEL)
    return CLOSED if is_of_channel else None


def session_loss(error: BaseException) -> str | None:
    """What has happened to the session whose call has raised this, and what happens next; None if it is not lost. Pure."""
    if isinstance(error, PySparkAssertionError) and "server side session identifier" in str(error):
        return LOST
    return next((what for name, what in _LOST.items() if _name(error).startswith(name)), None)


def is_expired(error: BaseException) -> bool:
    """Whether the server has ended the session because it was idle. Pure."""
    return _name(error) == _EXPIRED


def _name(error: BaseException) -> str:
    return (error.getCondition() or "") if isinstance(error, PySparkException) else ""


def _is_bare(error: BaseException) -> bool:
    """Whether an error is gRPC's own: it names neither a condition nor an exception of Spark's."""
    if type(error).__name__ == "SparkConnectGrpcException":  # subclasses are for exceptions of Spark's server
        return not _name(error) and _OF_JAVA.match(str(error)) is None
    return any((each.__module__, each.__name__) == ("grpc", "RpcError") for each in type(error).__mro__)


def _code(error: BaseException) -> str:
    """The error's gRPC status code; empty if it has none."""
    get: Any = getattr(error, "getGrpcStatusCode", None) or getattr(error, "code", None)
    if callable(get):
        return str(getattr(get(), "name", ""))
    found = _OF_GRPC.match(str(error)) if _is_bare(error) else None
    return found[1] if found else ""


def _said(error: BaseException) -> str:
    """gRPC's details of the last attempt, in one line."""
    cause = error.__cause__ if _name(error) == "RETRIES_EXCEEDED" and error.__cause__ is not None else error
    details: Any = getattr(cause, "details", None)
    return reason_of(str((details() if callable(details) else None) or cause))
