"""A handler that checkpoints by hand: batch by batch, from tasks of its own, some time after a call has returned.

I14 is checked at each call and at each checkpoint. Calls come in the order of the feed. The lease covers nothing that the
handler has processed and not checkpointed. A checkpoint of an event that the handler was not called with is refused.
And the events that were processed or are about to be, and that the lease does not
cover, are at most `buffered_entries_max` and two batches. So no crash repeats more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from lab.simulation.broker import numbers_in
from lab.simulation.invariants import number
from lab.simulation.outlets import WatchedHandler
from lab.simulation.process import current, incarnation

from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.handlers.changes import Context, LeaseLost

if TYPE_CHECKING:
    from lab.simulation.world import World

LATEST_S = 3.0
"""Between the end of a call and its checkpoint."""
STRAY_SHARE = 0.1
"""Of the calls: how many are followed by a checkpoint of an event that the handler was not called with."""
FAR = 1_000_000
"""An event so far behind is never there."""


class ByHand(WatchedHandler):
    """One tenure. first, begun: the first and the last event of the calls so far.
    open: what was processed, or is about to be, and not checkpointed.
    ahead: what the lease does not cover.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        manual = world.setup.manual
        assert manual is not None, "this seed's handlers do not checkpoint by hand"
        setup = world.setup
        batch = max(setup.batch_events_max, 0 if setup.ranges is None else setup.ranges.events_max)
        self._ahead_max = max(manual, batch) + 2 * batch
        self._begun = -1
        self._first: int | None = None
        self._open: set[int] = set()
        self._ahead: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, context: Context) -> None:
        if self._world.onlooker.is_handed_over(context.partition):
            self._world.onlooker.counts["by hand after an orderly stop"] += 1
        else:
            self._world.onlooker.tried(context.partition, self._ahead_max)

    async def process(self, context: Context, table: pa.Table) -> None:
        numbers = numbers_in(table)
        self._begins(context, numbers)
        await self._handle(context, numbers)
        task = asyncio.create_task(self._checkpoint(context, numbers), name=f"checkpoint of {context.partition}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, context: Context, reason: str) -> None:
        process = current()
        if reason == "shutdown" and not self._open and process is not None and not process.is_dead:
            self._world.onlooker.finishes(incarnation(), context.partition, context.lease.generation, context.position)

    def _begins(self, context: Context, numbers: Sequence[int]) -> None:
        onlooker, partition = self._world.onlooker, context.partition
        onlooker.check(
            self._begun < numbers[0] and list(numbers) == sorted(numbers),
            "I14",
            lambda: f"events {numbers[0]} to {numbers[-1]} of '{partition}' are processed after {self._begun}",
        )
        self._first = numbers[0] if self._first is None else self._first
        self._begun = numbers[-1]
        self._open.update(numbers)
        at = self._check_covered(context)
        self._ahead = {each for each in (*self._ahead, *numbers) if each >= at}
        onlooker.counts["calls ahead of checkpoints by hand"] += len(self._open) > len(numbers)
        onlooker.check(
            len(self._ahead) <= self._ahead_max,
            "I14",
            lambda: f"{len(self._ahead)} events of '{partition}' are ahead of its lease, which has {at}",
        )

    async def _checkpoint(self, context: Context, numbers: Sequence[int]) -> None:
        """Of a part of the batch, and then of the rest."""
        rng = random.Random(f"{self._world.setup.seed} by hand {context.partition} {numbers[0]}")
        assert context.lease.acknowledge is not None
        if rng.random() < STRAY_SHARE:
            await self._stray(context, rng)
        for last in (rng.choice(numbers), numbers[-1]):
            await asyncio.sleep(LATEST_S * rng.random())
            self._check_covered(context)
            left, self._open = self._open, {each for each in self._open if each > last}
            try:
                await context.lease.acknowledge(last)
            except LeaseLost:
                self._open = left
                self._world.onlooker.counts["checkpoints by hand of a lost lease"] += 1
                return

    async def _stray(self, context: Context, rng: random.Random) -> None:
        """A checkpoint of an event before the first or far behind the last."""
        assert self._first is not None, "the handler was called"
        sequence = rng.choice((self._first - 1, self._begun + FAR))
        answer = "is accepted"
        try:
            await context.lease.acknowledge(sequence)  # type: ignore[misc]
        except LeaseLost:
            return
        except SinkRejected:
            answer = "is refused"
        onlooker = self._world.onlooker
        onlooker.counts["checkpoints by hand that are refused"] += 1
        onlooker.check(
            answer == "is refused",
            "I14",
            lambda: f"a checkpoint of event {sequence} of '{context.partition}', which was not given, {answer}",
        )

    def _check_covered(self, context: Context) -> int:
        """The position in the lease, if it is this generation's."""
        lease = self._world.onlooker.leases.get(context.partition)
        if lease is None or (lease.generation, lease.epoch) != (context.lease.generation, context.epoch):
            return 0
        at = number(lease.continuation)
        lost = sorted(each for each in self._open if each < at)
        self._world.onlooker.check(
            not lost,
            "I14",
            lambda: f"the lease of '{context.partition}' has {at}, and {lost} are not checkpointed by hand",
        )
        return at
