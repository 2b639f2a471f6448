"""What the logs of hosts show about handoffs, what an outage of their lease store did, and which bounds that breaks."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Any, TypeAlias

from leasehold.leases.lease import Lease
from leasehold.leases.timing import Timing

HANDOFF_S = 0.2
"""The promise: half of the handoffs take at most so long."""
LEAVES, ASKS = "a host leaves", "a host asks for its share"
BEGINNINGS = {"host draining": LEAVES, "handoff requested": ASKS}
"""What begins a handoff, in the logs."""
LOAD_SHARE_MIN = 0.9
"""Of the events that were asked for; with fewer, the machine was too busy to show anything."""
WORKS_AT_LEAST_S = Timing().trust_s - Timing().beat_s - Timing().beat_timeout_s
"""Without the store. The last heartbeat that was answered began at most so long before the end of its trust."""
WORKS_AT_MOST_S = Timing().duration_s
"""From then on, a host that reached the store could own the lease."""
RESUMES_S = 10.0

Line: TypeAlias = Mapping[str, Any]


def read_lines(text: str) -> Iterator[Line]:
    """A log's lines, with their Unix time in `at`. A host may be writing the last one."""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            found = json.loads(line)
            yield {**found, "at": datetime.fromisoformat(found["time"]).timestamp()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """In seconds since it began: when the lease was acquired, and when the new owner had delivered its first batch."""

    kind: str
    partition: str
    acquired_s: float
    delivered_s: float


def handoffs_in(lines: Iterable[Line]) -> list[Handoff]:
    """lines: of all hosts, from their start on. Only the first batch under the new epoch ends a handoff."""
    found: list[Handoff] = []
    owners: dict[str, tuple[str, int]] = {}
    begun: dict[str, tuple[str, float]] = {}
    acquired: dict[str, float] = {}
    for line in sorted(lines, key=lambda line: line["at"]):
        at, event, partition = line["at"], line["event"], line.get("partition", "")
        if event == "host draining":
            for owned in (name for name, (owner, _) in owners.items() if owner == line["host"]):
                begun.setdefault(owned, (BEGINNINGS[event], at))
        elif event == "handoff requested":
            begun.setdefault(partition, (BEGINNINGS[event], at))
        elif event == "lease acquired":
            owners[partition] = line["host"], line["epoch"]
            if partition in begun:
                acquired[partition] = at
        elif (
            event == "batch delivered" and partition in acquired and owners[partition] == (line["host"], line["epoch"])
        ):
            kind, since = begun.pop(partition)
            acquired_s = acquired.pop(partition) - since
            found.append(Handoff(kind=kind, partition=partition, acquired_s=acquired_s, delivered_s=at - since))
    return found


def batches_in(lines: Iterable[Line]) -> dict[str, list[float]]:
    """Partition -> when its batches were delivered."""
    found = defaultdict(list)
    for line in lines:
        if line["event"] == "batch delivered":
            found[line["partition"]].append(line["at"])
    return dict(found)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    return sorted(values)[max(ceil(share * len(values)), 1) - 1]


def judge_handoffs(handoffs: Sequence[Handoff], at_least: int) -> tuple[list[str], list[str]]:
    """The rows of a table, and which bounds are broken. at_least: how many of each kind have to be measured, 1 or more.

    A host that asks for its share has just started. Its first batch also waits for what its process imports, so there
    the time until it acquires the lease is bounded.
    """
    rows, broken = [f"{'from':27}{'handoffs':>9}{'to':>14}{'median':>11}{'p95':>9}{'longest':>10}"], []
    for kind, bounded in ((LEAVES, "first batch"), (ASKS, "lease acquired")):
        of_kind = [each for each in handoffs if each.kind == kind]
        if len(of_kind) < at_least:
            broken.append(f"{kind}: {len(of_kind)} handoffs were measured, and at least {at_least} are needed")
            continue
        for step, times in (
            ("lease acquired", [each.acquired_s for each in of_kind]),
            ("first batch", [each.delivered_s for each in of_kind]),
        ):
            half_s = quantile(times, 0.5)
            row = f"{kind:27}{len(times):9}{step:>15}{half_s:8.3f} s"
            rows.append(f"{row}{quantile(times, 0.95):7.3f} s{max(times):8.3f} s")
            if step == bounded and half_s > HANDOFF_S:
                broken.append(
                    f"{kind}: half of the handoffs to {step} take {half_s:.3f} s, and {HANDOFF_S:g} s are promised"
                )
    return rows, broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Unix times: the store was killed, its start was ordered, it answered.

    before, after: the leases by partition. batches: when each partition's were delivered.
    written: how many events of each partition there are, numbered from 1; arrived: their numbers, in the order of the sink.
    events_per_s: how many were written in a second, into all partitions together; asked_per_s: how many should have been.
    """

    killed_at: float
    started_at: float
    answered_at: float
    before: Mapping[str, Lease]
    after: Mapping[str, Lease]
    batches: Mapping[str, Sequence[float]]
    written: Mapping[str, int]
    events_per_s: float
    asked_per_s: float
    arrived: Mapping[str, Sequence[int]]

    @property
    def moved(self) -> list[str]:
        """Every acquisition raises the epoch, so a lease that came back to its owner has moved too."""
        names = sorted(self.before.keys() | self.after.keys())
        return [name for name in names if _tenure(self.before.get(name)) != _tenure(self.after.get(name))]

    @property
    def worked_s(self) -> list[float]:
        """How long each partition delivered without the store."""
        return [
            max((at for at in times if self.killed_at <= at < self.started_at), default=self.killed_at) - self.killed_at
            for times in self._times.values()
        ]

    @property
    def resumed_s(self) -> dict[str, float]:
        """How soon each partition delivered once the store answered. Those that did not are missing."""
        later = {name: [at for at in times if at >= self.started_at] for name, times in self._times.items()}
        return {name: max(min(times) - self.answered_at, 0.0) for name, times in later.items() if times}

    @property
    def idle(self) -> list[str]:
        """The partitions that did not resume."""
        return sorted(self.before.keys() - self.resumed_s.keys())

    @property
    def lost(self) -> int:
        return sum(
            len(set(range(1, count + 1)) - {*self.arrived.get(name, ())}) for name, count in self.written.items()
        )

    @property
    def duplicated(self) -> int:
        return sum(len(numbers) - len(set(numbers)) for numbers in self.arrived.values())

    @property
    def disordered(self) -> list[str]:
        return sorted(name for name, numbers in self.arrived.items() if list(numbers) != sorted(numbers))

    @property
    def _times(self) -> dict[str, Sequence[float]]:
        return {name: self.batches.get(name, ()) for name in self.before}


def _tenure(lease: Lease | None) -> tuple[object, ...] | None:
    return None if lease is None else (lease.owner, lease.incarnation, lease.epoch)


def judge_outage(outage: Outage) -> tuple[list[str], list[str]]:
    """The rows of a table, and which bounds are broken."""
    lasted_s, worked, resumed = outage.started_at - outage.killed_at, outage.worked_s, outage.resumed_s.values()
    written = sum(outage.written.values())
    before, after = (Counter(lease.owner for lease in leases.values()) for leases in (outage.before, outage.after))
    rows = [f"{'owners of the leases':27}{'before':>9}{'after':>9}"]
    rows += [f"{owner or 'none':27}{before[owner]:9}{after[owner]:9}" for owner in sorted(before | after, key=str)]
    rows += [
        f"leases that moved in {lasted_s:.0f} s without the database: {len(outage.moved)} of {len(outage.before)}",
        f"partitions delivered until {min(worked):.1f} to {max(worked):.1f} s after the kill",
        f"after it answered, work resumed in {min(resumed, default=0):.2f} s to {max(resumed, default=0):.2f} s",
        f"events written {written} ({outage.events_per_s:.0f}/s), lost {outage.lost}, duplicated {outage.duplicated}",
    ]
    checks = [
        (outage.moved, f"leases moved: {', '.join(outage.moved)}"),
        (
            outage.events_per_s < LOAD_SHARE_MIN * outage.asked_per_s,
            f"events written in a second: {outage.events_per_s:.0f}, and {outage.asked_per_s:g} were asked for",
        ),
        (min(worked) < WORKS_AT_LEAST_S, f"a partition stopped before {WORKS_AT_LEAST_S:.2f} s, while it was trusted"),
        (
            max(worked) > WORKS_AT_MOST_S,
            f"a partition delivered after {WORKS_AT_MOST_S:g} s, when it could have another owner",
        ),
        (outage.idle, f"partitions did not resume: {', '.join(outage.idle)}"),
        (max(resumed, default=0) > RESUMES_S, f"a partition resumed later than {RESUMES_S:g} s"),
        (outage.lost, f"events lost: {outage.lost}"),
        (outage.duplicated, f"events duplicated: {outage.duplicated}"),
        (outage.disordered, f"events out of order: {', '.join(outage.disordered)}"),
    ]
    return rows, [text for is_broken, text in checks if is_broken]
