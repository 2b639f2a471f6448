"""Whether hosts reported why they wait, after faults of Spark that no host can miss. Pure.

Faults follow each other within seconds, so that a host may still wait for one while the next lasts. A host's words belong to a
fault only if they name the part that was hit, and only until the next fault begins that hosts report in the same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LINGERS_S = 60.0
"""How long after a fault hosts may report it: the longest pause between two attempts of a host."""
NOTICED_S = 45.0
"""A call fails within ten seconds if the server refuses connections (docs/clusters.md), and the machine may be busy."""
SPARK = re.compile(
    "the Spark master at '|the Spark Connect server at '|no executor of the Spark cluster at '|Spark at '|Spark's JVM"
    "|Spark did not start"
)
"""Spark, or a part of it, as errors name it that a host waits with (pipeline/spark). Errors of transforms have other words."""


class Wait(NamedTuple):
    """That a host tries again, in Unix time, and why."""

    at: float
    error: str


@dataclass(frozen=True, slots=True)
class Happened:
    """A fault, in Unix time. is_calm: on a cluster, all partitions were delivered through Spark right before."""

    kind: str
    began: float
    ended: float
    is_calm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """What hosts say after one kind of fault.

    - `words`: of the part that was hit.
    - `rivals`: kinds with the same words.
    - `each`: whether hosts that worked before have to notice each fault. In any case, they have to notice one of all.
    """

    words: re.Pattern[str]
    rivals: tuple[str, ...] = ()
    each: bool = False


OF_SERVER = (
    "Connect server killed",
    "Connect server frozen",
    "driver cut off",
    "driver's line stalled",
    "master killed",
)
"""The wires of a driver lead to the server, too, and a server that its master forgot is restarted after such a fault."""
STOPS: Mapping[str, Stop] = {
    "Connect server killed": Stop(
        words=re.compile(r"the Spark Connect server at '\S+' cannot be used: "), rivals=OF_SERVER, each=True
    ),
    "Spark killed": Stop(words=re.compile("Spark's JVM|Spark did not start"), rivals=("Spark killed",)),
}
"""Not a server that is frozen: it has to be silent for 26 s to be given up, and few freezes last so long. Executors work on
without their master, and Spark runs the tasks of those that get lost elsewhere."""


def unreported(kind: str, happened: Sequence[Happened], waits: Sequence[Wait]) -> tuple[int, int]:
    """How many faults of a kind no host reported, and how many a host had to report.

    If no single fault had to be reported, all together count as one.
    """
    stop = STOPS[kind]
    faults = [each for each in happened if each.kind == kind]
    demanded = [each for each in faults if _is_demanded(each, stop, happened)]
    missed = sum(not is_reported(each, happened, waits) for each in demanded)
    if demanded or not faults:
        return missed, len(demanded)
    reported = [wait.at for wait in waits if stop.words.search(wait.error)]
    return int(not any(each.began <= at <= each.ended + LINGERS_S for each in faults for at in reported)), 1


def is_reported(fault: Happened, happened: Iterable[Happened], waits: Iterable[Wait]) -> bool:
    """Whether a host reported that it waits because of this fault; for a kind without words of its own, because of Spark."""
    stop = STOPS.get(fault.kind, Stop(words=SPARK))
    ended = _ends(fault, stop, happened)
    return any(fault.began <= wait.at < ended and stop.words.search(wait.error) for wait in waits)


def of_spark(waits: Iterable[Wait]) -> Iterator[Wait]:
    """Those for Spark or one of its parts."""
    return (wait for wait in waits if SPARK.search(wait.error))


def _is_demanded(fault: Happened, stop: Stop, happened: Sequence[Happened]) -> bool:
    return fault.is_calm and stop.each and _ends(fault, stop, happened) - fault.began >= NOTICED_S


def _ends(fault: Happened, stop: Stop, happened: Iterable[Happened]) -> float:
    """Until when hosts' words can belong to this fault."""
    rivals = [each.began for each in happened if each.kind in stop.rivals and each.began > fault.began]
    return min([fault.ended + LINGERS_S, *rivals])
