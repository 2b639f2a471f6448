"""The intervals of a group of hosts. All follow from how long a host may be silent."""

from __future__ import annotations

from dataclasses import dataclass, replace

from leasehold.common.clock import Backoff
from leasehold.leases.expiry import Intervals

LASTS_S = 7.0
"""By default, a host may be silent for so long. docs/decisions/0021 has the reasons for this and the four shares."""
BEAT, LOOK, MARGIN, CALL = (each / LASTS_S for each in (2.88, 2.4, 0.5, 1.6))
LASTS_S_MAX = 60.0
"""How long a host that is slow may ask others to wait; one whose setting is longer asks for its setting."""
SLOW, QUICK = 1 / 4, 1 / 10
"""A host lasts longer once a beat took the first share of its duration, and shorter after CALM_S in which none took the other."""
CALM_S = 60.0
DURATION_S_MAX = 3600.0
"""The longest duration that a document may ask for."""
LISTED_S_PER_LEASE = 0.006
"""A page of 1,000 leases each 6 s, on average, costs a host about 10 requests a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All in seconds.

    duration_s: how long a host may be silent before others take its leases. beat_s, look_s, margin_s, beat_timeout_s and
    judging_s are shares of it.

    balance_s: the longest time between two rounds. call_timeout_s: of a call about leases. handoff_poll_s: between two rounds
    while leases are handed over.

    patience_s: how long a host waits for an owner that lives to answer its request, before it takes the lease.

    audit_s: leases and hosts are read at least this often, although no host rang. ring_gap_s: between a beat and one that rings.

    counted_above: more leases than this are counted to see whether one was deleted, and not listed, if the store can.
    """

    duration_s: float = LASTS_S
    balance_s: float = 13.0
    call_timeout_s: float = 5.0
    handoff_poll_s: float = 1.0
    patience_s: float = 60.0
    audit_s: float = 60.0
    ring_gap_s: float = 0.25
    counted_above: int = 1000

    def lasting(self, duration_s: float) -> Timing:
        return self if duration_s == self.duration_s else replace(self, duration_s=duration_s)

    @property
    def beat_s(self) -> float:
        """Between the starts of two beats."""
        return BEAT * self.duration_s

    @property
    def look_s(self) -> float:
        """Between two looks at the documents of the other hosts."""
        return LOOK * self.duration_s

    @property
    def margin_s(self) -> float:
        """It covers clocks of different speed."""
        return MARGIN * self.duration_s

    @property
    def beat_timeout_s(self) -> float:
        """A beat that is not answered by then is tried again beside it."""
        return CALL * self.duration_s

    @property
    def trust_s(self) -> float:
        """How long a beat that has arrived, counted from its start, entitles the host to send."""
        return self.duration_s - self.margin_s

    @property
    def judging_s(self) -> float:
        """How old a host's last beat may be while it judges others.

        In an outage of writes, others are then seen to be silent for less than `duration_s`.
        """
        return self.duration_s - self.beat_s - self.margin_s

    @property
    def retry_s(self) -> float:
        """From a failed beat to the next."""
        return self.beat_s / 16

    @property
    def beat_backoff(self) -> Backoff:
        """Between beats, and between looks, that fail in a row."""
        return Backoff(first_s=self.retry_s, max_s=self.beat_s, spread=0.1)

    @property
    def backoff(self) -> Backoff:
        """Between attempts at the lease store that are less urgent."""
        return Backoff(first_s=self.handoff_poll_s, max_s=self.balance_s)

    @property
    def looks(self) -> Intervals:
        """Between looks. By the end of the grace, a beat that hung has ended, and another one has been answered."""
        gap_s = 1.5 * self.look_s
        return Intervals(gap_s, max(gap_s, self.call_timeout_s), self.beat_s + 2 * self.beat_timeout_s)

    def rounds(self, listings: int = 1) -> Intervals:
        """Between rounds with so many successive listings, each of which ends within `call_timeout_s`."""
        gap_s = 1.5 * self.balance_s
        return Intervals(gap_s, max(gap_s, self.call_timeout_s * listings), self.balance_s)

    def listed_after_s(self, leases: int) -> float:
        """How long a host may read only what changed before it lists all leases again: changes do not show deletions.

        Less often for many leases, whose listing has many pages. But a lease that was deleted by hand must be noticed while
        hosts may still restore it as they saw it, which is 5 times `patience_s`.
        """
        return min(max(self.audit_s, LISTED_S_PER_LEASE * leases), 4 * self.patience_s)

    def problems(self) -> list[str]:
        """What is wrong with these intervals; empty if they fit together."""
        return [
            f"{name} is {value:g}, and must be above 0"
            for name in ("duration_s", "balance_s", "call_timeout_s", "handoff_poll_s")
            if (value := getattr(self, name)) <= 0
        ]


def derived_timing(
    duration_s: float = LASTS_S, *, balance_s: float | None = None, call_timeout_s: float | None = None
) -> Timing:
    """Intervals that fit hosts of this duration: in proportion to it up to 7 s. Given intervals are not changed."""
    usual = Timing()
    share = min(1.0, duration_s / LASTS_S)
    return Timing(
        duration_s=duration_s,
        balance_s=usual.balance_s * share if balance_s is None else balance_s,
        call_timeout_s=usual.call_timeout_s * share if call_timeout_s is None else call_timeout_s,
        patience_s=usual.patience_s * share,
        audit_s=usual.audit_s * share,
        ring_gap_s=usual.ring_gap_s * share,
    )
