"""How many calls of a handler there were, and how long they took, for metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from leasehold.common.clock import Clock
from leasehold.pipeline.histogram import Histogram


class Calls(Protocol):
    """The calls of one lease."""

    in_flight: int

    def parked_keys(self, now: float) -> int: ...


@dataclass(slots=True)
class HandlerStats:
    """The calls of one handler in this process, over all partitions. retries: failed calls that were repeated."""

    clock: Clock
    retries: int = 0
    seconds: Histogram = field(default_factory=Histogram)
    """Durations of calls, whatever their outcomes."""
    calls: list[Calls] = field(default_factory=list)
    """The calls of each lease that this host works on."""

    @property
    def in_flight(self) -> int:
        return sum(each.in_flight for each in self.calls)

    @property
    def parked_keys(self) -> int:
        now = self.clock.monotonic()
        return sum(each.parked_keys(now) for each in self.calls)
