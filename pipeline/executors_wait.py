"""A wait for executors of a cluster. It does not count as a failure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutorsWait:
    """for_s: how long it has lasted. why: what runs no task, and what to look at."""

    for_s: float
    why: str
