"""How far each partition is behind, who works on it, and why it stands still, for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from leasehold.leases.lease import LeaseKey
from leasehold.service.group.status import GroupStatus, Standstill
from leasehold.service.lag.measurement import Lag


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One partition.

    - `events`: how many are not processed; None if the feed did not answer.
    - `seconds`: for how long the first of them has waited; 0 if there is none, None if that is unknown.
    - `owner`: the host with the lease; None if it is free.
    - `why`: why the partition stands still, or cannot be measured; otherwise None.
    """

    pipeline: str
    partition: str
    events: int | None
    seconds: float | None
    owner: str | None
    why: str | None


def estimates(lag: Lag, group: GroupStatus, still: Mapping[LeaseKey, Sequence[Standstill]]) -> Iterator[Estimate]:
    for one in lag.partitions:
        status = group.leases.get(one.key)
        reasons = [each.why for each in still.get(one.key, ())]
        yield Estimate(
            pipeline=one.pipeline,
            partition=one.partition,
            events=one.events,
            seconds=one.seconds,
            owner=None if status is None else status.lease.owner,
            why="; ".join(reasons) or one.error,
        )
