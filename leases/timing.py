"""The intervals of a group of hosts, and the rules between them.

The defaults are those of the .NET change feed processor if it has them (60 s, 17 s, 13 s).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from leasehold.common.clock import Backoff

SESSION_S_MAX = 3600
"""The longest session that a document may ask for: others wait that long before they take the host for dead."""
LATE = 1.25
"""A heartbeat that is so much later than it should be is not taken for an outage: a busy machine is late at times."""
LISTED_S_PER_LEASE = 0.006
"""A page of 1,000 leases each 6 s, on average, costs a host about 10 requests a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTiming:
    """How hosts show that they live, if each has a session (docs/protocol.md, Sessions). All in seconds.

    duration_s: a session that has not moved for so long has expired.

    beat_s: between the starts of two heartbeats. ring_gap_s: between a heartbeat and one that rings.

    look_s: between two looks at the sessions of the others.

    audit_s: leases and hosts are read at least this often, although no host rang.

    listing_timeout_s: within which a listing of the store ends.

    counted_above: more leases than this are counted to see whether one was deleted, and not listed, if the store can.
    """

    duration_s: float = 7.0
    beat_s: float = 2.88
    look_s: float = 2.4
    margin_s: float = 0.5
    call_timeout_s: float = 1.5
    ring_gap_s: float = 0.25
    audit_s: float = 60.0
    listing_timeout_s: float = 5.0
    counted_above: int = 1000

    @property
    def grace_s(self) -> float:
        """After an outage: a heartbeat that hung has ended by then, and another one has been tried and answered."""
        return self.beat_s + 2 * self.call_timeout_s

    @property
    def trust_s(self) -> float:
        """How long a successful heartbeat, counted from its start, entitles the host to send."""
        return self.duration_s - self.margin_s

    @property
    def judging_s(self) -> float:
        """How old a host's last successful heartbeat may be while it judges others.

        In an outage of writes, others are then seen to be silent for less than `duration_s`.
        """
        return self.duration_s - self.beat_s - self.margin_s

    @property
    def retry_s(self) -> float:
        """From a failed heartbeat to the next."""
        return self.beat_s / 16

    @property
    def backoff(self) -> Backoff:
        """Between heartbeats, and between looks, that fail in a row."""
        return Backoff(first_s=self.retry_s, max_s=self.beat_s, spread=0.1)

    @property
    def read_gap_max_s(self) -> float:
        """If two looks are further apart than this, there was an outage (or a stopped process) between them."""
        return 1.5 * self.look_s

    def listed_after_s(self, leases: int, lease_duration_s: float) -> float:
        """How long a host may read only what changed before it lists all leases again: changes do not show deletions.

        Less often for many leases, whose listing has many pages. But a lease that was deleted by hand must be noticed while
        hosts may still restore it as they saw it, which is 5 lease durations.
        """
        return min(max(self.audit_s, LISTED_S_PER_LEASE * leases), 4 * lease_duration_s)

    def scan_max_s(self, listings: int) -> float:
        """A look that took longer than this must have been suspended."""
        return max(self.read_gap_max_s, self.listing_timeout_s * listings)

    def problems(self) -> list[str]:
        """What is wrong with these intervals; empty if they fit together."""
        found = [
            f"session {name} is {value:g}, and must be above 0"
            for name in ("duration_s", "beat_s", "look_s", "call_timeout_s", "judging_s")
            if (value := getattr(self, name)) <= 0
        ]
        if self.duration_s > SESSION_S_MAX:
            found.append(f"session duration_s is {self.duration_s:g}, and must be at most {SESSION_S_MAX}")
        if 0 < self.judging_s < LATE * self.beat_s:
            found.append(
                f"two heartbeats may start {self.beat_s:g} s apart, and {self.judging_s:g} s apart count as an outage: beat"
                " more often, or let sessions last longer"
            )
        slow_s = self.beat_s + self.retry_s + 2 * self.call_timeout_s
        if slow_s >= self.trust_s:
            found.append(
                f"a heartbeat that is repeated once may take {slow_s:g} s, which must be below the session's"
                f" duration_s - margin_s = {self.trust_s:g}: beat more often, or let sessions last longer"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All in seconds. session: None if hosts have no sessions, and every lease is kept alive by itself."""

    duration_s: float = 60.0
    renew_s: float = 17.0
    balance_s: float = 13.0
    margin_s: float = 5.0
    call_timeout_s: float = 5.0
    handoff_poll_s: float = 1.0
    session: SessionTiming | None = SessionTiming()

    @property
    def grace_s(self) -> float:
        """After an outage: every owner has tried to renew by then."""
        return self.renew_s

    @property
    def trust_s(self) -> float:
        """How long a successful renewal, counted from its start, entitles an owner to send."""
        return self.duration_s - self.margin_s

    @property
    def backoff(self) -> Backoff:
        """Between attempts at the container, except renewals: held leases are more urgent than leases to take."""
        return Backoff(first_s=self.renew_s / 16, max_s=self.balance_s)

    @property
    def renewal_backoff(self) -> Backoff:
        """Short enough that a lease survives any outage that is shorter than its trust."""
        return Backoff(first_s=self.renew_s / 64, max_s=self.renew_s / 4, spread=0.1)

    @property
    def read_gap_max_s(self) -> float:
        """If two successful scans are further apart than this, there was an outage (or a stopped process) between them."""
        return 1.5 * self.balance_s

    def scan_max_s(self, listings: int) -> float:
        """A scan of so many successive listings that took longer than this must have been suspended, because each
        listing ends within call_timeout_s.

        Any shorter scan counts as time in which the container was read, however long it is: a host with slow scans must
        also detect dead owners.
        """
        return max(self.read_gap_max_s, self.call_timeout_s * listings)

    @property
    def newcomer_slack_s(self) -> float:
        """How much later than others a host may detect expired leases and still take them in time.

        The next scan may be a balance interval away, and a dead owner's lease must be taken within a renew interval of
        its expiry (docs/protocol.md).
        """
        return self.renew_s - self.balance_s

    def problems(self, unset: Collection[str] = ()) -> list[str]:
        """What is wrong with these intervals, each with its remedy; empty if they fit together.

        unset: the names of the intervals that have their default; messages mark them, so that users see which ones they
        set.
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
        return found + ([] if self.session is None else self.session.problems())


def derived_session(duration_s: float, listing_timeout_s: float = 5.0) -> SessionTiming:
    """Intervals that fit a session of this length, in proportion to it."""
    usual = SessionTiming()
    share = duration_s / usual.duration_s
    return SessionTiming(
        duration_s=duration_s,
        beat_s=usual.beat_s * share,
        look_s=usual.look_s * share,
        margin_s=usual.margin_s * share,
        call_timeout_s=usual.call_timeout_s * share,
        ring_gap_s=min(usual.ring_gap_s, usual.ring_gap_s * share),
        audit_s=usual.audit_s * min(1.0, share),
        listing_timeout_s=listing_timeout_s,
    )


def derived_timing(
    duration_s: float = 60.0,
    *,
    renew_s: float | None = None,
    balance_s: float | None = None,
    call_timeout_s: float | None = None,
    margin_s: float | None = None,
    sessions: bool = True,
    session_s: float | None = None,
) -> Timing:
    """Intervals that fit a lease of this length: in proportion to it up to 60 s, and as for 60 s above.

    Given intervals are not changed. balance_s follows renew_s, which bounds it. sessions: whether hosts have any;
    session_s: how long one lasts, by default as long as a lease, but at most as in `SessionTiming`.
    """
    share = min(1.0, duration_s / 60.0)
    renew = 17.0 * share if renew_s is None else renew_s
    timeout_s = min(5.0, duration_s / 6.0) if call_timeout_s is None else call_timeout_s
    lasts_s = session_s or min(SessionTiming().duration_s, duration_s)
    return Timing(
        duration_s=duration_s,
        renew_s=renew,
        balance_s=min(13.0, renew * 13.0 / 17.0) if balance_s is None else balance_s,
        call_timeout_s=timeout_s,
        margin_s=min(5.0, duration_s / 12.0) if margin_s is None else margin_s,
        session=derived_session(lasts_s, timeout_s) if sessions else None,
    )
