"""What happens to a group, one situation after another: each begins with the group as the one before left it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from lab.scale.group import ScaleGroup, name_of, until
from lab.simulation.weather import Request

from leasehold.leases.store import READS

MINUTE = 60.0
OUTAGE_S = 30.0
WAVES_MAX = 10
SETTLING_S = 75.0
"""Longer than an audit interval of a small group, so that every host has agreed on sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A group: how many hosts share how many leases.

    deaths: how many hosts are killed one after another; the slowest counts. batch_s: of the sink, where it is under load.
    """

    name: str
    hosts: int
    leases: int
    idle_minutes: int = 10
    deaths: int = 3
    batch_s: float = 0.2
    situations: tuple[str, ...] = ()
    """Empty: all of them."""

    @property
    def is_shared(self) -> bool:
        return self.hosts * self.leases > 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One situation. requests, blob_requests, documents, kilobytes: for each host and minute.

    owned_s: until every lease had a live owner. even_s: until, besides, shares were within one. None: not within the time
    that was given. moves: leases that got another owner. repeated: batches that arrived twice; None if there were no events.
    """

    situation: str
    requests: float
    blob_requests: float
    documents: float
    kilobytes: float
    lease_writes: int
    owned_s: float | None
    even_s: float | None
    moves: int
    repeated: int | None = None


async def situations(setup: Setup, group: ScaleGroup) -> AsyncIterator[Row]:
    """All that the setup names."""
    wanted = setup.situations

    def is_wanted(name: str) -> bool:
        return not wanted or name in wanted

    scene = Scene(setup, group)
    await scene.begin()
    if is_wanted("idle"):
        yield await scene.watch("idle", scene.rest, setup.idle_minutes * MINUTE)
    if is_wanted("outage"):
        yield await scene.watch("the container is away for 30 s", scene.lose_container)
        yield await scene.watch("writes fail for 30 s", scene.lose_writes)
    if is_wanted("join"):
        yield await scene.watch("a host joins", scene.join)
    if is_wanted("scaling"):
        yield await scene.watch("scale-out by a third", scene.scale_out)
        yield await scene.watch("scale-in to the former number", scene.scale_in)
        yield await scene.watch("rolling restart", scene.restart_all)
    if is_wanted("load") or "loaded join" in wanted:
        async for row in scene.under_load():
            yield row
    if is_wanted("death"):
        yield await scene.die_again_and_again()
    if is_wanted("zone"):
        await scene.come_back()
        yield await scene.watch("a third of the hosts dies at once", scene.lose_zone)


class Scene:
    def __init__(self, setup: Setup, group: ScaleGroup) -> None:
        self.setup = setup
        self.group = group
        self.died: str | None = None
        self._numbers = iter(range(1_000_000))

    async def begin(self) -> None:
        """All hosts start within two seconds."""
        for _ in range(self.setup.hosts):
            self.group.start(self._name())
            await asyncio.sleep(self.group.rng.uniform(0, 4 / self.setup.hosts))
        assert await until(lambda: self.group.is_even) is not None, "the group does not come to rest"
        await asyncio.sleep(30.0 if self.setup.is_shared else SETTLING_S)

    async def watch(self, name: str, happen: Callable[[], Awaitable[None]], for_s: float = MINUTE) -> Row:
        """What follows, for so long at least."""
        group, loop = self.group, asyncio.get_running_loop()
        began, cost, moves = loop.time(), group.store.cost, group.moves
        batches, repeated, hosts = group.sink.batches, group.sink.repeated, len(group.hosts)
        await happen()
        owned_s = None if await until(lambda: group.is_owned) is None else loop.time() - began
        even_s = None if await until(lambda: group.is_even) is None else loop.time() - began
        await asyncio.sleep(max(0.0, began + for_s - loop.time()))
        spent = group.store.cost - cost
        each = (loop.time() - began) / MINUTE * max(hosts, len(group.hosts))
        row = Row(
            situation=name,
            requests=spent.requests / each,
            blob_requests=spent.blob_requests / each,
            documents=spent.read / each,
            kilobytes=spent.bytes / each / 1000,
            lease_writes=spent.lease_writes,
            owned_s=owned_s,
            even_s=even_s,
            moves=group.moves - moves,
            repeated=group.sink.repeated - repeated if group.sink.batches > batches else None,
        )
        await asyncio.sleep(group.rng.uniform(5, 10))
        return row

    # What happens

    async def rest(self) -> None:
        """Nothing."""

    async def lose_container(self) -> None:
        await self._refuse(lambda request: True)

    async def lose_writes(self) -> None:
        await self._refuse(lambda request: request.operation not in READS)

    async def _refuse(self, refused: Callable[[Request], bool]) -> None:
        self.group.weather.refused = refused
        await asyncio.sleep(OUTAGE_S)
        self.group.weather.refused = lambda request: False

    async def join(self) -> None:
        self.group.start(self._name())

    async def scale_out(self) -> None:
        for _ in range(self.setup.hosts + max(1, self.setup.hosts // 3) - len(self.group.hosts)):
            self.group.start(self._name())

    async def scale_in(self) -> None:
        names = list(self.group.hosts)[self.setup.hosts :]
        await asyncio.gather(*map(self.group.stop, names))

    async def restart_all(self) -> None:
        """Wave after wave, at most ten: each stops gracefully, and starts again under its names."""
        names = list(self.group.hosts)
        size = -(-len(names) // WAVES_MAX)
        for first in range(0, len(names), size):
            wave = names[first : first + size]
            await asyncio.gather(*map(self.group.stop, wave))
            for name in wave:
                self.group.start(name)
            await until(lambda: self.group.is_even)

    async def die_again_and_again(self) -> Row:
        """One host after another; the slowest case."""
        rows: list[Row] = []
        for _ in range(self.setup.deaths):
            await self.come_back()
            rows.append(await self.watch("a host dies", self.die))
        return max(rows, key=lambda row: row.owned_s or float("inf"))

    async def die(self) -> None:
        self.died = self.group.rng.choice(list(self.group.hosts))
        await self.group.kill(self.died)

    async def come_back(self) -> None:
        """The host that died, if any: once the others have its leases."""
        if self.died is None:
            return
        self.group.start(self.died)
        self.died = None
        await until(lambda: self.group.is_even)
        await asyncio.sleep(self.group.rng.uniform(10, 20))

    async def lose_zone(self) -> None:
        names = list(self.group.hosts)
        for name in names[: len(names) // 3]:
            await self.group.kill(name)

    async def under_load(self) -> AsyncIterator[Row]:
        """Every lease has a batch under way at any time."""
        self.group.sink.batch_s = self.setup.batch_s
        self.group.feed.begin()
        await asyncio.sleep(10 * self.setup.batch_s)
        yield await self.watch("a host joins, under load", self.join, for_s=0.0)
        if "loaded join" in self.setup.situations:
            return
        yield await self.watch("that host drains, under load", self._leave, for_s=0.0)
        yield await self.watch("a host dies, under load", self._die, for_s=0.0)
        self.group.feed.end()
        self.group.start(self._name())
        await until(lambda: self.group.is_even)
        await asyncio.sleep(SETTLING_S)

    async def _leave(self) -> None:
        await self.group.stop(list(self.group.hosts)[-1])

    async def _die(self) -> None:
        await self.group.kill(next(iter(self.group.hosts)))

    def _name(self) -> str:
        return name_of(next(self._numbers))
