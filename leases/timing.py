"""The intervals of a group of hosts, and the rules between them.

Defaults are those of the .NET change feed processor where it has them (60 s, 17 s, 13 s).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

# How long to wait before something that failed is tried again. Pure: the caller draws the jitter and sleeps.
#
# Whoever shares a container has to back off together: a listing that is refused at its last page has cost as much as one that
# succeeded, so retries at a constant pace can keep a throttled container throttled for ever.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All in seconds.

    duration_s: a lease whose owner's tick stood still this long is expired.
    renew_s: the longest time between two writes of an owner to its lease.
    balance_s: the longest time between two scans of the container.
    margin_s: how much earlier than expiry an owner stops trusting its lease; it covers clocks that run at different rates.
    call_timeout_s: within which every store call ends.
    handoff_poll_s: how often a host that asked for leases looks whether they were released.
    """

    duration_s: float = 60.0
    renew_s: float = 17.0
    balance_s: float = 13.0
    margin_s: float = 5.0
    call_timeout_s: float = 5.0
    handoff_poll_s: float = 1.0

    @property
    def trust_s(self) -> float:
        """How long a successful renewal, counted from its start, entitles an owner to send."""
        return self.duration_s - self.margin_s

    @property
    def backoff(self) -> Backoff:
        """Between attempts at the container, for all but renewals: a lease that is held is more urgent than what may be taken."""
        return Backoff(first_s=self.renew_s / 16, max_s=self.balance_s)

    @property
    def renewal_backoff(self) -> Backoff:
        """Short enough that a lease survives any outage that is shorter than its trust."""
        return Backoff(first_s=self.renew_s / 64, max_s=self.renew_s / 4, spread=0.1)

    @property
    def read_gap_max_s(self) -> float:
        """Two successful scans further apart than this had an outage (or a stopped process) between them."""
        return 1.5 * self.balance_s

    def scan_max_s(self, listings: int) -> float:
        """A scan with so many listings one after another that took longer than this slept in between: each of them ends within
        call_timeout_s. Whatever is shorter counts as time in which the container was read, however long that is: a host whose
        scans are slow must see dead owners too."""
        return max(self.read_gap_max_s, self.call_timeout_s * listings)

    @property
    def newcomer_slack_s(self) -> float:
        """How much later than others a host may see what expires, and still take it in time: a scan may be a balance interval
        away, and a dead owner's lease is promised to be taken within a renew interval of its expiry (docs/protocol.md)."""
        return self.renew_s - self.balance_s

    def problems(self, unset: Collection[str] = ()) -> list[str]:
        """What is wrong with these intervals, each with its remedy; empty if they fit together.

        unset: the names of those that have their default; the messages mark them, so that the others are seen to be set.
        """
        found = [
            f"{name} is {value:g}, and must be above 0"
            for name in ("duration_s", "renew_s", "balance_s", "call_timeout_s", "handoff_poll_s")
            if (value := getattr(self, name)) <= 0
        ]
        if self.margin_s < 0:
            found.append(f"margin_s is {self.margin_s:g}, and must not be negative")

        def shown(name: str) -> str:
            return f"{name} = {getattr(self, name):g}{' by default' if name in unset else ''}"

        if self.renew_s + self.call_timeout_s >= self.trust_s:
            found.append(
                f"renew_s + call_timeout_s is {self.renew_s + self.call_timeout_s:g}, and must be below duration_s - margin_s"
                f" = {self.trust_s:g}, or one slow renewal would lose the lease: renew more often, or let leases last longer"
                f" ({', '.join(map(shown, ('duration_s', 'renew_s', 'call_timeout_s', 'margin_s')))})"
            )
        if self.balance_s > self.renew_s:
            found.append(
                f"{shown('balance_s')} is above {shown('renew_s')}, so a dead owner's lease would be taken too late: scan at"
                " least as often as owners renew"
            )
        return found


def derived_timing(
    duration_s: float = 60.0,
    *,
    renew_s: float | None = None,
    balance_s: float | None = None,
    call_timeout_s: float | None = None,
    margin_s: float | None = None,
) -> Timing:
    """Intervals that fit a lease of this length: up to 60 s in proportion to it, above as for 60 s.

    What is given stays as it is. balance_s follows renew_s, which bounds it.
    """
    share = min(1.0, duration_s / 60.0)
    renew = 17.0 * share if renew_s is None else renew_s
    return Timing(
        duration_s=duration_s,
        renew_s=renew,
        balance_s=min(13.0, renew * 13.0 / 17.0) if balance_s is None else balance_s,
        call_timeout_s=min(5.0, duration_s / 6.0) if call_timeout_s is None else call_timeout_s,
        margin_s=min(5.0, duration_s / 12.0) if margin_s is None else margin_s,
    )
