"""The intervals of a group of hosts. All follow from how long a host may be silent."""

from __future__ import annotations

from dataclasses import dataclass, replace

from leasehold.common.clock import Backoff
from leasehold.leases.expiry import Intervals

LASTS_S = 7.0
"""How long a host may be silent by default. docs/decisions/0021 has the reasons for this and for the four shares below."""
BEAT, LOOK, MARGIN, CALL = (each / LASTS_S for each in (2.88, 2.4, 0.5, 1.6))
LASTS_S_MAX = 60.0
"""The longest duration of a slow host. A setting that is longer stays as it is."""
SLOW, QUICK = 1 / 4, 1 / 10
"""A beat that takes the first share of the duration doubles it. CALM_S without a beat that takes the second share halve it."""
CALM_S = 60.0
DURATION_S_MAX = 3600.0
"""The longest duration that a document may name."""
LISTED_S_PER_LEASE = 0.006
"""Seconds between listings for each lease. A page of 1,000 leases every 6 s costs a host about 10 requests a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All but the last are in seconds.

    duration_s: how long a host may be silent before others take its leases. beat_s, look_s, margin_s, beat_timeout_s and
    judging_s are shares of it.

    balance_s: the longest time between two rounds. call_timeout_s: of a call about leases. handoff_poll_s: the time between
    two rounds while leases are handed over.

    patience_s: how long a host waits for a live owner to answer its request, before it takes the lease.

    audit_s: leases and hosts are read at least this often, even if no host rings. ring_gap_s: the least time between a beat and
    one that rings.

    counted_above: with more leases than this, a host counts them to see whether one was deleted, instead of listing them, if
    the store can count.
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
        """The time between the starts of two beats."""
        return BEAT * self.duration_s

    @property
    def look_s(self) -> float:
        """The time between two looks at the documents of the other hosts."""
        return LOOK * self.duration_s

    @property
    def margin_s(self) -> float:
        """Covers clocks that run at different speeds."""
        return MARGIN * self.duration_s

    @property
    def beat_timeout_s(self) -> float:
        """If a beat is not answered within this time, another attempt begins while the first one still waits."""
        return CALL * self.duration_s

    @property
    def trust_s(self) -> float:
        """How long a beat that has arrived entitles the host to send, counted from the start of the beat."""
        return self.duration_s - self.margin_s

    @property
    def judging_s(self) -> float:
        """How old a host's last beat may be while it judges others.

        In an outage of writes, the host therefore stops judging before it has seen others silent for `duration_s`.
        """
        return self.duration_s - self.beat_s - self.margin_s

    @property
    def retry_s(self) -> float:
        """From the first of several failed beats to the next attempt."""
        return self.beat_s / 16

    @property
    def beat_backoff(self) -> Backoff:
        """The pauses between beats, or looks, that fail in a row."""
        return Backoff(first_s=self.retry_s, max_s=self.beat_s, spread=0.1)

    @property
    def backoff(self) -> Backoff:
        """The pauses between less urgent attempts that fail in a row."""
        return Backoff(first_s=self.handoff_poll_s, max_s=self.balance_s)

    @property
    def looks(self) -> Intervals:
        """The intervals of looks. The grace is long enough for a beat that hung to end, and for another one to be answered."""
        gap_s = 1.5 * self.look_s
        return Intervals(gap_s, max(gap_s, self.call_timeout_s), self.beat_s + 2 * self.beat_timeout_s)

    def rounds(self, listings: int = 1) -> Intervals:
        """The intervals of rounds with this many successive listings, each of which ends within `call_timeout_s`."""
        gap_s = 1.5 * self.balance_s
        return Intervals(gap_s, max(gap_s, self.call_timeout_s * listings), self.balance_s)

    def listed_after_s(self, leases: int) -> float:
        """How long a host may read only what changed before it lists all leases again: changes do not show deletions.

        Longer for many leases, because their listing has many pages. But a deletion by hand must be noticed while hosts may
        still restore the lease as they saw it: for 5 times `patience_s`.
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
