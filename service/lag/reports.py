"""What owners report of their partitions with each heartbeat: how long the oldest event has waited, one figure per pipeline.

The figure is the maximum over all partitions of the pipeline that the host works on, so its document stays small. For each
partition, a reader takes the smaller of this figure and of what the lease shows. The maximum of these is the owner's again.

    session.report = lambda: encoded_waits(waits, leases)       what the owner writes into its session
    reports.note(records, at=began)                             sessions, as they were just read
    reports.find(leases)                                        the owner's report for each partition that has one

A report counts only for the very leases that the owner had: a fingerprint of these shows whether they are still the same.
It counts only if this process has seen it replace an earlier one: a dead host's session does not show when it was written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from zlib import crc32

from leasehold.common.clock import Clock
from leasehold.leases.host_record import HostRecord, Tenant
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.service.lag.measurement import PartitionLag

OVERDUE_S = 1.0
"""A heartbeat that is this late counts as missed."""
KEPT_S = 60.0
"""A session that was not read for this long is forgotten."""
STALLED_S = 5.0
"""If a lease still shows a higher age than its owner this long after a checkpoint was due, its owner is not reading the feed."""
APART_S = 1.0
"""How far a report may be below the age that the lease shows without contradicting it."""


@dataclass(frozen=True, slots=True)
class OwnerReport:
    """waited_s: how long the oldest event in all of the owner's partitions had waited. age_s: since the report was seen.

    beat_s: how often the owner reports. is_overdue: the next report is missing, so the owner may be dead.
    """

    waited_s: float
    age_s: float
    beat_s: float
    is_overdue: bool

    @property
    def seconds(self) -> float:
        """The wait as of now. An event that had waited for longer than a heartbeat still waits, as far as is known. So do all
        events of an owner that may be dead."""
        is_waiting = self.is_overdue or self.waited_s > self.beat_s
        return self.waited_s + (self.age_s if is_waiting else 0.0)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A session. since: when this version of it was first seen. read: when it was last read (Clock).

    has_moved: whether it was seen to replace an earlier version.
    """

    record: HostRecord
    since: float
    read: float
    has_moved: bool


class OwnerReports:
    """The owners' reports, as one process has seen them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[Tenant, _Seen] = {}
        self._apart: dict[LeaseKey, tuple[str | None, float]] = {}
        """Partitions whose lease shows a higher age than their owner: the position, and since when (Clock)."""

    def note(self, records: Iterable[HostRecord], *, at: float) -> None:
        """Note sessions that were read. at: when reading them began (Clock)."""
        for record in records:
            seen = self._seen.get(record.tenant)
            if seen is None or record.tick > seen.record.tick:
                self._seen[record.tenant] = _Seen(record, at, at, has_moved=seen is not None)
            elif record.tick == seen.record.tick and at > seen.read:
                self._seen[record.tenant] = replace(seen, read=at)
        now = self._clock.monotonic()
        self._seen = {tenant: seen for tenant, seen in self._seen.items() if now - seen.read <= KEPT_S}

    def find(self, leases: Iterable[Lease]) -> dict[LeaseKey, OwnerReport]:
        """The owner's report for each partition that has one. leases: all of each pipeline."""
        held: dict[tuple[Tenant, str], list[Lease]] = {}
        for lease in leases:
            if lease.owner is not None and lease.incarnation is not None and not lease.closed:
                held.setdefault(((lease.owner, lease.incarnation), lease.pipeline), []).append(lease)
        found: dict[LeaseKey, OwnerReport] = {}
        for (tenant, pipeline), theirs in held.items():
            if (seen := self._seen.get(tenant)) is not None and seen.has_moved:
                waited_s = _decoded_wait(seen.record.waits.get(pipeline), theirs)
                if waited_s is not None:
                    found.update(dict.fromkeys((lease.key for lease in theirs), self._report(seen, waited_s)))
        return found

    def find_stalled(
        self, measured: Iterable[PartitionLag], reports: Mapping[LeaseKey, OwnerReport], lag_s: Mapping[str, float]
    ) -> frozenset[LeaseKey]:
        """Partitions whose owner has reported a lower age than the feed for longer than its checkpoint may take.

        lag_s: by pipeline, how far a lease may be behind what is delivered.
        """
        now, apart = self._clock.monotonic(), {}
        for one in measured:
            report = reports.get(one.key)
            if report is None or not one.events or one.waited_s is None:
                continue
            if one.waited_s + one.age_s + one.early_s > report.seconds + APART_S:
                position, since = self._apart.get(one.key, (one.position, now))
                apart[one.key] = (one.position, since if position == one.position else now)
        self._apart = apart
        return frozenset(key for key, (_, since) in apart.items() if now - since > lag_s[key.pipeline] + STALLED_S)

    def _report(self, seen: _Seen, waited_s: float) -> OwnerReport:
        return OwnerReport(
            waited_s,
            max(0.0, self._clock.monotonic() - seen.since),
            seen.record.beat_s,
            is_overdue=seen.read - seen.since > seen.record.beat_s + OVERDUE_S,
        )


def encoded_waits(
    waits: Mapping[LeaseKey, float | None], leases: Mapping[LeaseKey, Lease]
) -> dict[str, tuple[float, int]]:
    """For a session document: by pipeline, the longest wait, and the fingerprint of all leases that the host works on.

    waits: None if unknown; then the pipeline is left out. Pure.
    """
    found: dict[str, tuple[float, int]] = {}
    for pipeline in sorted({key.pipeline for key in leases}):
        mine = [lease for key, lease in leases.items() if key.pipeline == pipeline]
        known = [waited_s for lease in mine if (waited_s := waits.get(lease.key)) is not None]
        if len(known) == len(mine):
            found[pipeline] = (round(max(known), 3), fingerprint_of(mine))
    return found


def fingerprint_of(leases: Collection[Lease]) -> int:
    """A number that changes with the leases that a host has, and with each change of their owner or generation.

    Checkpoints do not change it.
    """
    each = sorted(f"{lease.partition}\0{lease.epoch}\0{lease.generation}" for lease in leases)
    return crc32("\0\0".join(each).encode("utf-8", "surrogatepass"))


def _decoded_wait(entry: object, leases: Collection[Lease]) -> float | None:
    """The reported wait; None if the entry is not about exactly these leases, or cannot be trusted."""
    if not isinstance(entry, list | tuple) or len(entry) != 2:
        return None
    waited_s, fingerprint = entry
    if isinstance(waited_s, bool) or not isinstance(waited_s, int | float) or not isfinite(waited_s) or waited_s < 0:
        return None
    return float(waited_s) if fingerprint == fingerprint_of(leases) else None
