"""Where a simulated world's output goes, but for the log (simulation.broker): all that is sent and arrives, the onlooker sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from lab.simulation.broker import numbers_in
from lab.simulation.process import current, incarnation
from lab.simulation.weather import Outlet, Request, answered, host_of

from leasehold.common.standing import Standing
from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryWriter
from leasehold.pipeline.errors import Ambiguous, Fenced, SinkError, SinkUnavailable
from leasehold.pipeline.handlers.changes import Context
from leasehold.pipeline.sink import Claim, CloseReason, Output

if TYPE_CHECKING:
    from lab.simulation.world import World

T = TypeVar("T")
SLOW_STEPS = 4
"""After each a slow sink says that it gets on."""


class WatchedDestination(MemoryDestination):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def claim(self, claim: Claim) -> str | None:
        position = super().claim(claim)
        self._world.onlooker.fenced(claim.partition, (claim.epoch,))
        return position

    def commit(self, claim: Claim, output: Output) -> None:
        super().commit(claim, output)
        self.commits.clear()
        self._world.tell(claim.owner, f"committed {claim.partition} {output.start}..{output.to} at epoch {claim.epoch}")
        self._world.onlooker.fenced(claim.partition, (claim.epoch,))
        self._world.onlooker.arrives(claim.partition, claim.generation, numbers_in(output.table))


class WatchedOutlet(Outlet):
    def __init__(self, world: World) -> None:
        super().__init__(world.destination, world.weather)
        self._onlooker = world.onlooker
        self._skies = world.skies
        self._numbers = count(1)

    async def open(self, claim: Claim) -> MemoryWriter:
        """Fenced at once; what the destination has may take long to be read."""
        writer = await super().open(claim)
        takes_s = self._skies.sink_s(claim.partition)
        for _ in range(SLOW_STEPS if takes_s else 0):
            await asyncio.sleep(takes_s / SLOW_STEPS)
            claim.report_progress()
        return writer

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        await asyncio.sleep(self._skies.sink_s(partition))
        asks = Request(host_of(current()), "sink", "standing", partition)
        request = partial(self.destination.standing, pipeline, partition)
        return await answered(self._weather, asks, request, SinkUnavailable, SinkUnavailable)

    async def _asked(self, operation: str, claim: Claim, request: Callable[[], Any]) -> Any:
        if operation == "open":
            return await self._soon(operation, claim, request)
        by, fence = incarnation(), (claim.epoch,)
        self._onlooker.sends(by, claim.partition, fence, next(self._numbers))
        try:
            answer = await self._soon(operation, claim, request)
        except Ambiguous:
            raise
        except (SinkError, Fenced):
            self._onlooker.settled(by, claim.partition, fence)
            raise
        self._onlooker.settled(by, claim.partition, fence)
        return answer

    def _soon(self, operation: str, claim: Claim, request: Callable[[], T]) -> asyncio.Future[T]:
        asks = Request(host_of(current()), "sink", operation, claim.partition)
        return answered(self._weather, asks, request, SinkUnavailable, Ambiguous)


class WatchedHandler:
    """A user's handler that calls a service; what it has sent arrives, whatever becomes of the handler."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def open(self, context: Context) -> None:
        self._world.onlooker.tried(context.partition)

    async def process(self, context: Context, table: pa.Table) -> None:
        self._world.onlooker.goes_on(context.partition, context.lease.generation, context.position)
        await self._handle(context, numbers_in(table))

    async def _handle(self, context: Context, numbers: list[int]) -> None:
        world, by, fence = self._world, incarnation(), (context.epoch,)
        world.onlooker.sends(by, context.partition, fence, context.to)
        request, arrived = (
            Request(host_of(current()), "sink", "process", context.partition),
            partial(self._arrived, context),
        )
        try:
            await answered(world.weather, request, partial(arrived, numbers), SinkUnavailable, SinkUnavailable)
        except SinkUnavailable:
            world.onlooker.tried(context.partition)
            world.onlooker.settled(by, context.partition, fence)
            raise
        world.onlooker.settled(by, context.partition, fence)

    async def close(self, context: Context, reason: CloseReason) -> None:
        """Nothing is held."""

    def _arrived(self, context: Context, numbers: list[int]) -> None:
        self._world.tell(context.owner, f"arrived {context.partition} {context.position}..{context.to}")
        self._world.onlooker.arrives(context.partition, context.lease.generation, numbers)
