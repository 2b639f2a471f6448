"""What a JVM wrote before it ended, and what it means for a person. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.spark.reason import with_class

CHARS_MAX = 300
_WRAPPERS = (
    "Error occurred during initialization of VM",
    "Error: Could not create the Java Virtual Machine.",
    "Error: A fatal exception has occurred. Program will exit.",
    "Error: A JNI error has occurred, please check your installation and try again",
)
"""The reason stands in another line, before or after them."""
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
    said = (line.strip() for line in list(lines))
    return next((line for line in said if re.match(r"(Error|Exception|Caused by|java\.)[\w :.]", line)), "")


def start_reason(lines: Sequence[str]) -> str:
    """Why a JVM did not start, by what it wrote; nothing if it wrote no reason."""
    said = [line.strip() for line in list(lines)]
    reasons = [line for line in said if line and line not in _WRAPPERS and not _NOISE.match(line)]
    return one_line(reasons[0]) if reasons else last_words(said)


def end_reason(lines: Sequence[str]) -> str:
    """Why a JVM ended by itself after its start: the last two errors that Spark logged, or else the reason of a failed start."""
    said = list(lines)
    errors = dict.fromkeys(one_line(each[1]) for line in said if (each := _LOGGED_ERROR.match(line)))
    return "; ".join([*errors][-2:]) or start_reason(said)


def complaint(lines: Sequence[str]) -> str:
    """The last thing that Spark logged about its talk with a master, or nothing."""
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
    return (
        "look at `spark.conf` and at the variables of Java and Spark in the environment (JAVA_TOOL_OPTIONS, SPARK_HOME)"
    )
