"""The second port: orders to the server, and the truth about its content, in plain JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from leasehold.emulators.cosmos.account import Account
from leasehold.emulators.cosmos.container import Change, Container, Partition
from leasehold.emulators.cosmos.feed import GIVES_PREVIOUS
from leasehold.emulators.cosmos.ranges import Range
from leasehold.emulators.cosmos.refused import Refused
from leasehold.emulators.cosmos.wire import Wire
from leasehold.emulators.hosting import Clock, break_connections


@dataclass(slots=True)
class Control:
    wire: Wire
    clock: Clock

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        order = json.loads(await request.read() or b"{}")
        name = request.path.strip("/")
        if name not in ORDERS:
            return _answer({"error": f"no order {name!r}: {', '.join(ORDERS)}"}, 404)
        try:
            answer = ORDERS[name](self, **order)
            self.account.journal.commit()
            return _answer(answer)
        except (ValueError, TypeError, Refused) as error:
            return _answer({"error": str(error)}, 400)

    def read_state(self) -> dict[str, Any]:
        """What the page shows."""
        containers = [
            {
                "database": database.id,
                "container": container.id,
                "key": container.definition["partitionKey"]["paths"],
                "images": container.images,
                "ranges": truth(self, f"{database.id}/{container.id}"),
            }
            for database in self.account.databases.values()
            for container in database.containers.values()
        ]
        counts = self.wire.counts.listed()
        return {"kind": "cosmos", "containers": containers, "faults": faults(self), "statistics": counts}

    @property
    def account(self) -> Account:
        return self.wire.account

    def container(self, name: str) -> Container:
        """By its name, or `database/name` where two databases have one."""
        database, _, own = name.rpartition("/")
        for candidate in self.account.databases.values():
            if database in ("", candidate.id) and own in candidate.containers:
                return candidate.containers[own]
        raise ValueError(f"no container {name!r}")


def _answer(content: Any, status: int = 200) -> web.Response:
    return web.json_response(content, status=status)


# --- orders -------------------------------------------------------------------------------------------------------------


def split(control: Control, container: str, range_id: str, at: str | None = None, completing: int = 0) -> Any:
    return [_range(child) for child in control.container(container).split(range_id, at, completing)]


def merge(control: Control, container: str, left: str, right: str, completing: int = 0) -> Any:
    return _range(control.container(container).merge(left, right, completing))


def fault(control: Control, **what: Any) -> Any:
    return {"number": control.wire.faults.add(**what)}


def heal(control: Control, number: int | None = None) -> Any:
    control.wire.faults.remove(number)
    return {}


def disconnect(control: Control) -> Any:
    return {"connections": break_connections(control.wire.servers)}


def clock(control: Control, move_s: float = 0.0) -> Any:
    control.clock.offset_s += move_s
    return {"now": control.clock.now(), "offset_s": control.clock.offset_s}


def ranges_of(control: Control, container: str, ranges: int) -> Any:
    """How many a container of that name is made with."""
    control.account.ranges_of[container] = ranges
    control.account.keep_settings()
    return {}


def images(control: Control, container: str, previous: str) -> Any:
    if previous not in GIVES_PREVIOUS:
        raise ValueError(f"unknown kind of previous images: use one of {', '.join(GIVES_PREVIOUS)}")
    control.container(container).give_images(previous)
    return {}


def consistency(control: Control, level: str) -> Any:
    """The account's default, as its properties say it. What is read is the latest all the same (see the fault `lag`)."""
    control.account.consistency = level
    control.account.keep_settings()
    return {}


def reset(control: Control) -> Any:
    """As if just started: no databases, no faults, nothing counted, the machine's time."""
    control.account.journal.clear()
    control.account.databases.clear()
    control.account.ranges_of.clear()
    control.account.consistency = "Session"
    control.wire.faults.remove()
    control.wire.counts.clear()
    control.clock.offset_s = 0.0
    return {}


# --- truth --------------------------------------------------------------------------------------------------------------


def faults(control: Control) -> Any:
    return control.wire.faults.listed()


def statistics(control: Control, clear: bool = False) -> Any:
    listed = control.wire.counts.listed()
    if clear:
        control.wire.counts.clear()
    return listed


def truth(control: Control, container: str) -> Any:
    """Per range: its last LSN and its documents."""
    found = control.container(container)
    return [_partition(found.partitions[one.id]) for one in found.ranges]


def versions(control: Control, container: str) -> Any:
    """Every version that was ever written, per range, in the feed's order."""
    found = control.container(container)
    return [_version(change, one) for one in found.ranges for change in found.partitions[one.id].log]


def delivered(control: Control, container: str) -> Any:
    """How often a feed has answered with which version."""
    counts = control.wire.counts.delivered[container.rpartition("/")[2]]
    return [{"id": key[0], "lsn": key[1], "times": times} for key, times in counts.items()]


def _range(range: Range) -> dict[str, Any]:
    return {"id": range.id, "min": range.span.min, "max": range.span.max, "parents": list(range.parents)}


def _partition(partition: Partition) -> dict[str, Any]:
    return {**_range(partition.range), "lsn": partition.lsn, "documents": len(partition.documents)}


def _version(change: Change, range: Range) -> dict[str, Any]:
    return {
        "range": range.id,
        "lsn": change.lsn,
        "id": change.key.id,
        "partition_key": json.loads(change.key.partition_key),
        "epk": change.epk,
        "operation": change.operation,
        "ts": change.ts,
        "body": change.body,
    }


ORDERS: dict[str, Callable[..., Any]] = {
    order.__name__: order
    for order in (
        split,
        merge,
        fault,
        heal,
        disconnect,
        clock,
        ranges_of,
        images,
        consistency,
        reset,
        faults,
        statistics,
        truth,
        versions,
        delivered,
    )
}
