"""How long jobs have waited for executors, without what processes data: Spark's start imports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutorsWait:
    """A wait for executors of a cluster. for_s: how long it has lasted. why: what runs no task, and what to look at."""

    for_s: float
    why: str
