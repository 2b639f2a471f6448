"""Protocol F, the sink's side, over whatever broker (docs/protocol.md, (b)): what a claim begins from, and how a batch goes out.

A claim raises the owner level in the lease document; the sink attaches at that level, which closes the earlier ones, and only
then looks for the lease's newest marker: that is the position. A batch is one atomic publication, its events numbered behind the
last one's. An empty output moves the position alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cmp_to_key

from pipeline.errors import Fenced, PipelineError, SinkRejected
from pipeline.markers import Marker, lease_of
from pipeline.producer import LEVEL_MAX, ProducerState, number_after
from pipeline.sink import Claim, CloseReason, Output, Permit


def newest(claim: Claim, held: str | None) -> str | None:
    """The marker's position, or the lease's where empty outputs have moved it further (R4)."""
    return max(held, claim.continuation, key=cmp_to_key(claim.compare))


def marker_of(claim: Claim, level: int, output: Output, count: int) -> Marker:
    return Marker(
        lease=lease_of(claim.pipeline, claim.partition),
        generation=claim.generation,
        level=level,
        start=output.start,
        to=output.to,
        count=count,
    )


def published(state: ProducerState, events: int, last: int) -> ProducerState:
    """After so many events. last: no event of a later batch lies before that sequence of the broker's, or at it."""
    return replace(state, number=number_after(state.number, events), tail=last)


def outranked(message: str, state: ProducerState, held: tuple[int, int]) -> Fenced:
    """held: the series and level that the broker knows; the next claim goes above them."""
    series, level = held
    return Fenced(message, state=replace(state, series=series, level=min(level, LEVEL_MAX)).encoded())


def generation_lost(claim: Claim, where: str, held: int) -> PipelineError:
    """A lease whose document was deleted or put back after a reset cannot claim its way back."""
    return SinkRejected(
        f"lease '{lease_of(claim.pipeline, claim.partition)}' is of generation {claim.generation}, and {where} holds output of"
        f" its generation {held}: its document was deleted or restored. Reset the lease until it is of that generation or later"
    )


class PublishingWriter(ABC):
    """One claim's way into a broker. Implements pipeline.sink.SinkWriter. A cancelled write is there whole, or never will be."""

    def __init__(
        self, state: ProducerState, *, position: str | None, compare: Callable[[str | None, str | None], int]
    ) -> None:
        self.position = position
        self.state = state.encoded()
        self._state = state
        self._compare = compare

    async def write(self, output: Output, permit: Permit) -> None:
        assert self._compare(output.start, self.position) == 0, "a write starts where the one before ended"
        if output.table.num_rows:
            permit.check()
            self._state = await self._publish(output, permit)
            self.state = self._state.encoded()
        self.position = output.to

    @abstractmethod
    async def _publish(self, output: Output, permit: Permit) -> ProducerState:
        """All of it or nothing. Returns the state after it. Raises what `SinkWriter.write` does."""

    @abstractmethod
    async def end(self, permit: Permit) -> None: ...

    @abstractmethod
    async def close(self, reason: CloseReason) -> None: ...
