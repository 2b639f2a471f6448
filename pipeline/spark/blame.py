"""Who is to blame for a failed Spark job, decided by what Spark itself writes. Pure.

Messages of exceptions quote events, with newlines and whatever else an event contains. So no message is searched for signs.
What counts is the class of each exception, its condition (`[CAST_INVALID_INPUT]`), and the beginning of a message if Spark's own
code writes it. Reading ends at the first exception that may quote an event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Blame = Literal["events", "transform", "output", "engine"]
"""events: perhaps one of them is poison. transform: it fails whatever the events are. output: larger than may be collected.
engine: nothing was learned about the events."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One exception of a chain. kind: its class in Java with its package, or in Python if a Connect server reports it."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """remedy: the cause and the next step, if a person can take one; `{version}` stands for PySpark's.

    breaks: whether this Spark may run no more jobs, and another one has to start.
    """

    blame: Blame
    remedy: str = ""
    breaks: Literal["never", "local", "always"] = "always"
    """local: only if executors are threads of the driver. A cluster replaces them while the driver continues."""


_EVENTS = Verdict("events", breaks="never")
_TRANSFORM = Verdict("transform", breaks="never")
_OUTPUT = Verdict("output", breaks="never")
_ENGINE = Verdict("engine")
_CANCELLED = Verdict("engine", breaks="never")
_LOST = Verdict("engine", breaks="local")
_BLOCKS = Verdict(
    "engine",
    "executors cannot fetch data from the driver, or from each other: open the ports `spark.driver.blockManager.port` and"
    " `spark.blockManager.port` (in `spark.conf`) between them, and look at the logs of executors that were lost",
    breaks="local",
)
_VERSION = Verdict(
    "engine",
    "executors run another version of Spark, or lack a jar: install the same version on the cluster and here (PySpark {version}),"
    " and name other jars in `spark.jars` (in `spark.conf`)",
    breaks="local",
)
_REMOVED = Verdict("engine", "look for the reason on the pages of the master and its workers")
_DISK = Verdict(
    "engine",
    "make room for Spark's temporary files, or name another directory: `spark.local.dir` (in `spark.conf`), or SPARK_LOCAL_DIRS"
    " where a standalone worker starts",
    breaks="local",
)

_KINDS: tuple[tuple[re.Pattern[str], Verdict], ...] = tuple(
    (re.compile(kind), verdict)
    for kind, verdict in (
        (r"java\.lang\.OutOfMemoryError|org\.apache\.spark\.memory\.SparkOutOfMemoryError", _ENGINE),
        (r"java\.io\.InvalidClassException", _VERSION),
        (
            r"java\.lang\.(NoClassDefFound|NoSuchMethod|NoSuchField|IncompatibleClassChange|UnsupportedClassVersion)Error",
            _VERSION,
        ),
        (r"org\.apache\.spark\.(shuffle|storage|network|rpc)\.[\w.$]+", _BLOCKS),
    )
)
"""Classes that no expression over events throws."""

_SPARKS_OWN = frozenset(("org.apache.spark.SparkException", "java.lang.IllegalStateException", "SparkException", ""))
_OF_IO = re.compile(
    r"java\.io\.(IO|FileNotFound|UncheckedIO)Exception|java\.nio\.file\.FileSystemException"
    r"|java\.net\.(Socket|SocketTimeout|Connect)Exception"
)
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*)(?:\.[A-Z0-9_.]+)?\] ")
_CONDITIONS: dict[str, Verdict | None] = {
    "SPARK_JOB_CANCELLED": _CANCELLED,
    "INTERNAL_ERROR_BROADCAST": _BLOCKS,
    "INTERNAL_ERROR_NETWORK": _BLOCKS,
    "INTERNAL_ERROR_SHUFFLE": _BLOCKS,
    "INTERNAL_ERROR_STORAGE": _BLOCKS,
    "INTERNAL_ERROR": None,
}
"""None: look at its cause. Every other condition is about values."""

_ABORTED = "Job aborted due to stage failure: "
_TASK = re.compile(
    r"Task [\d.]+ in stage [\d.]+ failed \d+ times, most recent failure: Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) "
    r"\([^()\n]*\): "
)
_BEGINNINGS: tuple[tuple[re.Pattern[str], Verdict], ...] = tuple(
    (re.compile(beginning), verdict)
    for beginning, verdict in (
        (r"Total size of serialized results of ", _OUTPUT),
        (
            r"(Result|ShuffleMap)Stage \d+ \([^\n]*\) has (failed|been resubmitted for) the maximum allowable number of times",
            _BLOCKS,
        ),
        (r"TaskResultLost\b|FetchFailed\(", _BLOCKS),
        (r"ExecutorLostFailure \(", _LOST),
        (r"Failed to get broadcast_\d+", _BLOCKS),
        (r"Failed to (create (a |any )?(local |temp )?(root )?dir|get a temp directory)", _DISK),
        (r"Master removed our application|All masters are unresponsive", _REMOVED),
        (
            r"(Job \d+|Stage) cancelled because SparkContext was shut down|SparkContext (was shut down|has been shut ?down)",
            _ENGINE,
        ),
        (r"Cannot call methods on a stopped SparkContext", _ENGINE),
        (r"Python worker failed to connect back", _ENGINE),
    )
)
"""Beginnings of messages of Spark's own exceptions."""
_BEGINNINGS_OF_IO: tuple[tuple[re.Pattern[str], Verdict], ...] = tuple(
    (re.compile(beginning), verdict)
    for beginning, verdict in (
        (r'Cannot run program "|Timed out while waiting for the Python worker', _ENGINE),
        (r"Failed to connect to |Connection from \S+ closed", _BLOCKS),
        (r"Failed to (create (a |any )?(local |temp )?(root )?dir|get a temp directory)", _DISK),
        (r"([^\n]*\W)?No space left on device", _DISK),
    )
)

_HEAD = re.compile(r"((?:[\w$]+\.)+[\w$]+)(?:: ?|(?=\n)|$)")
"""An exception as Java writes it: the class, and the message if there is one."""
_CALLING = re.compile(r"\s*(?:An error occurred while calling \S+\n: |Caused by: |: )?")
_OF_CONNECT = re.compile(r"\(((?:[\w$]+\.)+[\w$]+)\) ")
_UNMAPPED = ("UnknownException", "SparkConnectGrpcException")
"""Classes of Connect's client for exceptions that have no class there. Their messages begin with the class in Java."""
_EMPTY_WRAPPER = re.compile(r"Exception thrown in awaitResult: ?(?:\n\tat [^\n]*)*\nCaused by: ")

_FROM_PYTHON = "An exception was thrown from the Python worker"
_PYTHON_KINDS = ("PythonException", "org.apache.spark.api.python.PythonException")
_TRACEBACK = "Traceback (most recent call last)"
_IMPORTS = ("ModuleNotFoundError: ", "ImportError: ")
_VERSIONS = re.compile(r"[\w.]*PySparkRuntimeError: \[PYTHON_VERSION_MISMATCH\]")
_UNPICKLED = re.compile(r'  File "[^"\n]*\bpyspark/serializers\.py"')


def blame(causes: Sequence[Cause]) -> Verdict:
    """causes: from the exception that was raised to its root. The first with a verdict decides."""
    for cause in causes:
        for each in _within(cause):
            if (verdict := _verdict(each)) is not None:
                return verdict
    return _EVENTS


def causes_in(text: str, kind: str = "") -> tuple[Cause, ...]:
    """The causes that the beginning of a text names, if the exceptions are out of reach.

    kind: the class of the error, unless the text begins with it.
    """
    text = text.lstrip()
    if kind in _UNMAPPED and (found := _OF_CONNECT.match(text)) is not None:
        return (Cause(found[1], text[found.end() :]),)
    return (Cause(kind, text),) if kind else (Cause("", _CALLING.sub("", text, count=1)),)


def _within(cause: Cause) -> Iterator[Cause]:
    """A cause, and those that its message begins with: Spark's own exceptions quote that of a task, or one that they wrap."""
    while True:
        if not cause.kind and (found := _HEAD.match(cause.message)) is not None:
            cause = Cause(found[1], cause.message[found.end() :])
        yield cause
        if (rest := _rest(cause)) is None:
            return
        cause = Cause("", rest)


def _rest(cause: Cause) -> str | None:
    """The message after the words that Spark puts before another exception; None if it has no such words."""
    message = cause.message
    if cause.kind in _SPARKS_OWN:
        if message.startswith(_ABORTED):
            return message.removeprefix(_ABORTED)
        if (found := _TASK.match(message) or _EMPTY_WRAPPER.match(message)) is not None:
            return message[found.end() :]
    is_wrapper = cause.kind in _SPARKS_OWN or _OF_IO.fullmatch(cause.kind)
    return message if is_wrapper and cause.kind and message.startswith("org.apache.spark.") else None


def _verdict(cause: Cause) -> Verdict | None:
    """None if a cause only wraps another one, or is unknown."""
    if cause.kind in _PYTHON_KINDS or (not cause.kind and cause.message.startswith(_FROM_PYTHON)):
        return _TRANSFORM if _is_of_python(cause.message) else _EVENTS
    for kind, verdict in _KINDS:
        if kind.fullmatch(cause.kind):
            return verdict
    if (found := _CONDITION.match(cause.message)) is not None:
        of_condition = _CONDITIONS.get(found[1], _EVENTS)
        return _EVENTS if of_condition is not None and cause.kind not in _SPARKS_OWN else of_condition
    beginnings = _BEGINNINGS if cause.kind in _SPARKS_OWN else _BEGINNINGS_OF_IO if _OF_IO.fullmatch(cause.kind) else ()
    return next((verdict for beginning, verdict in beginnings if beginning.match(cause.message)), None)


def _is_of_python(message: str) -> bool:
    """Whether the workers' Python lacks something. Only the first traceback counts: what follows may quote an event."""
    _, _, frames = message.partition(_TRACEBACK)
    lines = frames.splitlines()[1:]
    raised = next((line for line in lines if line.strip() and not line.startswith((" ", "\t"))), "")
    if raised.startswith(_IMPORTS):  # and not while the function handles another error
        return _TRACEBACK not in frames or _UNPICKLED.match(lines[0]) is not None
    return _VERSIONS.match(raised) is not None
