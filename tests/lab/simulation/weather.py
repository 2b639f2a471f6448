"""The outside world of a simulation: a container, a source and a destination in memory, and a weather between them and hosts.

The weather judges every request: how long it takes on its way, and whether it or its answer is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import psycopg
from lab.simulation.process import OUTSIDE, Process, current, sent

from leasehold.common.standing import Standing
from leasehold.leases.errors import StoreAmbiguous, StoreError, StoreUnavailable
from leasehold.leases.store import READS, ChangedDocuments, Stored
from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.log.partition_file import LogError
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink, MemoryWriter
from leasehold.pipeline.errors import (
    Ambiguous,
    FeedUnavailable,
    PipelineError,
    SinkError,
    SinkRejected,
    SinkUnavailable,
)
from leasehold.pipeline.sink import Claim

T = TypeVar("T")
Where = Literal["store", "feed", "sink"]
Ends = Literal["ok", "refused", "rejected", "lost", "ghost", "late"]
"""rejected: by a sink, for good."""


class Request(NamedTuple):
    """host: who asks, "" outside of any. operation, id: the store's call and its document; a sink's `open` or `write` and its
    partition; a feed does not say."""

    host: str
    where: Where
    operation: str = ""
    id: str = ""


class Fate(NamedTuple):
    """late_s: on the way there. back_s: on the way back, so that an answer may be old when it comes.

    refused: surely not carried out; retry_after_s: what the service says of it. lost: carried out without an answer. ghost:
    neither. late: without an answer at once, and carried out after late_s, when nobody waits for it any more; or before that,
    just ahead of the overtaken_by-th request that comes to the same document or partition. is_quick_to_refuse: a refusal does not
    take back_s.
    """

    late_s: float = 0.005
    ends: Ends = "ok"
    overtaken_by: int = 0
    retry_after_s: float | None = None
    back_s: float = 0.0
    is_quick_to_refuse: bool = False


@dataclass(slots=True, eq=False)
class _Delayed:
    """A late request on its way. overtaken_by: how many more; 0 where only time counts."""

    call: Callable[[], object]
    overtaken_by: int


class Weather:
    """What becomes of requests. Assign `judge` for anything that the switches do not say."""

    def __init__(self) -> None:
        self.down: set[tuple[str, Where]] = set()
        self.judge: Callable[[Request], Fate] = lambda request: Fate()
        self.requests: list[tuple[float, Request]] = []
        self.overtaken = 0
        self._delayed: dict[tuple[Where, str], list[_Delayed]] = {}

    def fate(self, request: Request) -> Fate:
        self.requests.append((asyncio.get_running_loop().time(), request))
        if self.down and {(request.host, request.where), ("", request.where)} & self.down:
            return Fate(ends="refused")
        return self.judge(request)

    def delay(self, request: Request, fate: Fate, call: Callable[[], object]) -> None:
        """`call` is carried out late."""
        delayed = _Delayed(call, fate.overtaken_by)
        under_way = self._delayed.setdefault((request.where, request.id), [])
        under_way.append(delayed)
        asyncio.get_running_loop().call_later(fate.late_s, _landed, under_way, delayed, context=OUTSIDE)

    def reaches(self, request: Request) -> None:
        """A request is about to be carried out: what it overtook so often comes just before it."""
        if not self._delayed:
            return
        under_way = self._delayed.get((request.where, request.id), [])
        for delayed in tuple(under_way):
            delayed.overtaken_by -= 1
            if delayed.overtaken_by == 0:
                self.overtaken += 1
                _landed(under_way, delayed)


def _landed(under_way: list[_Delayed], delayed: _Delayed) -> None:
    if delayed in under_way:
        under_way.remove(delayed)
        with suppress(StoreError, PipelineError, LogError, psycopg.Error):
            delayed.call()


class Container(MemoryStore):
    def __init__(self, weather: Weather) -> None:
        super().__init__()
        self._weather = weather

    async def list(self, prefix: str) -> list[Stored]:
        return await self._call("list", prefix, lambda: MemoryStore.list(self, prefix))

    async def read_changes(self, prefix: str, since: str | None = None) -> ChangedDocuments | None:
        return await self._call("changes", prefix, lambda: MemoryStore.read_changes(self, prefix, since))

    async def count(self, prefix: str) -> int | None:
        return await self._call("count", prefix, lambda: MemoryStore.count(self, prefix))

    async def read(self, id: str) -> Stored:
        return await self._call("read", id, lambda: MemoryStore.read(self, id))

    async def create(self, id: str, body: str) -> str:
        return await self._call("create", id, lambda: MemoryStore.create(self, id, body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._call("replace", id, lambda: MemoryStore.replace(self, id, body, etag))

    async def delete(self, id: str, etag: str) -> None:
        await self._call("delete", id, lambda: MemoryStore.delete(self, id, etag))

    async def _call(self, operation: str, id: str, call: Callable[[], Awaitable[T]]) -> T:
        fate = self._weather.fate(Request(_host(), "store", operation, id))
        is_write = operation not in READS
        lost: type[Exception] = StoreAmbiguous if is_write else StoreUnavailable
        return await sent(lambda: _fulfilled(fate, call, StoreUnavailable, lost))


class Source(MemoryChangeFeed):
    weather: Weather

    async def _request(self, request: Callable[[], T]) -> T:
        fate = self.weather.fate(Request(_host(), "feed"))
        return await sent(lambda: _fulfilled(fate, _later(request), FeedUnavailable, FeedUnavailable))


class Outlet(MemoryOutputSink):
    def __init__(self, destination: MemoryDestination, weather: Weather) -> None:
        super().__init__(destination)
        self._weather = weather

    async def open(self, claim: Claim) -> MemoryWriter:
        position = await self._asked("open", claim, lambda: self.destination.claim(claim))
        return MemoryWriter(self.destination, claim, position, partial(self._asked, "write", claim))

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        fate = self._weather.fate(Request(_host(), "sink", "standing", partition))
        found = partial(super().standing, pipeline, partition)
        return await sent(lambda: _fulfilled(fate, found, SinkUnavailable, SinkUnavailable))

    async def _asked(self, operation: str, claim: Claim, request: Callable[[], T]) -> T:
        fate = self._weather.fate(Request(_host(), "sink", operation, claim.partition))
        return await sent(lambda: _fulfilled(fate, _later(request), SinkUnavailable, Ambiguous))


def of(where: Where, operation: str = "", within: str = "") -> Callable[[Request], bool]:
    """Requests of one kind. within: their ids."""
    return lambda request: request.where == where and operation in ("", request.operation) and within in request.id


class Once:
    """A judge who lets the first requests of a kind end so, one after another, and all others well."""

    def __init__(self, kind: Callable[[Request], bool], *ends: Ends, late_s: float = 0.005) -> None:
        self.kind, self.ends, self.late_s = kind, list(ends), late_s

    def __call__(self, request: Request) -> Fate:
        if self.ends and self.kind(request):
            return Fate(late_s=self.late_s, ends=self.ends.pop(0))
        return Fate()


def host_of(process: Process | None) -> str:
    return process.host if process else ""


def _host() -> str:
    return host_of(current())


def _later(request: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    async def carried_out() -> T:
        return request()

    return carried_out


async def _fulfilled(
    fate: Fate, call: Callable[[], Awaitable[T]], refused: type[Exception], lost: type[Exception]
) -> T:
    if fate.ends == "late":
        asyncio.get_running_loop().call_later(fate.late_s, lambda: asyncio.ensure_future(_late(call)))
        raise lost("no answer")
    await asyncio.sleep(fate.late_s)
    if fate.ends in ("refused", "rejected"):
        raise _refusal(refused, fate)
    if fate.ends == "ghost":
        raise lost("no answer")
    answer = await call()
    if fate.ends == "lost":
        raise lost("no answer")
    return answer


def answered(
    weather: Weather, request: Request, call: Callable[[], T], refused: type[Exception], lost: type[Exception]
) -> asyncio.Future[T]:
    """As `sent` and `_fulfilled` together, for what is carried out in one step, and without a task."""
    fate = weather.fate(request)
    process, loop = current(), asyncio.get_running_loop()
    if process is not None and process.is_dead:
        raise asyncio.CancelledError("a dead process sends nothing")
    answer: asyncio.Future[T] = loop.create_future()
    if fate.ends == "late":
        weather.delay(request, fate, call)
        loop.call_soon(_fail, answer, lost("no answer"))
    else:
        loop.call_later(fate.late_s, _answer, weather, request, answer, fate, call, refused, lost, context=OUTSIDE)
    return answer


def _answer(
    weather: Weather,
    request: Request,
    answer: asyncio.Future[T],
    fate: Fate,
    call: Callable[[], T],
    refused: type[Exception],
    lost: type[Exception],
) -> None:
    if fate.ends in ("refused", "rejected"):
        return _fail(answer, _refusal(refused, fate))
    if fate.ends == "ghost":
        return _fail(answer, lost("no answer"))
    weather.reaches(request)
    try:
        result = call()
    except Exception as error:
        return _later_fail(answer, error, 0.0 if fate.is_quick_to_refuse else fate.back_s)
    if fate.ends == "lost":
        return _fail(answer, lost("no answer"))
    if fate.back_s:
        asyncio.get_running_loop().call_later(fate.back_s, _succeed, answer, result, context=OUTSIDE)
    else:
        _succeed(answer, result)
    return None


def _succeed(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _later_fail(answer: asyncio.Future[T], error: Exception, back_s: float) -> None:
    if back_s:
        asyncio.get_running_loop().call_later(back_s, _fail, answer, error, context=OUTSIDE)
    else:
        _fail(answer, error)


def _refusal(refused: Callable[..., Exception], fate: Fate) -> Exception:
    if fate.ends == "rejected":
        return SinkRejected("not from this host")
    if fate.retry_after_s is None:
        return refused("out of reach")
    return refused(f"throttled, try again after {fate.retry_after_s:.2f} s", retry_after_s=fate.retry_after_s)


def _fail(answer: asyncio.Future[T], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


async def _late(call: Callable[[], Awaitable[object]]) -> None:
    with suppress(StoreError, SinkError):
        await call()
