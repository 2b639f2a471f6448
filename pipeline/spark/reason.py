"""What Spark's errors say, in one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

REASON_CHARS_MAX = 500

_IMPORT_ERRORS = ("ModuleNotFoundError: ", "ImportError: ")
_DETAILS = re.compile(r'<_\w+ of RPC that .*?\sdetails = "([^\n]*?)"?$', re.MULTILINE | re.DOTALL)
"""The first line of the details in the text of a gRPC error, which does not escape quotes."""
_STACK = ("java.lang.StackOverflowError", "[FAILED_TO_PARSE_TOO_COMPLEX]")
"""The parser turns the first into the second if it catches it."""
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] ")
_BARE_NAME = re.compile(r"\w+(?:Exception|Error): \S*$")
_NO_REASONS = ("\tat ", "An error occurred while calling ")
_HINTS = re.compile(
    r" (Use `try_|If necessary,? set |Correct the value |Consider setting |You may want to |To tolerate |SQLSTATE: )"
)

_PLACE = re.compile(r"SQLSTATE: \w+;? \(?line (\d+),? pos (\d+)")
"""The place of an error in a query, as parser and analysis report it, from (1, 0)."""
_NO_TABLE = re.compile(r"^(\[TABLE_OR_VIEW_NOT_FOUND\] The table or view .+? cannot be found)\..*")


def reason_of(text: str) -> str:
    """The first line that helps a person, without class names, hints to switch checks off, and stack traces."""
    if (quoted := _DETAILS.search(text)) is not None:
        text = quoted[1]
    if any(sign in text for sign in _STACK):
        line = "it nests too deeply, or chains too many operators, for Spark's stack: write it flatter"
    elif "Traceback (most recent call last)" in text:
        line = _raised(text)
        if line.startswith(_IMPORT_ERRORS):
            line += ": install it where Spark's Python workers run"
    elif lost := re.search(
        r"most recent failure: Lost task [^\n]*? executor [^)]*\): (?:(?:[\w$]+\.)+[\w$]+: )*([^\n]*)", text
    ):
        line = lost[1]
    elif _CONDITION.match(text.lstrip()):  # what looks like causes may be words of an event
        line = text.strip().partition("\n")[0]
    else:
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(_NO_REASONS)]
        causes = [line for line in lines if line.startswith("Caused by: ")]
        whole = (causes or lines or [""])[-1 if causes else 0]
        line = with_class(re.sub(r"^(Caused by: |: )?([\w.$]+(Exception|Error): )*", "", whole), whole)
    line = _NO_TABLE.sub(r"\1: the events of a batch are the view `events`", line)
    line = re.sub(r"^\[[\w.]+\] ", "", line)
    line = _HINTS.split(line, maxsplit=1)[0].rstrip(". ") + _location_of(text)
    return (line or text.strip() or "no reason given")[:REASON_CHARS_MAX]


def with_class(message: str, line: str) -> str:
    """An exception's message, with its class if the message is one word: a bare name means nothing without the class.

    line: the whole line of the exception.
    """
    named = _BARE_NAME.search(line)
    return named[0] if named else message


def _location_of(text: str) -> str:
    found = _PLACE.search(text)
    return f" (line {found[1]}, position {int(found[2]) + 1})" if found else ""


def _raised(text: str) -> str:
    """The exception of a Python traceback: the first unindented line after the last frame."""
    frames = text.rsplit("Traceback (most recent call last)", 1)[1].splitlines()[1:]
    return next((line for line in frames if line.strip() and not line.startswith((" ", "\t"))), "").strip()


# What a JVM wrote before it ended, and what that means for people. Pure.


CHARS_MAX = 300
_WRAPPERS = (
    "Error occurred during initialization of VM",
    "Error: Could not create the Java Virtual Machine.",
    "Error: A fatal exception has occurred. Program will exit.",
    "Error: A JNI error has occurred, please check your installation and try again",
)
"""The reason is in another line, before or after them."""
_NOISE = re.compile(
    r"WARNING: |NOTE: |Picked up |Using Spark's default log4j|Setting default log level|To adjust logging level"
    r"|Setting Spark log level|at [\w.$/]+\(|\d\d/\d\d/\d\d [\d:]+ (WARN|INFO) |.* VM warning: "
)
_INTRODUCTION = re.compile(r'(Error: |Exception in thread "[^"]*" |[\w$]+(\.[\w$]+)+(Exception|Error): )+')
_MEMORY = re.compile(r"heap|memory|Xm[sx]", re.IGNORECASE)
_MASTER = re.compile(r"\bmaster (URL|must)\b", re.IGNORECASE)
_LOGGED_ERROR = re.compile(r"\d\d/\d\d/\d\d [\d:]+ ERROR \S+: (.+)")
_OF_MASTER = re.compile(r" (?:WARN|ERROR) (?:StandaloneAppClient|Transport|NettyRpc)\S*: (.+)")


def last_words(lines: Sequence[str]) -> str:
    """What a JVM wrote about its end, in one line, or nothing."""
    stripped = (line.strip() for line in list(lines))
    return next((line for line in stripped if re.match(r"(Error|Exception|Caused by|java\.)[\w :.]", line)), "")


def start_reason(lines: Sequence[str]) -> str:
    """Why a JVM did not start, by what it wrote; nothing if it wrote no reason."""
    stripped = [line.strip() for line in list(lines)]
    reasons = [line for line in stripped if line and line not in _WRAPPERS and not _NOISE.match(line)]
    return one_line(reasons[0]) if reasons else last_words(stripped)


def end_reason(lines: Sequence[str]) -> str:
    """Why a JVM ended on its own after its start: the last two errors that Spark logged, or else the reason of a failed start."""
    stripped = list(lines)
    errors = dict.fromkeys(one_line(each[1]) for line in stripped if (each := _LOGGED_ERROR.match(line)))
    return "; ".join([*errors][-2:]) or start_reason(stripped)


def complaint(lines: Sequence[str]) -> str:
    """The last problem with a master that Spark logged, or nothing."""
    found = [each[1] for line in list(lines) if (each := _OF_MASTER.search(line))]
    return one_line(found[-1]) if found else ""


def one_line(text: str) -> str:
    """The first line, without the words that introduce every error, and without a full stop."""
    line = text.strip().partition("\n")[0]
    return with_class(_INTRODUCTION.sub("", line), line).rstrip(". ")[:CHARS_MAX]


def start_advice(reason: str, *, driver_memory: str, master: str) -> str:
    """What to do about a reason for which Spark's JVM did not start. driver_memory, master: the settings."""
    if _MASTER.search(reason):
        return f"`spark.master` is '{master}': write local[2], spark://HOST:PORT, k8s://ADDRESS or yarn, for example"
    if _MEMORY.search(reason):
        return (
            f"`spark.driver_memory` (or `spark.driver.memory` in `spark.conf`) is '{driver_memory}': Spark needs at least 450m,"
            " and this machine or container has to have that much; the default is 1g"
        )
    if master.startswith("k8s://"):
        return (
            f"look at `spark.conf`, and make sure that the API server of Kubernetes answers at `spark.master` ('{master}') and"
            " permits this host to manage pods"
        )
    return (
        "look at `spark.conf` and at the variables of Java and Spark in the environment (JAVA_TOOL_OPTIONS, SPARK_HOME)"
    )
