"""The writer of a claim to a broker that holds the lease's position: output and position are put in one step."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Generic, TypeVar

from leasehold.pipeline.connectors.held import Held
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import SinkRejected, SinkUnavailable
from leasehold.pipeline.sink import Claim, Output, Permit, SinkWriter, checked_until_cancelled

M = TypeVar("M")
Change = Callable[[Held], Held]


class HeldWriter(SinkWriter, Generic[M]):
    """held: what was put last. refresh_s: how often an idle lease puts its position again, so that the broker keeps it."""

    def __init__(self, claim: Claim, held: Held, refresh_s: float) -> None:
        self._claim = claim
        self._held = held
        self._refresh_s = refresh_s
        self._put_at = 0.0

    @property
    def position(self) -> str | None:
        return self._held.position

    @property
    def place(self) -> str | None:
        return str(self._held.target)

    @abstractmethod
    async def _messages_of(self, output: Output) -> Sequence[M]:
        """Raises SinkRejected, OutputRefused, OutputTooLarge."""

    @abstractmethod
    async def _put(self, messages: Sequence[M], change: Change, check: Callable[[], None]) -> None:
        """Put all messages and the position, or nothing. change: of what is held. check: called right before the commit."""

    async def write(self, output: Output, permit: Permit) -> None:
        assert self._claim.compare(output.start, self.position) == 0, "a write starts where the one before ended"
        if self._held.has_ended:
            raise SinkRejected(f"lease '{self._claim.partition}' has ended, and nothing more is taken from it")
        messages = await self._messages_of(output)
        permit.check()
        crash_point("before put")
        with checked_until_cancelled(permit) as check:
            await self._put(messages, lambda held: replace(held, position=output.to), check)
        self._put_at = asyncio.get_running_loop().time()
        crash_point("put")

    async def end(self, permit: Permit) -> None:
        permit.check()
        with checked_until_cancelled(permit) as check:
            await self._put((), lambda held: replace(held, has_ended=True), check)

    async def put_position(self) -> None:
        """Put the position again, unchanged. Raises the errors of `write`."""
        await self._put((), lambda held: held, lambda: None)
        self._put_at = asyncio.get_running_loop().time()

    async def follow(self) -> None:
        if asyncio.get_running_loop().time() - self._put_at >= self._refresh_s:
            with suppress(SinkUnavailable):  # surely not put, so the next call tries again
                await self.put_position()
