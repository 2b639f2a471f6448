"""The control port: orders to the server, and the truth about its content, in plain JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field

from leasehold_emulators.cosmos.account import Account
from leasehold_emulators.cosmos.container import Change, Container, Partition
from leasehold_emulators.cosmos.faults import Fault
from leasehold_emulators.cosmos.ranges import Range
from leasehold_emulators.cosmos.wire import Wire
from leasehold_emulators.hosting import Clock, break_connections
from leasehold_emulators.orders import (
    Count,
    Move,
    Name,
    check_number,
    fault_of,
    move_clock,
    orders_of,
    serve_order,
    shown,
)

Bound = Annotated[str, Field(pattern=r"^[0-9A-F]{1,256}$")]
ContainerId = Annotated[str, Field(pattern=r"^[^/\\?#]{1,255}$")]
Level = Literal["Strong", "BoundedStaleness", "Session", "ConsistentPrefix", "Eventual"]
RangeCount = Annotated[int, Field(ge=1, le=100)]


@dataclass(slots=True)
class Control:
    wire: Wire
    clock: Clock

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        return await serve_order(ORDERS, self, request, self.account.journal.commit)

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
        """Find a container by its name, or by `database/name` if several databases have one of that name. Raises ValueError."""
        database, _, own = name.rpartition("/")
        for candidate in self.account.databases.values():
            if database in ("", candidate.id) and own in candidate.containers:
                return candidate.containers[own]
        there = [f"{each.id}/{own}" for each in self.account.databases.values() for own in each.containers]
        raise ValueError(f"container: there is no container {shown(name)}: {_choice(there)}")


def _choice(values: Sequence[str]) -> str:
    return f"use one of {', '.join(values)}" if values else "create one first"


def _check_range(container: Container, argument: str, range_id: str) -> None:
    """Raises ValueError. Unlike a request, an order does not use up an answer "completing split"."""
    if range_id not in container.partitions:
        there = _choice([one.id for one in container.ranges])
        raise ValueError(
            f"{argument}: {shown(range_id)} is not a range of {container.id}, or has been split or merged: {there}"
        )


def _check_any_range(control: Control, range_id: str) -> None:
    """Raises ValueError."""
    containers = [each for database in control.account.databases.values() for each in database.containers.values()]
    if not any(range_id in each.partitions for each in containers):
        raise ValueError(f"range_id: {shown(range_id)} is not a range of any container, or has been split or merged")


# --- orders -------------------------------------------------------------------------------------------------------------


def split(control: Control, container: Name, range_id: Name, at: Bound | None = None, completing: Count = 0) -> Any:
    found = control.container(container)
    _check_range(found, "range_id", range_id)
    return [_range(child) for child in found.split(range_id, at, completing)]


def merge(control: Control, container: Name, left: Name, right: Name, completing: Count = 0) -> Any:
    found = control.container(container)
    _check_range(found, "left", left)
    _check_range(found, "right", right)
    return _range(found.merge(left, right, completing))


def fault(control: Control, /, **what: Any) -> Any:
    made = fault_of(Fault, what)
    if made.container is not None and made.range_id is not None:
        _check_range(control.container(made.container), "range_id", made.range_id)
    elif made.container is not None:
        control.container(made.container)
    elif made.range_id is not None:
        _check_any_range(control, made.range_id)
    return {"number": control.wire.faults.add(**what)}


def heal(control: Control, number: int | None = None) -> Any:
    check_number(number, control.wire.faults.numbers())
    control.wire.faults.remove(number)
    return {}


def disconnect(control: Control) -> Any:
    return {"connections": break_connections(control.wire.servers)}


def clock(control: Control, move_s: Move = 0.0) -> Any:
    move_clock(control.clock, move_s)
    return {"now": control.clock.now(), "offset_s": control.clock.offset_s}


def ranges_of(control: Control, container: ContainerId, ranges: RangeCount) -> Any:
    """Set how many ranges a container of that name is created with."""
    control.account.ranges_of[container] = ranges
    control.account.keep_settings()
    return {}


def images(control: Control, container: Name, previous: Literal["none", "deletes", "all"]) -> Any:
    control.container(container).give_images(previous)
    return {}


def consistency(control: Control, level: Level) -> Any:
    """Set the account's default consistency level. Reads still return the latest version (but see the fault `lag`)."""
    control.account.consistency = level
    control.account.keep_settings()
    return {}


def reset(control: Control) -> Any:
    """Return to the state after a start: no databases, no faults, nothing counted, the machine's time."""
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


def truth(control: Control, container: Name) -> Any:
    """Each range with its last LSN and the number of its documents."""
    found = control.container(container)
    return [_partition(found.partitions[one.id]) for one in found.ranges]


def versions(control: Control, container: Name) -> Any:
    """Every version that was ever written, per range, in the feed's order."""
    found = control.container(container)
    return [_version(change, one) for one in found.ranges for change in found.partitions[one.id].log]


def delivered(control: Control, container: Name) -> Any:
    """How often feeds have delivered each version."""
    counts = control.wire.counts.delivered.get(control.container(container).id)
    return [{"id": key[0], "lsn": key[1], "times": times} for key, times in counts.items()] if counts else []


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


ORDERS = orders_of(
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
