"""How many entries may be on their way: ten more for every request that succeeds, half as many where one does not. Pure.

Additive increase, multiplicative decrease, as in FLIP-171 and TCP: senders that know nothing of each other share what a
destination takes, and find it again after it changed. Requests that were on their way when the limit was halved say nothing
new, and do not halve it again. Where the destination says when to come back, nothing is sent before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

INCREASE = 10
DECREASE = 0.5
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 5.0
RETRY_AFTER_MAX_S = 300.0
"""A destination that asks for more is asked again after this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limiter:
    """entries: the limit, in entries on their way; entries_max: where it stops growing.

    paused_until: nothing is sent before. failures: rounds since the last success in which requests failed as a whole.
    changed_at: when the limit was halved last.
    """

    entries_max: int
    entries: int
    paused_until: float = 0.0
    failures: int = 0
    changed_at: float = -1.0

    def succeeded(self) -> Limiter:
        return replace(self, entries=min(self.entries_max, self.entries + INCREASE), failures=0)

    def throttled(self, *, now: float, sent_at: float, retry_after_s: float | None) -> Limiter:
        """Some entries failed, and others did not."""
        return _pausing(replace(self._halved(now, sent_at), failures=0), now, retry_after_s or 0.0)

    def failed(self, *, now: float, sent_at: float, retry_after_s: float | None, spread: float) -> Limiter:
        """All of a request failed. spread: 0.5 to 1, what part of the pause is taken, so that not all come back at once."""
        if sent_at <= self.changed_at:
            return _pausing(self, now, retry_after_s or 0.0)
        grown = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(self.failures, 16)) * spread
        halved = replace(self._halved(now, sent_at), failures=self.failures + 1)
        return _pausing(halved, now, max(grown, retry_after_s or 0.0))

    def _halved(self, now: float, sent_at: float) -> Limiter:
        if sent_at <= self.changed_at:
            return self
        return replace(self, entries=max(1, int(self.entries * DECREASE)), changed_at=now)


def _pausing(limiter: Limiter, now: float, seconds: float) -> Limiter:
    return replace(limiter, paused_until=max(limiter.paused_until, now + min(seconds, RETRY_AFTER_MAX_S)))
