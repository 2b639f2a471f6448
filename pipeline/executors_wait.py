"""How long jobs have waited for executors. Spark's start imports this module, so it imports nothing that processes data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutorsWait:
    """A wait for executors of a cluster. for_s: how long it has lasted. why: which cluster runs no task, and what to check."""

    for_s: float
    why: str
