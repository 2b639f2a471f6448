"""A destination for tests that throttles, fails items, stalls and dies, and remembers what it has taken."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.simulation.loop import VirtualClock

from leasehold.pipeline.async_sink import Destination, Entry, Failed
from leasehold.pipeline.errors import NotTrusted, SinkUnavailable
from leasehold.pipeline.sink import Claim


class Trusted:
    def check(self) -> None: ...

    async def wait_until_granted(self) -> None: ...


class Trust:
    """A permit that can be taken away."""

    def __init__(self) -> None:
        self.given = asyncio.Event()
        self.given.set()

    def check(self) -> None:
        if not self.given.is_set():
            raise NotTrusted("no trust")

    async def wait_until_granted(self) -> None:
        await self.given.wait()


@dataclass(slots=True)
class Taken:
    """An entry that arrived, and when."""

    at: float
    entry: Entry

    @property
    def row(self) -> Any:
        return json.loads(self.entry.value)


@dataclass(slots=True)
class Trouble:
    """From `start` to `end` (seconds of the loop) `share` of the requests, or of the items, have it.

    kind: throttle (all fails, with `retry_after_s`), items (single ones fail), stall (no answer), dead (refused at once).
    """

    kind: str
    start: float = 0.0
    end: float = float("inf")
    share: float = 1.0
    retry_after_s: float | None = None


@dataclass(slots=True)
class Scripted(Destination):
    """takes_s: for each request. troubles: what happens when. most_at_once, sizes: requests as they came."""

    takes_s: float = 0.02
    troubles: Sequence[Trouble] = ()
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    taken: list[Taken] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    began: list[float] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    before: Callable[[Sequence[Entry]], None] = lambda entries: None

    async def submit(self, entries: Sequence[Entry]) -> Failed:
        self.sizes.append(len(entries))
        self.began.append(now())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.before(entries)
            return await self._answer(entries)
        finally:
            self.at_once -= 1

    async def _answer(self, entries: Sequence[Entry]) -> Failed:
        if self._has("dead"):
            raise ConnectionRefusedError(111, "Connection refused")
        if self._has("stall"):
            await asyncio.get_running_loop().create_future()
        await VirtualClock().sleep(self.takes_s)
        if throttle := self._has("throttle"):
            raise SinkUnavailable("too many requests", retry_after_s=throttle.retry_after_s)
        failed = [entry for entry in entries if self._has("items")]
        numbers = {entry.number for entry in failed}
        self.taken.extend(Taken(now(), entry) for entry in entries if entry.number not in numbers)
        return Failed(failed, is_throttled=False)

    def _has(self, kind: str) -> Trouble | None:
        for trouble in self.troubles:
            if trouble.kind == kind and trouble.start <= now() < trouble.end and self.rng.random() < trouble.share:
                return trouble
        return None

    @property
    def keys(self) -> list[str]:
        return [taken.entry.key for taken in self.taken]

    @property
    def numbers(self) -> list[int]:
        return [taken.row["sequence"] for taken in self.taken]

    def rate(self, start: float, end: float) -> float:
        """Entries a second that arrived in between."""
        return sum(start <= taken.at < end for taken in self.taken) / (end - start)


def now() -> float:
    return asyncio.get_running_loop().time()


def claim(continuation: str | None = None, *, partition: str = "7", epoch: int = 1) -> Claim:
    return Claim(
        pipeline="bank",
        partition=partition,
        owner="host-a",
        epoch=epoch,
        generation=0,
        continuation=continuation,
        state="",
        compare=lambda a, b: int(a or 0) - int(b or 0),
    )
