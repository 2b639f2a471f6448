"""How many entries may be on their way to a destination; each answer changes that. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self

from leasehold.common.clock import Backoff


class RateLimiting(Protocol):
    """The rate of one partition, as a value: each method returns the next one. FLIP-171 calls it a RateLimitingStrategy.

    now, sent_at: seconds, by one clock. retry_after_s: the pause that the destination asks for.
    """

    @property
    def entries(self) -> int:
        """The limit of entries in flight; at least 1. It also limits the entries of one request."""
        ...

    @property
    def paused_until(self) -> float:
        """Nothing is sent before this time."""
        ...

    @property
    def failures(self) -> int:
        """Rounds since the last success in which requests failed as a whole; each draws its own `jitter`. 0 if not counted."""
        ...

    def succeeded(self) -> Self:
        """All of a request was taken, or what failed did so for reasons of its own."""
        ...

    def throttled(self, *, now: float, sent_at: float, retry_after_s: float | None) -> Self:
        """Some entries failed, and others did not."""
        ...

    def failed(self, *, now: float, sent_at: float, retry_after_s: float | None, jitter: float) -> Self:
        """All of a request failed. jitter: 0 to 1, so that not all partitions retry at the same time."""
        ...


INCREASE = 10
DECREASE = 0.5
BACKOFF = Backoff(first_s=0.1, max_s=5.0)
RETRY_AFTER_MAX_S = 300.0
"""The longest pause, even if a destination wants a longer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimiter:
    """How many entries may be on their way: ten more after every request that succeeds, half as many after one that does not.

    Additive increase, multiplicative decrease, as in FLIP-171 and TCP: senders that do not know each other share the capacity of
    a destination, and adapt when it changes. Requests that were on their way when the limit was halved show nothing new, and do
    not halve it again. If the destination names a time, nothing is sent before it.
    """

    entries_max: int
    entries: int
    """The limit of entries in flight; it grows up to `entries_max`."""
    paused_until: float = 0.0
    """Nothing is sent before this time."""
    failures: int = 0
    """Rounds since the last success in which requests failed as a whole."""
    changed_at: float = -1.0
    """When the limit was halved last."""

    def succeeded(self) -> RateLimiter:
        return replace(self, entries=min(self.entries_max, self.entries + INCREASE), failures=0)

    def throttled(self, *, now: float, sent_at: float, retry_after_s: float | None) -> RateLimiter:
        """Some entries failed, and others did not."""
        return _pausing(replace(self._halved(now, sent_at), failures=0), now, retry_after_s or 0.0)

    def failed(self, *, now: float, sent_at: float, retry_after_s: float | None, jitter: float) -> RateLimiter:
        """All of a request failed. jitter: 0 to 1, so that not all partitions retry at the same time."""
        if sent_at <= self.changed_at:
            return _pausing(self, now, retry_after_s or 0.0)
        halved = replace(self._halved(now, sent_at), failures=self.failures + 1)
        return _pausing(halved, now, BACKOFF.pause_s(halved.failures, jitter, retry_after_s or 0.0))

    def _halved(self, now: float, sent_at: float) -> RateLimiter:
        if sent_at <= self.changed_at:
            return self
        return replace(self, entries=max(1, int(self.entries * DECREASE)), changed_at=now)


def _pausing(limiter: RateLimiter, now: float, seconds: float) -> RateLimiter:
    return replace(limiter, paused_until=max(limiter.paused_until, now + min(seconds, RETRY_AFTER_MAX_S)))
