"""A sink of one method: whoever writes `submit(entries) -> failed entries` has batches, retries, back-pressure and positions.

    class Rates:
        async def submit(self, entries):
            answer = await post([entry.value for entry in entries])
            return [entry for entry, taken in zip(entries, answer) if not taken]

    def sink(): return AsyncSink(Rates(), identity="rates")

After Flink's FLIP-171. Rows are converted once; requests that fail are sent again, in order, at the rate that the destination
takes. Nothing is kept but in memory: what is not acknowledged when a host dies is read again from the feed. So every row comes at
least once, and after a crash at most `buffered_entries_max` and two batches of them again, under the same keys (docs/sinks.md).
"""

from __future__ import annotations

from pipeline.async_sink.element_converter import json_row
from pipeline.async_sink.request_entry import Closing, Convert, Destination, Preparing
from pipeline.async_sink.writer import AsyncWriter
from pipeline.clock import Clock, LoopClock
from pipeline.limits import AsyncLimits
from pipeline.sink import Claim


class AsyncSink:
    """identity: where entries go, without secrets. convert: what becomes of a row, by default bytes of JSON.
    takes_whole: the destination takes the entries of a request in their order, all of them or none. Then entries with the same
    order key share requests; without it, a request has one of them.

    Raises ValueError where the limits contradict each other.
    """

    holds_position = False

    def __init__(
        self,
        destination: Destination,
        *,
        identity: str,
        convert: Convert | None = None,
        limits: AsyncLimits | None = None,
        clock: Clock | None = None,
        takes_whole: bool = False,
    ) -> None:
        self._destination = destination
        self._identity = identity
        self._convert = convert or json_row()
        self._limits = limits or AsyncLimits()
        self._clock = clock or LoopClock()
        self._takes_whole = takes_whole
        if problems := list(self._limits.problems()):
            raise ValueError("; ".join(problems))

    @property
    def identity(self) -> str:
        return self._identity

    def claimed(self, state: str) -> str:
        return state

    async def prepare(self) -> None:
        if isinstance(self._destination, Preparing):
            await self._destination.prepare()

    async def open(self, claim: Claim) -> AsyncWriter:
        return AsyncWriter(
            self._destination,
            claim,
            convert=self._convert,
            limits=self._limits,
            clock=self._clock,
            name=f"destination '{self._identity}'",
            takes_whole=self._takes_whole,
        )

    async def close(self) -> None:
        if isinstance(self._destination, Closing):
            await self._destination.close()
