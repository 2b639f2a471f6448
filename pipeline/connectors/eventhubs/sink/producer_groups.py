"""Queries, attaches and closes producer groups of a partition. A claim keeps its link, all other calls use one for a moment."""

from __future__ import annotations

import random
from dataclasses import dataclass

from leasehold.pipeline.connectors.eventhubs.broker import EventHubsBroker
from leasehold.pipeline.errors import Fenced
from leasehold.pipeline.markers import lease_of
from leasehold.pipeline.producer import (
    LEVEL_MAX,
    NOTHING_YET,
    NUMBER_MAX,
    AttachRequest,
    PartitionProducer,
    ProducerPosition,
    ProducerState,
    PublishError,
    Reason,
    RetryPolicy,
    group_of,
)
from leasehold.pipeline.producer.errors import ENDS_THE_PRODUCER
from leasehold.pipeline.publishing_writer import outranked
from leasehold.pipeline.sink import Claim

# What a claim has to know and to close before it publishes to a hub. The decisions are pure.
#
# The service keeps a producer per partition and group. Each claim attaches its group at a higher level, with a random starting
# number. That level then belongs to this claim alone, because the service refuses another number at it; if it did not, its reply
# would show the number. A group whose levels are used up, or whose lease has a new generation, is closed by the level above all
# claims.


CLOSING_LEVEL = LEVEL_MAX + 1
GENERATIONS_CLOSED = 3
"""For how many earlier generations a claim closes groups that its lease document does not name."""


def group(claim: Claim, state: ProducerState, *, generations_back: int = 0, series: int | None = None) -> int:
    generation = claim.generation - generations_back
    return group_of(claim.pipeline, claim.partition, generation, state.series if series is None else series)


def to_close(claim: Claim, state: ProducerState) -> list[int]:
    """The groups of earlier claims that are not this claim's."""
    ours = group(claim, state)
    if state.group is not None:
        return [] if state.group == ours else [state.group]
    back = range(1, min(claim.generation, GENERATIONS_CLOSED) + 1)
    earlier = [group(claim, state, generations_back=steps, series=0) for steps in back]
    if state.series:
        earlier.append(group(claim, state, series=state.series - 1))
    return earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The events after the sequence `behind` have to be searched for markers; those up to it hold no new ones.

    is_binding: whether this lease may have published some of them, so retention must not have deleted any.
    is_first: whether this lease had published nothing when the partition ended there.
    """

    behind: int
    is_binding: bool
    is_first: bool = False


def tail_of(claim: Claim, state: ProducerState, known: ProducerPosition, before: int) -> Tail:
    """Where this lease may have markers that its document does not know.

    known: what the service knew of our group before we attached. before: the partition's end before that request, or an older
    one. If the group is as the last checkpoint left it, nothing was published up to `before`; a group that the service does
    not know has published nothing at all.
    """
    has_published = state.group in (group(claim, state), group(claim, state, series=max(0, state.series - 1)))
    has_numbers = known.number not in (0, NOTHING_YET)  # else the service may have forgotten them, or never had any
    is_untouched = (
        has_numbers and state.group == known.group and (known.level, known.number) == (state.level - 1, state.number)
    )
    is_unknown = known.level == 0 and not has_numbers
    is_new = not has_published and is_unknown and (state.group is not None or not state.series)
    if is_untouched:
        return Tail(behind=max(before, state.tail), is_binding=False)
    if is_new:
        return Tail(behind=before, is_binding=False, is_first=True)
    return Tail(behind=state.tail if has_published else min(before, state.tail), is_binding=has_published)


CLOSED = PublishError("the writer is closed: claim the partition again", reason=Reason.CLIENT_CLOSED)


class Groups:
    """All methods raise PublishError."""

    def __init__(self, broker: EventHubsBroker, retry: RetryPolicy, rng: random.Random) -> None:
        self._broker = broker
        self._retry = retry
        self._rng = rng
        self.discarding: set[int] = set()
        """Groups with a batch that the service acknowledged and did not store."""

    async def find_standing(self, claim: Claim, state: ProducerState, target: str) -> ProducerPosition:
        """What the service knows of the claim's group: if nothing, level 0 and number 0 or -1; if it is closed for good, the
        closing level. Raises Fenced if the claim is outranked.

        It attaches at a level of earlier claims, which fences no later claim. A null level is requested only once the claim is
        known to be outranked: the service may take it as the next level, which disturbs the later claim once.
        """
        ours = group(claim, state)
        for level in [state.level - 1] if state.group == ours else sorted({0, state.level - 1}):
            known = await self.find_position(target, ours, level)
            if known is not None:
                return known
        held = await self.find_highest(target, ours)
        if held.level < CLOSING_LEVEL:
            raise above(claim, state, (state.series, max(held.level, state.level)))
        following = group(claim, state, series=state.series + 1)
        if await self.find_position(target, following, 0) is None:
            raise above(claim, state, (state.series + 1, (await self.find_highest(target, following)).level))
        return held

    async def find_position(self, target: str, of: int, level: int) -> ProducerPosition | None:
        """The group's numbers at that level, None if it is at a higher one. Lower levels are fenced."""
        try:
            return await self._numbers(target, AttachRequest(group=of, level=level))
        except PublishError as error:
            if error.reason is not Reason.PRODUCER_DISCONNECTED:
                raise
            return None

    async def find_highest(self, target: str, of: int) -> ProducerPosition:
        """The group's numbers at its highest level. May raise that by one, and so fence its claim."""
        try:
            return await self._numbers(target, AttachRequest(group=of, level=None))
        except PublishError as error:
            if error.reason is not Reason.INVALID_CLIENT_STATE:
                raise
            return ProducerPosition(group=of, level=CLOSING_LEVEL, number=NOTHING_YET)  # no level follows it

    async def _numbers(self, target: str, asked: AttachRequest) -> ProducerPosition:
        asking = PartitionProducer(self._broker, target, asked=asked, retry=self._retry)
        try:
            await asking.ensure_link()
            assert asking.numbers is not None
            return asking.numbers
        finally:
            await asking.close(CLOSED)

    async def close(self, target: str, of: int) -> None:
        """Close the group for good: no claim has a higher level."""
        closing = PartitionProducer(
            self._broker, target, asked=AttachRequest(group=of, level=CLOSING_LEVEL), retry=self._retry
        )
        try:
            await closing.ensure_link()
        finally:
            await closing.close(CLOSED)

    async def attach(
        self, claim: Claim, state: ProducerState, target: str, known: ProducerPosition
    ) -> PartitionProducer | None:
        """The claim's producer, or None if its group is closed for good. known: what the service knew of it. Raises Fenced."""
        if known.level >= CLOSING_LEVEL:
            return None
        asked = AttachRequest(group=known.group, level=state.level, number=self._rng.randint(0, NUMBER_MAX))
        producer = PartitionProducer(self._broker, target, asked=asked, strict=True, retry=self._retry)
        try:
            await producer.ensure_link()
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
