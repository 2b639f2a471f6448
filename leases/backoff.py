"""How long to wait before something that failed is tried again. Pure: the caller draws the jitter and sleeps.

Whoever shares a container has to back off together: a listing that is refused at its last page has cost as much as one that
succeeded, so retries at a constant pace can keep a throttled container throttled for ever.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses in seconds: `first_s`, then twice as long after each failure, up to `max_s`.

    spread: the share of a pause (0..1) that jitter may take off, so that hosts that failed together do not return together.
    """

    first_s: float
    max_s: float
    spread: float = 0.5

    def pause_s(self, failures: int, jitter: float, at_least_s: float = 0.0) -> float:
        """failures: in a row, from 1. jitter: 0..1. at_least_s: what the service wants; it is never undercut."""
        grown = min(self.first_s * 2.0 ** min(failures - 1, 32), self.max_s)
        return max(grown * (1 - self.spread * jitter), at_least_s)


def retry_after_s(error: BaseException) -> float:
    """How long the service that refused wants to be left alone; 0 if it did not say."""
    return getattr(error, "retry_after_s", None) or 0.0
