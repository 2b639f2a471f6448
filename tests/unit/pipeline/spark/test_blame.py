"""Who is to blame for a failed job: exceptions as Spark raises them, and events that pretend to be one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.spark.blame import Blame, Cause, blame, causes_in

SPARK = "org.apache.spark.SparkException"
TASK = "Task 0 in stage 9.0 failed 4 times, most recent failure: Lost task 0.3 in stage 9.0 (TID 12) (10.0.0.7 executor 1): "
ABORTED = "Job aborted due to stage failure: "
LOST = ABORTED + TASK
CALLING = "An error occurred while calling o126.getResult.\n: "
STACK = "\n\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\n"
WRAPPED = f"{SPARK}: Exception thrown in awaitResult: {STACK}Caused by: "
BROADCAST = "[INTERNAL_ERROR_BROADCAST] Failed to get broadcast_7_piece0 of broadcast_7 SQLSTATE: XX000"
TOO_LARGE = (
    "Total size of serialized results of 2 tasks (3.0 MiB) is bigger than spark.driver.maxResultSize (1024.0 KiB)"
)
VERSION = "org.apache.spark.rdd.RDD; local class incompatible: stream classdesc serialVersionUID = 1, local class = 2"
FRAME = '  File "/app/transforms.py", line 21, in looked_at\n    raise ValueError(key)\n'
UNPICKLED = '  File "/opt/pyspark/serializers.py", line 173, in _read_with_length\n    return self.loads(obj)\n'
TRACEBACK = "Traceback (most recent call last):\n"
PYTHON = "org.apache.spark.api.python.PythonException"
LACKS = f"{TRACEBACK}{UNPICKLED}ModuleNotFoundError: No module named 'nosuchmodule'\n"
AGAIN = "\nDuring handling of the above exception, another exception occurred:\n\n"

ENGINE = [
    (SPARK, "[SPARK_JOB_CANCELLED] Job 8 cancelled part of cancelled job group t1 SQLSTATE: XXKDA"),
    (SPARK, "Job 3 cancelled because SparkContext was shut down"),
    (
        "java.lang.IllegalStateException",
        "Cannot call methods on a stopped SparkContext.\nThis stopped SparkContext was ...",
    ),
    (SPARK, f'{LOST}java.io.IOException: Cannot run program "python": error=0, Failed to exec spawn helper{STACK}'),
    (SPARK, f"{LOST}{SPARK}: Python worker failed to connect back.{STACK}"),
    ("java.lang.OutOfMemoryError", "Java heap space"),
    (SPARK, f"{LOST}java.lang.OutOfMemoryError: Java heap space{STACK}"),
    (SPARK, f"{LOST}ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: worker lost"),
    (SPARK, BROADCAST),
    (SPARK, f"{LOST}java.io.IOException: {SPARK}: {BROADCAST}{STACK}"),
    (SPARK, f"{LOST}java.io.IOException: {SPARK}: Failed to get broadcast_7_piece0 of broadcast_7{STACK}"),
    (SPARK, f"{LOST}TaskResultLost (result lost from block manager)\nDriver stacktrace:"),
    ("org.apache.spark.shuffle.FetchFailedException", "Failed to connect to /10.0.0.7:7079"),
    (
        SPARK,
        (
            f"{ABORTED}ResultStage 4 (toArrow at transform.py:1) has failed the maximum allowable number of times: 4. Most recent"
            " failure reason:\norg.apache.spark.shuffle.FetchFailedException: Connection refused"
        ),
    ),
    (SPARK, f"{LOST}java.io.InvalidClassException: {VERSION}{STACK}"),
    ("java.io.InvalidClassException", VERSION),
    (SPARK, f"{LOST}java.lang.NoClassDefFoundError: Could not initialize class org.example.Codec{STACK}"),
    (
        SPARK,
        (
            f"{ABORTED}ShuffleMapStage 4 (name=toArrow at transform.py:1) has been resubmitted for the maximum allowable number"
            " of times: 8, which is the max value of config `a` and `b`."
        ),
    ),
    (SPARK, "Stage cancelled because SparkContext was shut down"),
    ("java.io.IOException", "Failed to get a temp directory under [/var/spark]."),
    ("java.io.IOException", "Failed to create any local dir."),
    (SPARK, f"{ABORTED}Master removed our application: FAILED"),
    ("java.io.IOException", "Failed to create local dir in /var/spark/blockmgr-1/0c."),
    (SPARK, f"{LOST}java.io.IOException: Failed to create local dir in /var/spark/blockmgr-1/0c.{STACK}"),
    (SPARK, f"{LOST}java.nio.file.FileSystemException: /var/spark/temp_1: No space left on device{STACK}"),
]


def blamed(kind: str, message: str) -> Blame:
    return blame([Cause(kind, message)]).blame


@pytest.mark.parametrize(("kind", "message"), ENGINE)
def test_what_the_cluster_lacks_is_no_fault_of_the_events(kind: str, message: str) -> None:
    assert blamed(kind, message) == "engine"
    wrapper = Cause(SPARK, "Exception thrown in awaitResult: ")
    assert blame([wrapper, Cause(kind, message)]).blame == "engine"


@pytest.mark.parametrize(("kind", "message"), ENGINE)
@pytest.mark.parametrize("introduction", ["", CALLING, f"{CALLING}{WRAPPED}", "Caused by: "])
def test_the_text_of_an_error_is_enough(introduction: str, kind: str, message: str) -> None:
    assert blame(causes_in(f"{introduction}{kind}: {message}")).blame == "engine"


@pytest.mark.parametrize(("kind", "message"), ENGINE)
def test_a_connect_server_names_the_class_in_front_of_its_message(kind: str, message: str) -> None:
    assert blame(causes_in(f"({kind}) {message}", "UnknownException")).blame == "engine"
    if kind == SPARK:
        assert blame(causes_in(message, "SparkException")).blame == "engine"


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("org.apache.spark.SparkRuntimeException", "[USER_RAISED_EXCEPTION] unknown kind 0 SQLSTATE: P0001", "events"),
        ("org.apache.spark.SparkArithmeticException", "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", "events"),
        (
            SPARK,
            f"{LOST}{SPARK}: Python worker exited unexpectedly (crashed).{STACK}Caused by: java.io.EOFException",
            "events",
        ),
        (SPARK, f"{ABORTED}Serialized task 3:0 was 200000000 bytes, which exceeds max allowed", "events"),
        (PYTHON, f"{TRACEBACK}{FRAME}ValueError: bad amount\nsecond line\n", "events"),
        (PYTHON, f"{TRACEBACK}{FRAME}MemoryError: a\n", "events"),
        (PYTHON, LACKS, "transform"),
        (
            PYTHON,
            f"{LACKS}{AGAIN}{TRACEBACK}{UNPICKLED}pyspark.serializers.SerializationError: Caused by {LACKS}",
            "transform",
        ),
        (
            PYTHON,
            f"{TRACEBACK}{FRAME}ImportError: no fast one\n{AGAIN}{TRACEBACK}{FRAME}ValueError: bad amount\n",
            "events",
        ),
        (
            PYTHON,
            (
                f"{TRACEBACK}{UNPICKLED}pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in"
                " worker has different version: 3.12 than that in driver: 3.11"
            ),
            "transform",
        ),
        (SPARK, ABORTED + TOO_LARGE, "output"),
    ],
)
def test_blame_falls_on_events_if_the_engine_worked(kind: str, message: str, expected: Blame) -> None:
    assert blamed(kind, message) == expected
    assert blame(causes_in(f"{CALLING}{kind}: {message}")).blame == expected


def test_the_first_cause_with_a_verdict_decides() -> None:
    cast = Cause("org.apache.spark.SparkNumberFormatException", "[CAST_INVALID_INPUT] The value 'x'")
    memory = Cause("java.lang.OutOfMemoryError", "Java heap space")
    internal = Cause(SPARK, "[INTERNAL_ERROR] The query failed with an internal error.")
    assert blame([cast, memory]).blame == "events"
    assert blame([internal, memory]).blame == "engine"
    assert blame([internal]).blame == "events"
    assert blame([]).blame == "events"


def test_a_remedy_names_the_settings() -> None:
    ports = blame([Cause(SPARK, f"{LOST}TaskResultLost (result lost from block manager)")])
    assert "`spark.blockManager.port`" in ports.remedy
    version = blame([Cause("java.io.InvalidClassException", VERSION)])
    assert "another version of Spark" in version.remedy
    assert "PySpark 9.9" in version.remedy.format(version="9.9")


@pytest.mark.parametrize(
    ("message", "breaks"),
    [
        ("[SPARK_JOB_CANCELLED] Job 8 cancelled", "never"),
        (BROADCAST, "local"),
        (f"{LOST}ExecutorLostFailure (executor 1 exited)", "local"),
        (f"{ABORTED}Master removed our application: FAILED", "always"),
        ("Job 3 cancelled because SparkContext was shut down", "always"),
    ],
)
def test_a_cluster_is_not_left_for_what_its_executors_lack(message: str, breaks: str) -> None:
    assert blame([Cause(SPARK, message)]).breaks == breaks


# Events that pretend


SIGNS = [f"{kind}: {message}" for kind, message in ENGINE] + [
    *(message for _, message in ENGINE),
    *(
        "OutOfMemoryError",
        "java.lang.OutOfMemoryError",
        TOO_LARGE,
        ABORTED + TOO_LARGE,
        LACKS,
        "[SPARK_JOB_CANCELLED] ",
    ),
    *("An exception was thrown from the Python worker\n" + LACKS, "\n: ", "\nCaused by: ", "'", " ", STACK, CALLING),
    *(
        f"{TRACEBACK}ImportError: a\n",
        "(java.lang.OutOfMemoryError) ",
        "[PYTHON_VERSION_MISMATCH]",
        "[INTERNAL_ERROR] ",
    ),
]
VALUES = st.lists(st.sampled_from([*SIGNS, "\n", "\r\n"]) | st.text(), max_size=6).map("".join)
QUOTING = [
    (
        "org.apache.spark.SparkNumberFormatException",
        "[CAST_INVALID_INPUT] The value '{}' of the type \"STRING\" cannot be cast",
    ),
    ("org.apache.spark.SparkRuntimeException", "[USER_RAISED_EXCEPTION] {} SQLSTATE: P0001"),
    ("org.apache.spark.SparkRuntimeException", "{}"),
    ("java.lang.IllegalArgumentException", "{}"),
    ("java.lang.NumberFormatException", 'For input string: "{}"'),
    ("java.time.format.DateTimeParseException", "Text '{}' could not be parsed at index 0"),
    (SPARK, "Error from python worker:\n  {}"),
    (PYTHON, f"{TRACEBACK}{FRAME}ValueError: {{}}\n"),
    (PYTHON, f"{TRACEBACK}{FRAME}ValueError: {{}}\n{AGAIN}{TRACEBACK}{FRAME}MemoryError: {{}}\n"),
]
IN_PYTHON = {
    "org.apache.spark.SparkNumberFormatException": "NumberFormatException",
    "org.apache.spark.SparkRuntimeException": "SparkRuntimeException",
    "java.lang.IllegalArgumentException": "IllegalArgumentException",
    "java.lang.NumberFormatException": "NumberFormatException",
    "java.time.format.DateTimeParseException": "DateTimeException",
    SPARK: "SparkException",
    PYTHON: "PythonException",
}


@pytest.mark.parametrize(("kind", "message"), QUOTING)
@pytest.mark.parametrize("before", ["", "x", "x\n", "x\nCaused by: ", "'", "x: "])
def test_no_sign_in_a_message_changes_the_blame(kind: str, message: str, before: str) -> None:
    for sign in SIGNS:
        assert_events_are_blamed(kind, message.replace("{}", before + sign))


@pytest.mark.parametrize(("kind", "message"), QUOTING)
@given(value=VALUES)
def test_no_value_in_a_message_changes_the_blame(kind: str, message: str, value: str) -> None:
    assert_events_are_blamed(kind, message.replace("{}", value))


def assert_events_are_blamed(kind: str, quoted: str) -> None:
    """By all ways on which an exception of an event comes here: from this JVM, as text alone, and from a Connect server."""
    task = f"{LOST}{kind}: {quoted}{STACK}"
    found = [
        [Cause(kind, quoted)],
        [Cause(SPARK, task), Cause(kind, quoted)],
        causes_in(f"{CALLING}{kind}: {quoted}"),
        causes_in(f"{CALLING}{WRAPPED}{SPARK}: {task}"),
        causes_in(quoted, IN_PYTHON[kind]),
        causes_in(f"({kind}) {quoted}", "UnknownException"),
        causes_in(task, "SparkException"),
    ]
    assert {blame(causes).blame for causes in found} == {"events"}
