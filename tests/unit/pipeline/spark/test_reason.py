"""Spark's errors, as it writes them, and what is left of them for a person."""

from __future__ import annotations

import pytest

from leasehold.pipeline.spark.reason import REASON_CHARS_MAX, reason_of

RAISED = "[USER_RAISED_EXCEPTION] unknown kind 0 SQLSTATE: P0001"
DIVISION = """[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012
== SQL (line 1, position 1) ==
1/(sequence-2) x
^^^^^^^^^^^^^^
"""  # noqa: E501
CAST = """[CAST_INVALID_INPUT] The value 'x0' of the type "STRING" cannot be cast to "INT" because it is malformed. Correct the value as per the syntax, or change its target type. SQLSTATE: 22018
== SQL (line 1, position 1) =="""  # noqa: E501
SYNTAX = "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\nselec x\n^^^\n"
NO_TABLE = """[TABLE_OR_VIEW_NOT_FOUND] The table or view `evnts` cannot be found. Verify the spelling and correctness of the schema and catalog.
Search path: [`system`.`builtin`, `spark_catalog`.`default`].
If you did not qualify the name with a schema, verify the current_schema() output, or qualify the name with the correct schema and catalog.
To tolerate the error on drop use DROP VIEW IF EXISTS or DROP TABLE IF EXISTS. SQLSTATE: 42P01; line 2 pos 12;
'Project [*]
"""  # noqa: E501
PYTHON = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "<string>", line 21, in boom
    raise ValueError(x)
ValueError: bad amount
second line
"""
IMPORT = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "<string>", line 25, in imp
ModuleNotFoundError: No module named 'nosuchmodule'
"""
VERSIONS = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 40, in check_python_version
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than \
that in driver: 3.11, PySpark cannot run with different minor versions.
"""
LOST = "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage 1.0"
CRASH = f"""An error occurred while calling o126.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
Caused by: org.apache.spark.SparkException: {LOST} (TID 1) (host executor driver): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'spark.python.worker.faulthandler.enabled' to 'true'.
\tat org.apache.spark.api.python.BasePythonRunner.x(PythonRunner.scala:1)
Caused by: java.io.EOFException
"""  # noqa: E501
CANCELLED = """An error occurred while calling o382.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
Caused by: org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 8 cancelled part of cancelled job group t1 SQLSTATE: XXKDA
"""
NO_WORKER = f"""Caused by: org.apache.spark.SparkException: {LOST} (TID 2) (host executor driver): java.io.IOException: Cannot run program "python": error=0, Failed to exec spawn helper
"""  # noqa: E501
TOO_LARGE = "Job aborted due to stage failure: Total size of serialized results of 2 tasks (3.0 MiB) is bigger than spark.driver.maxResultSize (1024.0 KiB)"  # noqa: E501


TOO_DEEP = "it nests too deeply, or chains too many operators, for Spark's stack: write it flatter"


STREAM = (
    '<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.INTERNAL\n\tdetails = "Session "a" is gone.\n'
    '\tat x.Y"\n\tdebug_error_string = "{}"\n>'
)
"""gRPC escapes no quotes."""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (RAISED, "unknown kind 0"),
        (DIVISION, "Division by zero"),
        ("java.lang.StackOverflowError", TOO_DEEP),
        ("[FAILED_TO_PARSE_TOO_COMPLEX] The statement was too complex to parse. SQLSTATE: 54001", TOO_DEEP),
        (
            "An error occurred while calling o1\n: java.lang.ClassNotFoundException: a.B\n\tat x",
            "ClassNotFoundException: a.B",
        ),
        (CAST, 'The value \'x0\' of the type "STRING" cannot be cast to "INT" because it is malformed'),
        (SYNTAX, "Syntax error at or near 'selec' (line 1, position 1)"),
        (
            NO_TABLE,
            "The table or view `evnts` cannot be found: the events of a batch are the view `events` (line 2, position 13)",
        ),
        (
            NO_TABLE.replace("evnts", "my events"),
            "The table or view `my events` cannot be found: the events of a batch are the view `events` (line 2, position 13)",
        ),
        (PYTHON, "ValueError: bad amount"),
        (
            '<_InactiveRpcError of RPC that ended with:\n\tdetails = "schema nests too deeply"\n>',
            "schema nests too deeply",
        ),
        (STREAM, 'Session "a" is gone'),
        (IMPORT, "ModuleNotFoundError: No module named 'nosuchmodule': install it where Spark's Python workers run"),
        (CRASH, "Python worker exited unexpectedly (crashed)"),
        (CANCELLED, "Job 8 cancelled part of cancelled job group t1"),
        (NO_WORKER, 'Cannot run program "python": error=0, Failed to exec spawn helper'),
        ("", "no reason given"),
        ("plain words", "plain words"),
    ],
)
def test_a_reason_is_one_line_for_a_person(text: str, reason: str) -> None:
    assert reason_of(text) == reason


def test_a_reason_never_advises_to_switch_ansi_mode_off() -> None:
    assert "ansi" not in reason_of(DIVISION)


def test_a_reason_is_bounded() -> None:
    assert len(reason_of("x" * 10_000)) == REASON_CHARS_MAX


def test_a_reason_is_not_cut_out_of_the_words_of_an_event() -> None:
    text = CAST.replace("x0", "x\nCaused by: java.lang.OutOfMemoryError: y")
    assert reason_of(text) == "The value 'x"
