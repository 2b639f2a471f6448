"""The lease store of a simulated world, whose every change the onlooker sees."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, TypeVar
from zlib import crc32

from lab.simulation.process import OUTSIDE, current, held, incarnation
from lab.simulation.setup import PIPELINES
from lab.simulation.weather import Container, Request, answered, host_of

from leasehold.leases import document
from leasehold.leases.document import lease_prefix
from leasehold.leases.errors import StoreAmbiguous, StoreConflict, StoreUnavailable
from leasehold.leases.host_record import HOSTS_PREFIX, RENOUNCED, HostRecord, found_host
from leasehold.leases.lease import Lease
from leasehold.leases.store import READS, ChangedDocuments, Hint, Operation, Stored

if TYPE_CHECKING:
    from lab.simulation.world import World

T = TypeVar("T")
PARTS = 3
"""Into how many parts the container is split that each number their writes: changes are read from one after another."""
EXPIRED = 0.03
"""Of the tokens: a part has been split since, or the store has another reason to have the caller list."""
COPIES = (0, 1, 1, 1, 2)
"""How often a hint arrives: a fifth are lost."""
BROKEN = 0.02
"""Of the hints: the connection breaks after them."""
REPEATED = 8
"""How many writes before its token an answer shows again, at most."""
LEASES = tuple(map(lease_prefix, PIPELINES))


class WatchedContainer(Container):
    """A container whose every change the onlooker sees."""

    def __init__(self, world: World) -> None:
        super().__init__(world.weather)
        self._world = world
        self._fates = random.Random(f"{world.setup.seed} hints")
        self._watches: list[asyncio.Queue[Hint]] = []

    async def list(self, prefix: str) -> list[Stored]:
        found = await self._soon("list", prefix, partial(self._listed, prefix))
        return [*(await self._torn(prefix, found) if self._world.setup.tears and len(found) > 1 else found)]

    async def read_changes(self, prefix: str, since: str | None = None) -> ChangedDocuments | None:
        """By numbers of writes, one for each part. In calm, an answer is whole and holds nothing twice."""
        known = None if since is None else [int(number) for number in since.split()]
        found = await self._soon("changes", prefix, partial(self._changed, prefix, known))
        world, rng = self._world, self._world.skies.rng
        if known is None or world.skies.is_calm:
            return found
        if rng.random() < EXPIRED:
            world.onlooker.counts["expired tokens"] += 1
            return None
        if not world.setup.tears:
            return found
        first, parts = found, rng.randint(1, PARTS - 1)
        await asyncio.sleep(world.timing.call_timeout_s * rng.random() / 8)
        second = self._changed(prefix, [max(0, number - rng.randint(0, REPEATED)) for number in known])
        world.onlooker.counts["torn changes"] += first.documents != second.documents
        documents = [each for each in first.documents if _part_of(each.id) < parts]
        documents += [each for each in second.documents if _part_of(each.id) >= parts]
        numbers = [*first.token.split()[:parts], *second.token.split()[parts:]]
        return ChangedDocuments(rng.sample(documents, len(documents)), " ".join(numbers))

    async def count(self, prefix: str) -> int | None:
        return await self._soon("count", prefix, lambda: len(self._listed(prefix)))

    async def read(self, id: str) -> Stored:
        return await self._soon("read", id, partial(self._found, id))

    async def create(self, id: str, body: str) -> str:
        return await self._soon("create", id, partial(self._created, incarnation(), self._world.now, id, body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._soon("replace", id, partial(self._replaced, incarnation(), self._world.now, id, body, etag))

    async def delete(self, id: str, etag: str) -> None:
        await self._soon("delete", id, partial(self._deleted, incarnation(), id, etag))

    async def notify(self, hints: Sequence[Hint]) -> None:
        """Each watch may get a hint late, twice, or never."""
        loop, world = asyncio.get_running_loop(), self._world
        for watch, hint in product(self._watches, hints):
            for _ in range(self._fates.choice(COPIES)):
                late_s = world.timing.call_timeout_s * self._fates.random() ** 8
                loop.call_later(late_s, watch.put_nowait, hint, context=OUTSIDE)
                world.onlooker.counts["hints"] += 1

    async def watch(self) -> AsyncGenerator[Hint, None]:
        """Until its connection breaks, which it does now and then."""
        if not self._world.setup.size.hints:
            return
        watch = asyncio.Queue[Hint]()
        self._watches.append(watch)
        try:
            yield Hint()
            while self._world.skies.is_calm or self._fates.random() > BROKEN:
                yield await watch.get()
        finally:
            self._watches.remove(watch)
        raise StoreUnavailable("the connection for hints broke")

    def _soon(self, operation: Operation, id: str, call: Callable[[], T]) -> asyncio.Future[T]:
        request = Request(host_of(current()), "store", operation, id)
        lost = StoreUnavailable if operation in READS else StoreAmbiguous
        hold = self._world.skies.take_hold(request) if self._world.skies.holds else None
        if hold is None:
            return answered(self._weather, request, call, StoreUnavailable, lost)
        self._world.tell(incarnation(), f"is stopped for {hold.for_s:.2f} s before its {operation} of {id} goes out")
        self._world.onlooker.counts["held requests"] += 1
        return held(hold.for_s, lambda: answered(self._weather, request, call, StoreUnavailable, lost))

    async def _torn(self, prefix: str, found: Sequence[Stored]) -> Sequence[Stored]:
        """The listing's second page is read later than its first."""
        world = self._world
        first = found[: world.skies.rng.randint(1, len(found) - 1)]
        await asyncio.sleep(world.timing.call_timeout_s * world.skies.rng.random() / 8)
        second = [stored for stored in self._listed(prefix) if stored.id > first[-1].id]
        world.onlooker.counts["torn listings"] += second != found[len(first) :]
        return [*first, *second]

    def _listed(self, prefix: str) -> Sequence[Stored]:
        return [self._documents[name] for name in sorted(self._documents) if name.startswith(prefix)]

    def _changed(self, prefix: str, since: Sequence[int] | None) -> ChangedDocuments:
        token = " ".join([str(self._last_etag)] * PARTS)
        if since is None:
            return ChangedDocuments((), token)
        return ChangedDocuments(
            [each for each in self._listed(prefix) if int(each.etag) > since[_part_of(each.id)]], token
        )

    def _created(self, by: str, started: float, id: str, body: str) -> str:
        if id in self._documents:
            raise StoreConflict(f"document '{id}' exists already")
        self._beaten(by, started, id, body)
        if id.startswith(LEASES):
            lease = document.decode_lease(id, body)
            self._world.tell(by, partial(_told, "created", lease))
            self._world.onlooker.created(by, lease, started)
        return self._put(id, body)

    def _replaced(self, by: str, started: float, id: str, body: str, etag: str) -> str:
        self._match(id, etag)
        if id.startswith(LEASES):
            lease = document.decode_lease(id, body)
            self._world.tell(by, partial(_told, "wrote", lease))
            self._world.onlooker.wrote(by, document.decode_lease(id, self._documents[id].body), lease, started)
        self._beaten(by, started, id, body)
        return self._put(id, body)

    def _deleted(self, by: str, id: str, etag: str) -> None:
        self._match(id, etag)
        if id.startswith(LEASES):
            self._world.onlooker.cleared(by, document.decode_lease(id, self._documents[id].body))
        self._beaten(by, 0.0, id, "")
        del self._documents[id]

    def edit_host(self, id: str, body: str | None) -> None:
        """A text editor changes a host's document, or removes it."""
        before, now = self._documents.get(id), found_host(id, body) if body else None
        was = None if before is None else found_host(id, before.body)
        if was is not None and now is not None and _judged_by(was) != _judged_by(now):
            self._world.onlooker.misled(was.incarnation)
        self._note_host(id, body)
        if body is None:
            self._documents.pop(id, None)
        else:
            self._put(id, body)

    def _beaten(self, by: str, started: float, id: str, body: str) -> None:
        """What can be seen of a host changes."""
        if not id.startswith(HOSTS_PREFIX):
            return
        host = self._note_host(id, body)
        if host is not None and host.incarnation == by:
            self._world.onlooker.beaten(by, started, host.lasts_s)

    def _note_host(self, id: str, body: str | None) -> HostRecord | None:
        before = self._documents.get(id)
        if before is not None and (was := found_host(id, before.body)) is not None:
            self._world.onlooker.host_moved(was.incarnation, None)
        now = found_host(id, body) if body else None
        if now is not None:
            self._world.onlooker.host_moved(now.incarnation, now)
        return now


def _judged_by(host: HostRecord) -> tuple[float, bool]:
    return host.lasts_s, RENOUNCED in host.fitness


def _part_of(id: str) -> int:
    return crc32(id.encode()) % PARTS


def _told(done: str, lease: Lease) -> str:
    flags = " closed" * lease.closed + (f" for {lease.handoff_to}" if lease.handoff_to else "")
    return (
        f"{done} {lease.partition}: {lease.incarnation or '-'} epoch {lease.epoch}.{lease.generation} tick {lease.tick}"
        f" at {lease.continuation}{flags} {lease.sink_state}"
    )
