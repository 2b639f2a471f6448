"""Producer groups of a partition, asked about, attached and closed; each by a link for a moment, or for a claim."""

from __future__ import annotations

import random

from pipeline.connectors.eventhubs.broker import EventHubsBroker
from pipeline.connectors.eventhubs.sink.claims import CLOSING_LEVEL, group
from pipeline.errors import Fenced
from pipeline.markers import lease_of
from pipeline.producer import (
    NOTHING_YET,
    NUMBER_MAX,
    Asked,
    Numbers,
    PartitionProducer,
    ProducerState,
    PublishError,
    Reason,
    RetryPolicy,
)
from pipeline.producer.errors import ENDS_THE_PRODUCER
from pipeline.publishing_writer import outranked
from pipeline.sink import Claim

CLOSED = PublishError("the writer is closed: claim the partition again", reason=Reason.CLIENT_CLOSED)


class Groups:
    """All of it raises PublishError."""

    def __init__(self, broker: EventHubsBroker, retry: RetryPolicy, rng: random.Random) -> None:
        self._broker = broker
        self._retry = retry
        self._rng = rng
        self.discarding: set[int] = set()
        """Groups of which a batch was acknowledged and not stored."""

    async def standing(self, claim: Claim, state: ProducerState, target: str) -> Numbers:
        """What the service knows of the claim's group: level 0 and number 0 or -1 if nothing, the closing level if it is
        closed for good. Raises Fenced if the claim is outranked.

        It attaches at a level of earlier claims, which fences none that is later. A null level is asked for only once the claim
        is known to be outranked: the service may take it as the next level, which disturbs the later claim once.
        """
        ours = group(claim, state)
        for level in [state.level - 1] if state.group == ours else sorted({0, state.level - 1}):
            known = await self.at(target, ours, level)
            if known is not None:
                return known
        held = await self.find_highest(target, ours)
        if held.level < CLOSING_LEVEL:
            raise above(claim, state, (state.series, max(held.level, state.level)))
        following = group(claim, state, series=state.series + 1)
        if await self.at(target, following, 0) is None:
            raise above(claim, state, (state.series + 1, (await self.find_highest(target, following)).level))
        return held

    async def at(self, target: str, of: int, level: int) -> Numbers | None:
        """The group's numbers at that level, None if it is at a higher one. Lower levels are fenced."""
        try:
            return await self._numbers(target, Asked(group=of, level=level))
        except PublishError as error:
            if error.reason is not Reason.PRODUCER_DISCONNECTED:
                raise
            return None

    async def find_highest(self, target: str, of: int) -> Numbers:
        """The group's numbers at its highest level. May raise that by one, and so fence its claim."""
        try:
            return await self._numbers(target, Asked(group=of, level=None))
        except PublishError as error:
            if error.reason is not Reason.INVALID_CLIENT_STATE:
                raise
            return Numbers(group=of, level=CLOSING_LEVEL, number=NOTHING_YET)  # no level follows it

    async def _numbers(self, target: str, asked: Asked) -> Numbers:
        asking = PartitionProducer(self._broker, target, asked=asked, retry=self._retry)
        try:
            await asking.ready()
            assert asking.numbers is not None
            return asking.numbers
        finally:
            await asking.close(CLOSED)

    async def close(self, target: str, of: int) -> None:
        """For good: no claim has a level above."""
        closing = PartitionProducer(self._broker, target, asked=Asked(group=of, level=CLOSING_LEVEL), retry=self._retry)
        try:
            await closing.ready()
        finally:
            await closing.close(CLOSED)

    async def attach(self, claim: Claim, state: ProducerState, target: str, known: Numbers) -> PartitionProducer | None:
        """The claim's producer, or None if its group is closed for good. known: what the service knew of it. Raises Fenced."""
        if known.level >= CLOSING_LEVEL:
            return None
        asked = Asked(group=known.group, level=state.level, number=self._rng.randint(0, NUMBER_MAX))
        producer = PartitionProducer(self._broker, target, asked=asked, strict=True, retry=self._retry)
        try:
            await producer.ready()
        except PublishError as error:
            await producer.close(CLOSED)
            if error.reason not in ENDS_THE_PRODUCER:
                raise
            raise above(claim, state, (state.series, state.level)) from error
        return producer


def above(claim: Claim, state: ProducerState, held: tuple[int, int]) -> Fenced:
    """held: series and level that the service knows."""
    message = (
        f"lease '{lease_of(claim.pipeline, claim.partition)}' is claimed at level {held[1]} (series {held[0]}), and level"
        f" {state.level} (series {state.series}) does not outrank it: stop, or claim above"
    )
    return outranked(message, state, held)
