"""The control port: plain HTTP, each order a POST of a JSON object to its name (tests/lab/servers/README.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import BeforeValidator, Field

from leasehold_emulators.eventhubs.edge import Edges
from leasehold_emulators.eventhubs.faults import Condition, Fault
from leasehold_emulators.eventhubs.links import Link
from leasehold_emulators.eventhubs.messages import KEY, contents, data_event
from leasehold_emulators.eventhubs.namespace import Hub, Namespace
from leasehold_emulators.eventhubs.partition import Partition
from leasehold_emulators.eventhubs.producers import Refusal
from leasehold_emulators.eventhubs.publishing import FORCED, Publishing
from leasehold_emulators.eventhubs.receivers import STOLEN
from leasehold_emulators.eventhubs.receiving import Receiving
from leasehold_emulators.hosting import Clock
from leasehold_emulators.orders import (
    Count,
    Move,
    Name,
    Positive,
    Seconds,
    check_number,
    fault_of,
    move_clock,
    orders_of,
    serve_order,
    shown,
)

Fields = dict[str, Any]
HUB = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,254}[A-Za-z0-9])?"
HubName = Annotated[str, Field(pattern=rf"^{HUB}$")]
GroupName = Annotated[str, Field(pattern=rf"^(\$Default|{HUB})$")]
PartitionCount = Annotated[int, Field(ge=1, le=9999)]
PartitionId = Annotated[
    str,
    BeforeValidator(lambda given: str(given) if type(given) is int else given),
    Field(pattern=r"^(0|[1-9][0-9]{0,3})$"),
]
"""A number is converted to its text."""
Role = Literal["sender", "receiver"]
PartitionKey = Annotated[str, Field(min_length=1, max_length=128)]
Body = Annotated[str, Field(max_length=1 << 20)]
BodyBytes = Annotated[int, Field(ge=16, le=1 << 20)]
"""16 octets: the shortest body that `append` can make, around a number of one digit."""
EventCount = Annotated[int, Field(ge=0, le=10_000_000)]
APPENDED_BYTES_MAX = 1 << 30
Rate = Annotated[float, Field(ge=0, le=1_000_000)]


@dataclass(slots=True, kw_only=True)
class Control:
    """hubs: those of the start, which `reset` restores: name -> (partitions, groups, events that a partition keeps)."""

    edges: Edges
    clock: Clock
    hubs: dict[str, tuple[int, set[str], int | None]]

    @property
    def namespace(self) -> Namespace:
        return self.edges.namespace

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        return await serve_order(ORDERS, self, request, self.namespace.journal.commit)

    def read_state(self) -> Fields:
        """What the page shows."""
        hubs = [
            {"hub": hub.name, "groups": sorted(hub.groups), "partitions": [_summary(each) for each in hub.partitions]}
            for hub in self.namespace.hubs.values()
        ]
        more = {"links": links(self), "faults": faults(self), "statistics": statistics(self)["counts"]}
        return {"kind": "eventhubs", "hubs": hubs, **more}

    def make_hubs(self) -> None:
        """Make the hubs that are missing, and the partitions that are missing in others."""
        for name, (partitions, groups, events_max) in self.hubs.items():
            hub = self.namespace.hub(name) or self.namespace.make_hub(name, partitions, groups, events_max)
            if len(hub.partitions) < partitions:
                hub.grow(partitions)
        self.namespace.journal.commit()

    def hub(self, name: str) -> Hub:
        """Raises ValueError."""
        found = self.namespace.hub(name)
        if found is None:
            names = ", ".join(each.name for each in self.namespace.hubs.values())
            raise ValueError(
                f"hub: there is no hub {shown(name)}: {f'use one of {names}' if names else 'make it first'}"
            )
        return found

    def partition(self, hub: str, partition: str) -> Partition:
        """Raises ValueError."""
        present = self.hub(hub).partitions
        found = self.namespace.partition(hub, partition)
        if found is None:
            raise ValueError(f"partition: {partition!r} must be one of hub {hub}: 0 to {len(present) - 1}")
        return found

    def links(
        self, hub: str | None = None, partition: str | None = None, group: str | None = None, role: Role | None = None
    ) -> list[Publishing | Receiving]:
        """The attached links that match what is given. Raises ValueError."""
        self.check_names(hub, partition, group)
        links = [link for edge in self.edges.open for link in edge.connection.links()]
        wanted = {"hub": hub, "partition": partition, "group": group, "role": role}
        return [link for link in links if isinstance(link, Publishing | Receiving) and _is_meant(link, wanted)]

    def check_names(self, hub: str | None, partition: str | None, group: str | None) -> None:
        """Raises ValueError."""
        hubs = [self.hub(hub)] if hub is not None else list(self.namespace.hubs.values())
        if partition is not None:
            self._check_partition(hubs, partition)
        if group is not None and not any(each.has_group(group) for each in hubs):
            names = ", ".join(sorted({name for each in hubs for name in each.groups}))
            raise ValueError(
                f"group: there is no consumer group {shown(group)}: use one of {names or 'those of a new hub'}"
            )

    def _check_partition(self, hubs: list[Hub], partition: str) -> None:
        count = max((len(each.partitions) for each in hubs), default=0)
        if partition not in map(str, range(count)):
            raise ValueError(f"partition: {partition!r} must be below {count}, the number of partitions")


def _is_meant(link: Publishing | Receiving, wanted: dict[str, str | None]) -> bool:
    has = {
        "hub": link.hub.name,
        "partition": link.partition.id if link.partition else "",
        "group": link.group if isinstance(link, Receiving) else "",
        "role": "receiver" if isinstance(link, Receiving) else "sender",
    }
    fits = all(value is None or value.lower() == has[name].lower() for name, value in wanted.items())
    return fits and link.is_attached


# --- the orders ---------------------------------------------------------------------------------------------------------


def fault(control: Control, /, **what: Any) -> Fields:
    made = fault_of(Fault, what)
    control.check_names(made.hub, made.partition, made.group)
    return {"number": control.namespace.faults.order(made)}


def heal(control: Control, number: int | None = None) -> Fields:
    check_number(number, [fault.number for fault in control.namespace.faults.ordered])
    control.namespace.faults.heal(number)
    return {}


def faults(control: Control) -> list[Fields]:
    return [{each.name: getattr(one, each.name) for each in fields(Fault)} for one in control.namespace.faults.ordered]


def cut(
    control: Control,
    hub: Name | None = None,
    partition: PartitionId | None = None,
    group: Name | None = None,
    role: Role | None = None,
) -> Fields:
    """Cut the connections of the matching links; without any argument, cut all."""
    meant = {link.session.connection for link in control.links(hub, partition, group, role)}
    is_all = (hub, partition, group, role) == (None, None, None, None)
    edges = [edge for edge in control.edges.open if is_all or edge.connection in meant]
    for edge in edges:
        edge.connection.abort()
    return {"count": len(edges)}


def close(control: Control, condition: Condition = "amqp:connection:forced") -> Fields:
    """Close all connections, with a close frame."""
    refusal = Refusal(condition=condition, description="The connection was closed by order.")
    edges = list(control.edges.open)
    for edge in edges:
        edge.connection.close(refusal)
    return {"count": len(edges)}


def detach(
    control: Control,
    hub: Name | None = None,
    partition: PartitionId | None = None,
    group: Name | None = None,
    role: Role | None = None,
    condition: Condition = FORCED,
) -> Fields:
    return _detach(control.links(hub, partition, group, role), condition)


def steal(
    control: Control,
    hub: Name | None = None,
    partition: PartitionId | None = None,
    group: Name | None = None,
    role: Literal["receiver"] = "receiver",
) -> Fields:
    return _detach(control.links(hub, partition, group, role), STOLEN)


def _detach(links: list[Any], condition: str) -> Fields:
    for link in links:
        _detached(link, condition)
    return {"count": len(links)}


def _detached(link: Link, condition: str) -> None:
    link.detach(Refusal(condition=condition, description="The link was detached by order."))


def append(
    control: Control,
    hub: Name,
    partition: PartitionId,
    bodies: list[Body] | None = None,
    count: EventCount | None = None,
    bytes: BodyBytes | None = None,
    key: PartitionKey | None = None,
) -> Fields:
    """Append `bodies`, or `count` bodies of `bytes` octets each, which are JSON with their sequence number."""
    found = control.partition(hub, partition)
    if (bodies is None) == (count is None):
        raise ValueError("bodies, count: give one of them: `bodies` of events, or their `count`")
    if bodies is not None and bytes is not None:
        raise ValueError(f"bytes: {bytes} belongs to `count`: leave it out with `bodies`")
    octets = _numbered(found, count or 0, bytes or 200) if bodies is None else [body.encode() for body in bodies]
    first = found.end
    found.append([data_event(body, key) for body in octets], control.clock.now_ms())
    control.namespace.count("appended", found.hub, found.id, by=len(octets))
    return {"first": first, "end": found.end}


def _numbered(partition: Partition, count: int, size: int) -> list[bytes]:
    if count * size > APPENDED_BYTES_MAX:
        raise ValueError(
            f"count: {count} events of {size} bytes must not exceed {APPENDED_BYTES_MAX} bytes: append less"
        )
    numbers = range(partition.end, partition.end + count)
    return [(b'{"n":%d,"pad":"' % n).ljust(size - 2, b"x") + b'"}' for n in numbers]


def trim(control: Control, hub: Name, partition: PartitionId, first: Count) -> Fields:
    found = control.partition(hub, partition)
    if first > found.end:
        raise ValueError(f"first: {first} must not be beyond the end of the partition, {found.end}")
    found.trim(first)
    return {"first": found.first, "end": found.end}


def forget(control: Control, hub: Name, partition: PartitionId) -> Fields:
    return {"count": control.partition(hub, partition).forget_producers()}


def grow(control: Control, hub: Name, partitions: PartitionCount) -> Fields:
    found = control.hub(hub)
    if partitions < len(found.partitions):
        raise ValueError(
            f"partitions: {partitions} must not be below {len(found.partitions)}: a hub keeps its partitions"
        )
    found.grow(partitions)
    return {"partitions": len(found.partitions)}


def make_hub(
    control: Control,
    hub: HubName,
    partitions: PartitionCount,
    groups: list[GroupName] | None = None,
    events_max: Positive | None = None,
) -> Fields:
    control.namespace.make_hub(hub, partitions, set(groups or ()), events_max)
    return {}


def clock(control: Control, move_s: Move) -> Fields:
    move_clock(control.clock, move_s)
    for edge in list(control.edges.open):
        edge.connection.expire()
    return {"now_ms": control.clock.now_ms()}


def rules(
    control: Control,
    reply: Literal["known", "asked"] = "known",
    old_events: Count = 0,
    old_s: Seconds = 0.0,
    reads_per_s_max: Rate | None = None,
    null_level: Literal["current", "next"] = "current",
    nothing: Annotated[int, Field(ge=-1, le=0)] = 0,
    beyond: Literal["refused", "waits"] = "refused",
) -> Fields:
    """Choose the behavior in cases for which the service's own is unknown."""
    namespace = control.namespace
    namespace.replies_known = reply == "known"
    namespace.old_events, namespace.old_s = old_events, old_s
    namespace.reads_per_s_max = math.inf if reads_per_s_max is None else reads_per_s_max
    namespace.null_raises = null_level == "next"
    namespace.nothing = nothing
    namespace.refuses_beyond = beyond == "refused"
    return {}


def reset(control: Control) -> Fields:
    for edge in list(control.edges.open):
        edge.connection.abort()
    namespace = control.namespace
    namespace.hubs.clear()
    namespace.journal.clear()
    namespace.faults.heal()
    namespace.counts.clear()
    control.clock.offset_s = 0.0
    rules(control)
    namespace.reads_ms.clear()
    control.edges.accepted = 0
    control.make_hubs()
    return {}


def statistics(control: Control) -> Fields:
    counts = [
        {"what": what, "hub": hub, "partition": partition, "detail": detail, "count": count}
        for (what, hub, partition, detail), count in control.namespace.counts.items()
    ]
    return {"connections": len(control.edges.open), "accepted": control.edges.accepted, "counts": counts}


def partitions(control: Control, hub: Name) -> list[Fields]:
    return [_summary(partition) for partition in control.hub(hub).partitions]


def _summary(partition: Partition) -> Fields:
    producers = [
        {"id": each.id, "level": each.level, "last": each.last, "recent": each.recent}
        for each in partition.producers.values()
    ]
    return {
        "id": partition.id,
        "first": partition.first,
        "end": partition.end,
        "last_offset": str(partition.last_offset),
        "size_bytes": partition.size_bytes,
        "repeated": partition.repeated,
        "producers": producers,
    }


def truth(
    control: Control, hub: Name, partition: PartitionId, first: Count = 0, count: Count | None = None
) -> list[Fields]:
    """The events of a partition, from `first` on, `count` of them at most."""
    found = control.partition(hub, partition)
    begin = max(found.first, first)
    end = found.end if count is None else min(found.end, begin + count)
    return [_event(found, number) for number in range(begin, end)]


def _event(partition: Partition, number: int) -> Fields:
    at = number - partition.first
    inside = contents(partition.messages[at])
    numbered = partition.numbered(number)
    return {
        "sequence": number,
        "offset": str(partition.offsets[at]),
        "time_ms": partition.times_ms[at],
        "key": inside.annotations.get(KEY),
        "body": inside.body.decode(errors="backslashreplace"),
        "properties": {str(name): _shown(value) for name, value in inside.application.items()},
        "producer": list(numbered) if numbered else None,
    }


def _shown(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def links(
    control: Control,
    hub: Name | None = None,
    partition: PartitionId | None = None,
    group: Name | None = None,
    role: Role | None = None,
) -> list[Fields]:
    return [
        {
            "hub": link.hub.name,
            "partition": link.partition.id if link.partition else None,
            "role": "receiver" if isinstance(link, Receiving) else "sender",
            "group": link.group if isinstance(link, Receiving) else None,
            "epoch": link.epoch if isinstance(link, Receiving) else None,
            "producer": link.attached.producer.id if isinstance(link, Publishing) and link.attached else None,
            "container": link.session.connection.container,
        }
        for link in control.links(hub, partition, group, role)
    ]


ORDERS = orders_of(
    append, clock, close, cut, detach, fault, faults, forget, grow, heal, links, make_hub, partitions, reset, rules,
    statistics, steal, trim, truth,
)  # fmt: skip
