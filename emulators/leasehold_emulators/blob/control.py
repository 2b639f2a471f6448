"""The control port: orders to the server, and the truth about its content, in plain JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from leasehold_emulators.blob.wire import Fault, Wire
from leasehold_emulators.hosting import Clock, break_connections
from leasehold_emulators.orders import Move, check_number, fault_of, move_clock, orders_of, serve_order, shown


@dataclass(slots=True)
class Control:
    wire: Wire
    clock: Clock

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        return await serve_order(ORDERS, self, request)

    def read_state(self) -> dict[str, Any]:
        """What the page shows."""
        more = {"faults": faults(self), "statistics": statistics(self)}
        return {"kind": "blob", "containers": containers(self), **more}


def containers(control: Control) -> list[dict[str, Any]]:
    store = control.wire.store
    found = [(each.name, store.count(each.name)) for each in store.containers()]
    return [{"container": name, "blobs": blobs, "bytes": size} for name, (blobs, size) in found]


def fault(control: Control, /, **what: Any) -> Any:
    """A fault of `container.*` may name a container that does not exist yet, because such a request may create it."""
    made = fault_of(Fault, what)
    there = [each.name for each in control.wire.store.containers()]
    if made.container is not None and made.container not in there and not made.of.startswith("container."):
        choice = f"use one of {', '.join(there)}" if there else "create one first"
        raise ValueError(f"container: there is no container {shown(made.container)}: {choice}")
    return {"number": control.wire.order(**what)}


def heal(control: Control, number: int | None = None) -> Any:
    check_number(number, control.wire.faults)
    if number is None:
        control.wire.faults.clear()
    else:
        del control.wire.faults[number]
    return {}


def faults(control: Control) -> Any:
    return control.wire.listed_faults()


def disconnect(control: Control) -> Any:
    return {"connections": break_connections(control.wire.servers)}


def clock(control: Control, move_s: Move = 0.0) -> Any:
    move_clock(control.clock, move_s)
    return {"now": control.clock.now(), "offset_s": control.clock.offset_s}


def statistics(control: Control) -> Any:
    counts = control.wire.counts.items()
    return [
        {"container": container or None, "kind": kind, "status": status, "requests": requests}
        for (container, kind, status), requests in sorted(counts)
    ]


def reset(control: Control) -> Any:
    """Return to the state after a start, without any containers."""
    with control.wire.store.transaction():
        control.wire.store.clear()
    control.wire.faults.clear()
    control.wire.counts.clear()
    control.clock.offset_s = 0.0
    return {}


ORDERS = orders_of(clock, containers, disconnect, fault, faults, heal, reset, statistics)
