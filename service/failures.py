"""Partitions that failed here: each is left alone for a while, and then tried again, because the cause may be gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.clock import Backoff, Clock
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.service.errors import BatchHung
from leasehold.service.texts import described

HOLD_OFF = Backoff(first_s=1.0, max_s=60.0)
"""A failed partition is left alone for 1 s, then 2, 4, ... up to `max_s`. If its batch hung, the first pause is the longest: each
try takes minutes, and a host that tried again within a duration would keep the lease from the others."""
LEFT_TO_OTHERS = Backoff(first_s=60.0, max_s=1800.0)
"""How long a lease that failed here is left to another host that works on it: longer after each request for it."""
QUIET_FIRST_S = 2.0
"""How long a repeated failure is not logged again; then twice as long, and so on."""

Verdict = Literal["failing", "recovered", "over"]
"""over: the partition is not known to work again, but this host has nothing more to report about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The last failure of a partition that has not recovered since. Times are Clock seconds.

    count: failures in a row. since: when the first of them happened; at: when the last one did.
    until: when this host tries again.
    position: the lease's continuation at the last failure. If it changes, the partition has moved.
    is_retried: the worker still runs, keeps the lease, and tries again.
    """

    error: Exception
    count: int
    since: float
    at: float
    until: float
    position: str | None
    is_retried: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Failures that ended workers of a partition, which released the lease, since a worker here last delivered.

    Progress on another host does not end this: it shows that the fault is here. Times are Clock seconds.

    - count: how many. since: when the first happened; at: when the last one did.
    - until: when this host may take the lease again, if no host works on it.
    - requests: how often this host has since requested the lease from another.
    """

    count: int
    since: float
    at: float
    until: float
    requests: int

    @property
    def left_until(self) -> float:
        """When this host may request the lease from another."""
        return self.at + LEFT_TO_OTHERS.pause_s(self.requests + 1, 0.0)


class Streak:
    """Failures in a row of something that is tried again until it works.

    - `count`: how many.

    The first one is logged, and then one per interval, which doubles each time. Something that fails for an hour may be tried
    every second for each lease, and the log may be on the disk that is full.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.count = 0
        self._since = 0.0
        self._quiet_until = 0.0

    def count_failure(self) -> bool:
        """Count another failure. Returns whether it has to be logged."""
        now = self._clock.monotonic()
        if not self.count:
            self._since = self._quiet_until = now
        self.count += 1
        if now < self._quiet_until:
            return False
        self._quiet_until = now + max(QUIET_FIRST_S, now - self._since)
        return True

    def log_failure(self, log: Log, event: str, error: BaseException | str, **about: object) -> None:
        """Count another failure, and log it unless one was logged a moment ago. error: an exception is logged with its class.

        about: more fields to log.
        """
        if self.count_failure():
            text = error if isinstance(error, str) else described(error)
            log.warning(event, **about, error=text, attempt=self.count)

    def log_end(self, log: Log, event: str, **about: object) -> None:
        """Note a success. Log the recovery if there were failures before."""
        if (fields := self.end()) is not None:
            log.info(event, **about, **fields)

    def end(self) -> dict[str, object] | None:
        """Note a success. Returns what to log about the failures before; None if there were none."""
        count, self.count = self.count, 0
        return recovery_fields(count, self._clock.monotonic() - self._since) if count else None


def recovery_fields(count: int, for_s: float) -> dict[str, object]:
    """The fields of every log line about a recovery."""
    return {"after_attempts": count, "failing_for_s": round(for_s, 1)}


class Failures(Mapping[LeaseKey, Failure]):
    """The last failure of every partition that has not recovered since."""

    def __init__(
        self,
        clock: Clock,
        recovered: Callable[[LeaseKey, Failure, dict[str, object]], None] = lambda key, failure, fields: None,
        failed: Callable[[LeaseKey, Failure], None] = lambda key, failure: None,
    ) -> None:
        """recovered: called once for each partition that works again, with its last failure and the fields to log.
        failed: called after each failure."""
        self._clock = clock
        self._recovered = recovered
        self._failed = failed
        self._last: dict[LeaseKey, Failure] = {}
        self.ended: dict[LeaseKey, Ended] = {}

    def __getitem__(self, key: LeaseKey) -> Failure:
        return self._last[key]

    def __iter__(self) -> Iterator[LeaseKey]:
        return iter(self._last)

    def __len__(self) -> int:
        return len(self._last)

    @property
    def held_off(self) -> list[LeaseKey]:
        """The partitions that must not be tried yet."""
        return [key for key in {**self._last, **self.ended} if self.holds_off(key)]

    def holds_off(self, key: LeaseKey) -> bool:
        failure, ended = self._last.get(key), self.ended.get(key)
        until = max(
            -inf if failure is None or failure.is_retried else failure.until, -inf if ended is None else ended.until
        )
        return self._clock.monotonic() < until

    def record_failure(self, key: LeaseKey, error: Exception, position: str | None = None) -> None:
        """The partition's worker failed and ended. Leave the partition alone for twice as long as last time, or for the longest
        pause if its batch hung."""
        now, known = self._clock.monotonic(), self.ended.get(key)
        count, since, requests = (known.count, known.since, known.requests) if known else (0, now, 0)
        pause_s = HOLD_OFF.max_s if isinstance(error, BatchHung) else HOLD_OFF.pause_s(count + 1, 0.0)
        self.ended[key] = Ended(count=count + 1, since=since, at=now, until=now + pause_s, requests=requests)
        self._keep(key, error, pause_s, position, counts=1)

    def note_request(self, key: LeaseKey) -> None:
        """Count a request of this host for the lease of another."""
        if (known := self.ended.get(key)) is not None:
            self.ended[key] = replace(known, requests=known.requests + 1)

    def record_retry(self, key: LeaseKey, error: Exception, pause_s: float, position: str | None) -> None:
        """The partition's worker continues, and tries again after pause_s."""
        self._keep(key, error, pause_s, position, counts=1, is_retried=True)

    def would_fail(self, key: LeaseKey, error: Exception, position: str | None = None) -> None:
        """The partition was not tried, because that would be in vain. Leave it alone for the longest pause."""
        self._keep(key, error, HOLD_OFF.max_s, position, counts=0 if key in self._last else 1)

    def record_recovery(self, key: LeaseKey, *, by: str | None = None) -> None:
        """The partition works again. by: the other host where it works, if it is not this one."""
        failure = self._last.pop(key, None)
        if by is None:
            self.ended.pop(key, None)
        if failure is not None:
            fields = recovery_fields(failure.count, self._clock.monotonic() - failure.since)
            self._recovered(key, failure, fields if by is None else {**fields, "by": by})

    def forget(self, key: LeaseKey) -> None:
        """The partition is no longer this host's to report, whether it works or not."""
        self._last.pop(key, None)
        self.ended.pop(key, None)

    def _keep(
        self,
        key: LeaseKey,
        error: Exception,
        pause_s: float,
        position: str | None,
        *,
        counts: int,
        is_retried: bool = False,
    ) -> None:
        now, known = self._clock.monotonic(), self._last.get(key)
        self._last[key] = Failure(
            error=error,
            count=(known.count if known else 0) + counts,
            since=known.since if known else now,
            at=now,
            until=now + pause_s,
            position=position,
            is_retried=is_retried,
        )
        if counts:
            self._failed(key, self._last[key])


def verdict(failure: Failure, lease: Lease | None, me: str, *, now: float, grace_s: float, is_idle: bool) -> Verdict:
    """What a scan that began after the failure shows about it.

    - `lease`: as in the scan; None if it no longer exists.
    - `is_idle`: this host's worker has had nothing to do for a while.
    - `grace_s`: how long after `until` a failure is kept while another host, which may fail as well, has the lease.
    """
    if lease is None or lease.closed:
        return "over"
    if lease.owner == me:
        return "recovered" if is_idle else "failing"
    has_moved = lease.continuation != failure.position
    if lease.owner is None:
        return "over" if has_moved else "failing"  # another host made progress, or an operator moved the position
    if has_moved:
        return "recovered"
    return "over" if now >= failure.until + grace_s else "failing"
