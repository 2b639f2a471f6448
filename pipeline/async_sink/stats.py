"""Counts of an asynchronous sink's requests, for metrics."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol


class Requests(Protocol):
    """The requests of one lease."""

    throttled: int
    queued_again: int
    in_flight: int

    @property
    def limit(self) -> int: ...


class RequestStats:
    """The requests of one sink in this process, over all partitions. Counters do not fall when a lease moves."""

    def __init__(self) -> None:
        self._open: list[Requests] = []
        self._throttled = self._queued_again = 0

    def open(self, requests: Requests) -> None:
        self._open.append(requests)

    def close(self, requests: Requests) -> None:
        with suppress(ValueError):  # closed before
            self._open.remove(requests)
            self._throttled += requests.throttled
            self._queued_again += requests.queued_again

    @property
    def in_flight(self) -> int:
        """Entries in flight."""
        return sum(each.in_flight for each in self._open)

    @property
    def limit(self) -> int:
        """The present limit of entries in flight."""
        return sum(each.limit for each in self._open)

    @property
    def throttled(self) -> int:
        """Requests after which the rate was lowered."""
        return self._throttled + sum(each.throttled for each in self._open)

    @property
    def queued_again(self) -> int:
        """Entries that failed, and are sent again."""
        return self._queued_again + sum(each.queued_again for each in self._open)
