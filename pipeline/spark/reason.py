"""What Spark's errors say, in one line, and who is to blame. Pure."""

from __future__ import annotations

import re
from typing import Literal

REASON_CHARS_MAX = 500

Blame = Literal["events", "transform", "output", "engine"]
"""events: perhaps one of them is poison. transform: it fails whatever the events are. output: larger than may be collected.
engine: nothing was learned about the events."""

_ENGINE = (
    "SPARK_JOB_CANCELLED",
    "SparkContext was shut down",
    "stopped SparkContext",
    "ExecutorLostFailure",
    "Cannot run program",  # no Python worker could be started
    "worker failed to connect back",
    "waiting for the Python worker to connect back",
    "No space left on device",
    "OutOfMemoryError",
)
_IMPORT_ERRORS = ("ModuleNotFoundError: ", "ImportError: ")
_STACK = ("java.lang.StackOverflowError", "[FAILED_TO_PARSE_TOO_COMPLEX]")
"""The second is the first, where the parser catches it."""
_BARE_NAME = re.compile(r"\w+(?:Exception|Error): \S*$")
_NO_REASONS = ("\tat ", "An error occurred while calling ")
_HINTS = re.compile(
    r" (Use `try_|If necessary,? set |Correct the value |Consider setting |You may want to |To tolerate |SQLSTATE: )"
)

_PLACE = re.compile(r"SQLSTATE: \w+;? \(?line (\d+),? pos (\d+)")
"""Where in a query an error is, as its parser and its analysis tell it, from (1, 0)."""
_NO_TABLE = re.compile(r"^(\[TABLE_OR_VIEW_NOT_FOUND\] The table or view .+? cannot be found)\..*")


def blame(text: str) -> Blame:
    """For the whole text of a job's error."""
    if "[USER_RAISED_EXCEPTION]" in text:
        return "events"
    if "Total size of serialized results" in text:
        return "output"
    if "Traceback (most recent call last)" in text:
        return "transform" if _raised(text).startswith(_IMPORT_ERRORS) else "events"
    return "engine" if any(sign in text for sign in _ENGINE) else "events"


def reason_of(text: str) -> str:
    """The first line that tells a person something, without class names, hints to switch checks off, and stack traces."""
    if any(sign in text for sign in _STACK):
        line = "it nests too deeply, or chains too many operators, for Spark's stack: write it flatter"
    elif "Traceback (most recent call last)" in text:
        line = _raised(text)
    elif lost := re.search(r"most recent failure: Lost task [^\n]*? executor [^)]*\): (?:[\w.$]+: )?([^\n]*)", text):
        line = lost[1]
    else:
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(_NO_REASONS)]
        causes = [line for line in lines if line.startswith("Caused by: ")]
        whole = (causes or lines or [""])[-1 if causes else 0]
        line = with_class(re.sub(r"^(Caused by: |: )?([\w.$]+(Exception|Error): )*", "", whole), whole)
    line = _NO_TABLE.sub(r"\1: the events of a batch are the view `events`", line)
    line = re.sub(r"^\[[\w.]+\] ", "", line)
    line = _HINTS.split(line, maxsplit=1)[0].rstrip(". ") + _place(text)
    return (line or text.strip() or "no reason given")[:REASON_CHARS_MAX]


def with_class(message: str, line: str) -> str:
    """message: of an exception, whose line it is. A message of one word is a bare name, and means nothing without the class."""
    named = _BARE_NAME.search(line)
    return named[0] if named else message


def _place(text: str) -> str:
    found = _PLACE.search(text)
    return f" (line {found[1]}, position {int(found[2]) + 1})" if found else ""


def _raised(text: str) -> str:
    """The exception of a Python traceback: the first line that is not indented behind the last frame."""
    frames = text.rsplit("Traceback (most recent call last)", 1)[1].splitlines()[1:]
    return next((line for line in frames if line.strip() and not line.startswith((" ", "\t"))), "").strip()
