"""The control port: plain HTTP, each order a POST of a JSON object to its name (tests/servers/README.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from aiohttp import web

from leasehold.emulators.eventhubs.edge import Edges
from leasehold.emulators.eventhubs.faults import Fault
from leasehold.emulators.eventhubs.links import Link
from leasehold.emulators.eventhubs.messages import KEY, contents, data_event
from leasehold.emulators.eventhubs.namespace import Namespace
from leasehold.emulators.eventhubs.partition import Partition
from leasehold.emulators.eventhubs.producers import Refusal
from leasehold.emulators.eventhubs.publishing import FORCED, Publishing
from leasehold.emulators.eventhubs.receivers import STOLEN
from leasehold.emulators.eventhubs.receiving import Receiving

Fields = dict[str, Any]


class Clock:
    """The real one, moved."""

    def __init__(self, real_s: Callable[[], float]) -> None:
        self._real_s = real_s
        self.moved_s = 0.0

    def now_ms(self) -> int:
        return int((self._real_s() + self.moved_s) * 1000)


@dataclass(slots=True, kw_only=True)
class Control:
    """hubs: those of the start, to which `reset` goes back: name -> (partitions, groups, events that are kept)."""

    edges: Edges
    clock: Clock
    hubs: dict[str, tuple[int, set[str], int | None]]

    @property
    def namespace(self) -> Namespace:
        return self.edges.namespace

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            order = ORDERS[request.path.strip("/")]
            said = order(self, json.loads(await request.read() or b"{}"))
            self.namespace.journal.commit()
        except KeyError as problem:
            return _refused(f"missing or unknown: {problem}")
        except (TypeError, ValueError) as problem:
            return _refused(str(problem))
        return web.Response(text=json.dumps(said, separators=(",", ":")), content_type="application/json")

    def read_state(self) -> Fields:
        """What the page shows."""
        hubs = [
            {"hub": hub.name, "groups": sorted(hub.groups), "partitions": [_summary(each) for each in hub.partitions]}
            for hub in self.namespace.hubs.values()
        ]
        more = {"links": links(self, {}), "faults": faults(self, {}), "statistics": statistics(self, {})["counts"]}
        return {"kind": "eventhubs", "hubs": hubs, **more}

    def make_hubs(self) -> None:
        """Those that are missing, and partitions that are."""
        for name, (partitions, groups, events_max) in self.hubs.items():
            hub = self.namespace.hub(name) or self.namespace.make_hub(name, partitions, groups, events_max)
            if len(hub.partitions) < partitions:
                hub.grow(partitions)
        self.namespace.journal.commit()

    def partition(self, said: Fields) -> Partition:
        found = self.namespace.partition(said["hub"], str(said["partition"]))
        if found is None:
            raise ValueError(f"no partition {said['partition']} in a hub {said['hub']}")
        return found

    def links(self, said: Fields) -> list[Publishing | Receiving]:
        """The links that match hub, partition, group and role (sender, receiver), if given."""
        links = [link for edge in self.edges.open for link in edge.connection.links()]
        return [link for link in links if isinstance(link, Publishing | Receiving) and _is_meant(link, said)]


def _is_meant(link: Publishing | Receiving, said: Fields) -> bool:
    has = {
        "hub": link.hub.name,
        "partition": link.partition.id if link.partition else "",
        "group": link.group if isinstance(link, Receiving) else "",
        "role": "receiver" if isinstance(link, Receiving) else "sender",
    }
    return all(said.get(name) in (None, value) for name, value in has.items()) and link.is_attached


def _refused(text: str) -> web.Response:
    return web.Response(status=400, text=json.dumps({"error": text}), content_type="application/json")


# --- the orders ---------------------------------------------------------------------------------------------------------


def fault(control: Control, said: Fields) -> Fields:
    settable = {each.name for each in fields(Fault)} - {"number", "passed", "taken"}
    if unknown := set(said) - settable:
        raise ValueError(f"no fault has {', '.join(sorted(unknown))}")
    return {"number": control.namespace.faults.order(Fault(**said))}


def heal(control: Control, said: Fields) -> Fields:
    control.namespace.faults.heal(said.get("number"))
    return {}


def faults(control: Control, said: Fields) -> list[Fields]:
    return [{each.name: getattr(one, each.name) for each in fields(Fault)} for one in control.namespace.faults.ordered]


def cut(control: Control, said: Fields) -> Fields:
    """The connections of the links that are meant; without any field, all."""
    meant = {link.session.connection for link in control.links(said)}
    edges = [edge for edge in control.edges.open if not said or edge.connection in meant]
    for edge in edges:
        edge.connection.abort()
    return {"count": len(edges)}


def close(control: Control, said: Fields) -> Fields:
    """All connections, with a close frame."""
    refusal = Refusal(
        condition=said.get("condition", "amqp:connection:forced"), description="The connection was closed by order."
    )
    edges = list(control.edges.open)
    for edge in edges:
        edge.connection.close(refusal)
    return {"count": len(edges)}


def detach(control: Control, said: Fields) -> Fields:
    return _detach(control.links(said), said.get("condition", FORCED))


def steal(control: Control, said: Fields) -> Fields:
    return _detach(control.links(said | {"role": "receiver"}), STOLEN)


def _detach(links: list[Any], condition: str) -> Fields:
    for link in links:
        _detached(link, condition)
    return {"count": len(links)}


def _detached(link: Link, condition: str) -> None:
    link.detach(Refusal(condition=condition, description="The link was detached by order."))


def append(control: Control, said: Fields) -> Fields:
    """`bodies`, or `count` bodies of `bytes` octets each: JSON with their sequence number."""
    partition = control.partition(said)
    bodies = [body.encode() for body in said["bodies"]] if "bodies" in said else _numbered(partition, said)
    key = said.get("key")
    first = partition.end
    partition.append([data_event(body, key) for body in bodies], control.clock.now_ms())
    control.namespace.count("appended", partition.hub, partition.id, by=len(bodies))
    return {"first": first, "end": partition.end}


def _numbered(partition: Partition, said: Fields) -> list[bytes]:
    size = int(said.get("bytes", 200))
    numbers = range(partition.end, partition.end + int(said["count"]))
    return [(b'{"n":%d,"pad":"' % n).ljust(size - 2, b"x") + b'"}' for n in numbers]


def trim(control: Control, said: Fields) -> Fields:
    partition = control.partition(said)
    partition.trim(int(said["first"]))
    return {"first": partition.first, "end": partition.end}


def forget(control: Control, said: Fields) -> Fields:
    return {"count": control.partition(said).forget_producers()}


def grow(control: Control, said: Fields) -> Fields:
    hub = control.namespace.hub(said["hub"])
    if hub is None:
        raise ValueError(f"no hub {said['hub']}")
    hub.grow(int(said["partitions"]))
    return {"partitions": len(hub.partitions)}


def make_hub(control: Control, said: Fields) -> Fields:
    groups = set(said.get("groups", ()))
    control.namespace.make_hub(said["hub"], int(said["partitions"]), groups, said.get("events_max"))
    return {}


def clock(control: Control, said: Fields) -> Fields:
    control.clock.moved_s += float(said["move_s"])
    for edge in list(control.edges.open):
        edge.connection.expire()
    return {"now_ms": control.clock.now_ms()}


def rules(control: Control, said: Fields) -> Fields:
    """Choices where the service's behavior is unknown."""
    namespace = control.namespace
    namespace.replies_known = {"known": True, "asked": False}[said.get("reply", "known")]
    namespace.old_events, namespace.old_s = int(said.get("old_events", 0)), float(said.get("old_s", 0))
    namespace.reads_per_s_max = float(said.get("reads_per_s_max", math.inf))
    namespace.null_raises = {"current": False, "next": True}[said.get("null_level", "current")]
    namespace.nothing = {0: 0, -1: -1}[said.get("nothing", 0)]
    namespace.refuses_beyond = {"refused": True, "waits": False}[said.get("beyond", "refused")]
    return {}


def reset(control: Control, said: Fields) -> Fields:
    for edge in list(control.edges.open):
        edge.connection.abort()
    namespace = control.namespace
    namespace.hubs.clear()
    namespace.journal.clear()
    namespace.faults.heal()
    namespace.counts.clear()
    control.clock.moved_s = 0.0
    rules(control, {})
    namespace.reads_ms.clear()
    control.edges.accepted = 0
    control.make_hubs()
    return {}


def statistics(control: Control, said: Fields) -> Fields:
    counts = [
        {"what": what, "hub": hub, "partition": partition, "detail": detail, "count": count}
        for (what, hub, partition, detail), count in control.namespace.counts.items()
    ]
    return {"connections": len(control.edges.open), "accepted": control.edges.accepted, "counts": counts}


def partitions(control: Control, said: Fields) -> list[Fields]:
    hub = control.namespace.hub(said["hub"])
    if hub is None:
        raise ValueError(f"no hub {said['hub']}")
    return [_summary(partition) for partition in hub.partitions]


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


def truth(control: Control, said: Fields) -> list[Fields]:
    """The events of a partition, from `first` on, `count` of them at most."""
    partition = control.partition(said)
    begin = max(partition.first, int(said.get("first", 0)))
    end = min(partition.end, begin + int(said.get("count", partition.end)))
    return [_event(partition, number) for number in range(begin, end)]


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


def links(control: Control, said: Fields) -> list[Fields]:
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
        for link in control.links(said)
    ]


ORDERS: dict[str, Callable[[Control, Fields], Any]] = {
    order.__name__: order
    for order in (
        append, clock, close, cut, detach, fault, faults, forget, grow, heal, links, make_hub, partitions, reset, rules,
        statistics, steal, trim, truth,
    )
}  # fmt: skip
