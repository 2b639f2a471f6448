"""Handlers that are called side by side, each of which asks a service: its calls fail, hang, and may be carried out late.

Each event is of one of three documents of its partition, which is its key. A seed draws how many calls run at a time, and how far
they may get ahead of the position. Calls take one event or several, and in some seeds they acknowledge them by hand.

I13 is checked at each call: no call of a key runs beside another one, or before all earlier events of the key were handled. No
more calls run than may. And the events that were handled or are about to be, and that the lease's position does not cover, are
at most the window and two batches. So no crash repeats more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lab.simulation.invariants import SLOWEST, number
from lab.simulation.process import current, incarnation
from lab.simulation.weather import Request, answered, host_of

from leasehold.leases.lease import LeaseKey
from leasehold.pipeline.connectors.handlers import Async, HandlerSink, do_nothing
from leasehold.pipeline.errors import SinkUnavailable
from leasehold.pipeline.handlers.events import Events
from leasehold.pipeline.handlers.stats import HandlerStats
from leasehold.pipeline.handlers.writer import HandlerWriter
from leasehold.pipeline.limits import ParallelLimits
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit

if TYPE_CHECKING:
    from lab.simulation.world import World

    from leasehold.service.worker import Worker

DOCUMENTS = 3
KEY = "document"
CALLS = "calls, of which several run at a time"
STOP_S = 10 * SLOWEST - 0.1
"""What a stop may take at most, by the slowest clock; not what the code under test makes of it."""


@dataclass(slots=True)
class Calls:
    """Those of one tenure. running: by key, the numbers of a call's events. begun, done: by key, the last event.

    ahead: what was handled, or is about to be, and is not covered by the lease.
    """

    running: dict[int, Sequence[int]] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    ahead: set[int] = field(default_factory=set)


class SideBySide(HandlerSink):
    """One host's way to the service."""

    def __init__(self, world: World) -> None:
        assert world.setup.parallel is not None, "this seed calls handlers batch by batch"
        super().__init__(_nowhere, key=KEY, limits=world.setup.parallel)
        self._world = world

    @property
    def identity(self) -> str:
        return "simulated"

    async def open(self, claim: Claim) -> HandlerWriter:
        world, limits = self._world, self._limits
        ahead_max = limits.window + 2 * world.setup.batch_events_max
        if world.onlooker.is_handed_over(claim.partition):
            world.onlooker.counts["handlers after an orderly stop"] += 1
        else:
            world.onlooker.tried(claim.partition, ahead_max)
        handler = _Handler(world, claim, limits, ahead_max)
        return _Writer(
            claim,
            Async(handler),
            close=do_nothing,
            report=lambda text, error: None,
            key=KEY,
            limits=limits,
            clock=self._clock,
            name="handler",
            stats=HandlerStats(self._clock),
            world=world,
        )


class _Writer(HandlerWriter):
    def __init__(self, claim: Claim, caller: Async, *, world: World, **settings: Any) -> None:
        super().__init__(claim, caller, **settings)
        self._world = world
        self._stopped_at: float | None = None
        worker = world.running(current()).host.workers[LeaseKey(claim.pipeline, claim.partition)]
        self._stopped = asyncio.create_task(self._note_stop(worker), name=f"stop of {claim.partition}")

    async def write(self, output: Output, permit: Permit) -> None:
        keys = pa.array([int(body) % DOCUMENTS for body in output.table["body"].to_pylist()], pa.int64())
        await super().write(replace(output, table=output.table.append_column(KEY, keys)), permit)

    async def close(self, reason: CloseReason) -> None:
        self._stopped.cancel()
        process = current()
        if reason == "shutdown" and process is not None and not process.is_dead:
            self._stop_in_order()
        await super().close(reason)

    def _stop_in_order(self) -> None:
        """Before its time is over, a stop leaves nothing that was taken."""
        claim, world, left = self._claim, self._world, self._calls.unsettled
        took_s = 0.0 if self._stopped_at is None else world.now - self._stopped_at
        world.onlooker.check(
            not left or self._stopped_at is None or took_s >= STOP_S,
            "I9",
            lambda: (
                f"{incarnation()} stops '{claim.partition}' after {took_s:.2f} s, and leaves {left} events that it took"
            ),
        )
        if took_s < STOP_S:
            world.onlooker.finishes(incarnation(), claim.partition, claim.generation, self.position)

    async def _note_stop(self, worker: Worker) -> None:
        await worker._stopping.wait()
        self._stopped_at = self._world.now


async def _nowhere(event: Any) -> None:
    raise AssertionError("each claim has a handler of its own")


class _Handler:
    """The function, as one claim calls it."""

    def __init__(self, world: World, claim: Claim, limits: ParallelLimits, ahead_max: int) -> None:
        self._world = world
        self._claim = claim
        self._limits = limits
        self._ahead_max = ahead_max
        self._by = incarnation()
        self._calls = Calls()

    async def __call__(self, argument: Events | Mapping[str, Any]) -> None:
        events = list(argument) if isinstance(argument, Events) else [argument]
        numbers, world, claim = [int(event["body"]) for event in events], self._world, self._claim
        key = numbers[0] % DOCUMENTS
        self._begins(key, numbers)
        world.onlooker.sends(self._by, claim.partition, (claim.epoch,), CALLS)
        request = Request(host_of(current()), "sink", "write", claim.partition)
        arrives = partial(world.onlooker.arrives, claim.partition, claim.generation, numbers)
        is_answered = False
        try:
            await answered(world.weather, request, arrives, SinkUnavailable, TimeoutError)
            is_answered = True
        finally:
            del self._calls.running[key]
            if not is_answered:
                world.onlooker.tried(claim.partition, len(numbers))
        self._calls.done[key] = numbers[-1]
        if self._limits.manual_ack and isinstance(argument, Events):
            await argument.ack(events[-1]["sequence"])

    def _begins(self, key: int, numbers: Sequence[int]) -> None:
        calls, onlooker, claim = self._calls, self._world.onlooker, self._claim
        onlooker.counts["calls side by side"] += bool(calls.running)
        subject = f"events {numbers[0]} to {numbers[-1]} of document {key} of '{claim.partition}'"
        onlooker.check(key not in calls.running, "I13", lambda: f"{subject} are handled beside {calls.running[key]}")
        begun, done = calls.begun.get(key, -1), calls.done.get(key, -1)
        is_next = numbers[0] > done and (begun == done or numbers[0] <= begun)
        onlooker.check(
            is_next and list(numbers) == sorted(numbers),
            "I13",
            lambda: f"{subject} are handled after {begun} was begun, and {done} was done",
        )
        calls.begun[key] = max(begun, numbers[-1])
        calls.running[key] = numbers
        most = self._limits.max
        onlooker.check(len(calls.running) <= most, "I13", lambda: f"{len(calls.running)} calls run, and {most} may")
        lease = onlooker.leases.get(claim.partition)
        at = number(lease.continuation) if lease is not None and lease.generation == claim.generation else 0
        calls.ahead = {each for each in (*calls.ahead, *numbers) if each >= at}
        onlooker.check(
            len(calls.ahead) <= self._ahead_max,
            "I13",
            lambda: f"{len(calls.ahead)} events of '{claim.partition}' are ahead of its lease, which has {at}",
        )
