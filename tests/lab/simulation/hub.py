"""An event hub in memory for the real EventHubsOutputSink: claims, markers, numbers, tails and messages are its own.

The rules of the wire server (leasehold_emulators.eventhubs.producers) decide about idempotent producers; a seed draws those that
are not documented. Other publishers share the partitions, `$management` answers with old ends, the service forgets idle
producers, and it discards some first batches of a claim that it acknowledged. Retention follows what leases may still have
to read. The network below, links and receivers, is a model: a receiver gets events in order, each with the partition's end.
"""

from __future__ import annotations

import asyncio
import random
import re
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from zlib import crc32

from lab.simulation.process import current, incarnation
from lab.simulation.weather import Request, answered, host_of

from leasehold.common.standing import Standing
from leasehold.pipeline.connectors.eventhubs.account import EventHubAccount
from leasehold.pipeline.connectors.eventhubs.amqp.decode import event_at
from leasehold.pipeline.connectors.eventhubs.amqp.management import PartitionExtent
from leasehold.pipeline.connectors.eventhubs.feed.receiver import Received, ReceiverLimits, ReceiverSource
from leasehold.pipeline.connectors.eventhubs.sink import tail as tails
from leasehold.pipeline.connectors.eventhubs.sink.producer_groups import Groups
from leasehold.pipeline.connectors.eventhubs.sink.refusals import attach_refused, batch_refused
from leasehold.pipeline.connectors.eventhubs.sink.sink import EventHubsOutputSink
from leasehold.pipeline.connectors.eventhubs.sink.writer import HubWriter
from leasehold.pipeline.errors import FeedUnavailable
from leasehold.pipeline.markers import PREFIX
from leasehold.pipeline.producer import (
    NOTHING_YET,
    AttachRequest,
    HubProperties,
    Outcome,
    ProducerPosition,
    PublishError,
    Reason,
    RetryPolicy,
    decoded,
    number_after,
)
from leasehold.pipeline.sink import Claim
from leasehold_emulators.eventhubs import producers as rules
from leasehold_emulators.eventhubs.messages import Event, Numbered, placed

if TYPE_CHECKING:
    from lab.simulation.world import World

T = TypeVar("T")
PARTITIONS = ("0", "1")
BATCH_BYTES_MAX = 1024 * 1024
AT_ONCE = 50
"""Events that a receiver gets at a time."""
FOREIGN = 0.3
"""Of batches are followed by events of others."""
OLD_ANSWERS = 0.2
DISCARDED = 0.02
"""Of first batches of a claim."""
FORGETS = 0.1
"""Of attaches come after the service has forgotten producers that have been idle."""
FORGOTTEN_AFTER = 3.0
"""Lease durations: nothing is under way any more that was sent so long ago."""
SLACK_S = 1.0
_SEQUENCE = re.compile(r"sequence-number > '(\d+)'")
_CLAIM: ContextVar[Claim | None] = ContextVar("claim", default=None)
"""Whose requests these are."""


class Unreached(PublishError):
    def __init__(self, why: str) -> None:
        super().__init__(why, reason=Reason.SERVICE_COMMUNICATION_PROBLEM, is_transient=True)


class Unanswered(PublishError):
    def __init__(self, why: str) -> None:
        reason = Reason.SERVICE_COMMUNICATION_PROBLEM
        super().__init__(why, reason=reason, is_transient=True, outcome=Outcome.UNKNOWN)


class Kept(NamedTuple):
    """What a receiver is given of an event."""

    sequence: int
    properties: Mapping[str, str | None]


@dataclass(slots=True)
class Partition:
    """first: the sequence of the oldest event that is there. ends: the end after each batch, and when it was stored."""

    name: str
    events: list[Kept] = field(default_factory=list)
    first: int = 0
    times: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    producers: dict[int, rules.Producer] = field(default_factory=dict)
    used: dict[int, float] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last(self) -> int:
        return self.first + len(self.events) - 1

    def add(self, properties: Sequence[Mapping[str, str | None]], now: float) -> None:
        for each in properties:
            self.events.append(Kept(self.last + 1, each))
        self.times.append(now)
        self.ends.append(self.last)
        self.changed.set()
        self.changed = asyncio.Event()

    def last_at(self, time: float) -> int:
        """Of the newest event at that moment."""
        at = bisect_right(self.times, time)
        return self.ends[at - 1] if at else -1

    def trim(self, first: int) -> None:
        count = max(0, min(first, self.last + 1) - self.first)
        del self.events[:count]
        self.first += count


@dataclass(slots=True)
class Sent:
    """A batch: when it was first sent, whose claim's it is, and whether its sink could see the partition's end before."""

    at: float
    tenure: tuple[str, str, int]
    saw_end: bool


class EventHub:
    """What all hosts publish to: broker and network for EventHubsOutputSink. Implements leasehold.pipeline.producer.Broker."""

    name = "'simulated'"
    envelope_bytes = 0

    @property
    def links(self) -> EventHub:
        """What receivers are attached by."""
        return self

    def __init__(self, world: World) -> None:
        setup = world.setup
        rng = self._rng = random.Random(f"{setup.seed} hub")
        self.world = world
        self.partitions = {name: Partition(name) for name in PARTITIONS}
        self.timeout_s = setup.timing.patience_s / 4
        self.tail_s = setup.timing.patience_s / 6
        self._nothing = rng.choice((0, NOTHING_YET))
        self._null_raises = rng.random() < 0.5
        self._replies_known = rng.random() < 0.5
        self._sent: dict[tuple[str, int, str], Sent] = {}
        self._unseen_at: dict[tuple[str, str], float] = {}
        """When a host last looked for a partition's end in vain."""
        self._unsure: set[tuple[str, str, int]] = set()
        self._unsettled: dict[tuple[str, str, int], ProducerPosition] = {}
        self._first_sent: dict[tuple[tuple[str, str, int], ProducerPosition], Sent] = {}
        self._verified: set[tuple[str, str, int]] = set()

    def sink(self) -> EventHubsOutputSink:
        """One host's way here."""
        return _Sink(self, random.Random(self._rng.random()))

    # A broker

    async def read_hub(self) -> HubProperties:
        await self._asked("hub", "", lambda: None, Unreached, Unreached)
        return HubProperties(name="simulated", partitions=PARTITIONS)

    async def read_extent(self, target: str) -> PartitionExtent:
        """Now and then an older one."""
        tenure, is_true = self._tenure(), False
        try:
            extent, is_true = await self._asked("extent", target, lambda: self._extent(target), Unreached, Unreached)
        finally:
            if not is_true and tenure is not None:
                self._unsure.add(tenure)
        return extent

    async def attach(self, partition: str | None, asked: AttachRequest | None, *, idempotent: bool) -> HubLink:
        assert partition is not None
        assert asked is not None
        numbers = await self._asked("attach", partition, lambda: self._attached(partition, asked), Unreached, Unreached)
        return HubLink(self, partition, numbers)

    async def close(self) -> None:
        """Nothing is held."""

    def _extent(self, target: str) -> tuple[PartitionExtent, bool]:
        partition, now = self.partitions[target], self.world.now
        is_true = self.world.skies.is_calm or self._rng.random() >= OLD_ANSWERS
        last = partition.last if is_true else partition.last_at(now - self.tail_s * self._rng.random())
        is_empty = last < partition.first
        extent = PartitionExtent(
            first=min(partition.first, last + 1), last=last, offset="", time_ms=0, is_empty=is_empty
        )
        return extent, is_true

    def _attached(self, target: str, asked: AttachRequest) -> ProducerPosition:
        partition = self.partitions[target]
        assert asked.group is not None
        self._forget_idle(partition)
        wished = rules.Asked(
            id=asked.group, level=asked.level, last=None if asked.number == NOTHING_YET else asked.number
        )
        outcome = rules.attached(
            partition.producers.get(asked.group),
            wished,
            asked.group,
            replies_known=self._replies_known,
            nothing=self._nothing,
            null_raises=self._null_raises,
        )
        if isinstance(outcome, rules.Refusal):
            raise attach_refused(self.name, outcome.condition, outcome.description, asks=True)
        partition.producers[asked.group] = outcome.producer
        partition.used[asked.group] = self.world.now
        return ProducerPosition(group=asked.group, level=outcome.producer.level, number=outcome.replied)

    def _forget_idle(self, partition: Partition) -> None:
        """Where nobody puts old documents back: their levels are given out again, which only the service's memory shows."""
        if self.world.setup.operator == "tampers" or self.world.skies.is_calm or self._rng.random() >= FORGETS:
            return
        least = self.world.now - FORGOTTEN_AFTER * self.world.timing.patience_s
        for group in [group for group, used in partition.used.items() if used < least]:
            self.world.onlooker.counts["forgotten producers"] += 1
            del partition.producers[group], partition.used[group]

    # Sends

    async def send(self, target: str, payloads: Sequence[bytes], after: ProducerPosition) -> None:
        """One batch of the claim whose task this is."""
        claim, tenure, onlooker = _CLAIM.get(), self._tenure(), self.world.onlooker
        assert claim is not None
        assert tenure is not None
        fence = _fence(claim)
        if self._unsettled.get(tenure) == after:  # the reply to an attach told that it is stored
            onlooker.settled(tenure[1], claim.partition, fence)
        self._unsettled[tenure] = after.after(len(payloads))
        onlooker.sends(tenure[1], claim.partition, fence, (after.number, crc32(b"".join(payloads))))
        sent = self._first_sent.setdefault((tenure, after), Sent(self.world.now, tenure, self._sees_end(target)))
        store = partial(self._stored, self.partitions[target], payloads, after, claim, sent)
        try:
            await self._asked("publish", claim.partition, store, Unreached, Unanswered)
        except PublishError as error:
            if error.outcome is Outcome.FAILED:
                onlooker.settled(tenure[1], claim.partition, fence)
            raise
        onlooker.settled(tenure[1], claim.partition, fence)

    def _stored(
        self,
        partition: Partition,
        payloads: Sequence[bytes],
        after: ProducerPosition,
        claim: Claim,
        sent: Sent,
    ) -> None:
        first = number_after(after.number)
        numbers = [Numbered(after.group, after.level, number_after(first, n)) for n in range(len(payloads))]
        known = partition.producers.get(after.group) or rules.Producer(id=after.group, level=-1, last=0)
        outcome = rules.published(known, numbers)
        if isinstance(outcome, rules.Refusal):
            raise batch_refused(self.name, outcome.condition, outcome.description)
        if isinstance(outcome, rules.Known) or self._is_discarded(sent.tenure):
            return
        partition.producers[after.group] = outcome.after
        partition.used[after.group] = self.world.now
        events = [_received(payload) for payload in payloads]
        partition.add([dict(event.properties) for event in events], self.world.now)
        to = dict(events[0].properties)[f"{PREFIX}to"]
        self._sent[claim.partition, claim.generation, to] = sent
        self.world.onlooker.fenced(claim.partition, _fence(claim))
        self.world.onlooker.arrives(claim.partition, claim.generation, [int(event.body or b"") for event in events])
        if self._rng.random() < FOREIGN:
            partition.add([{}] * self._rng.randint(1, 20), self.world.now)
        self._forget_old(partition)

    def _is_discarded(self, tenure: tuple[str, str, int]) -> bool:
        """The first batch after a raise, now and then."""
        is_first = tenure not in self._verified
        self._verified.add(tenure)
        is_so = is_first and not self.world.skies.is_calm and self._rng.random() < DISCARDED
        self.world.onlooker.counts["discarded batches"] += is_so
        return is_so

    def _forget_old(self, partition: Partition) -> None:
        """Retention is longer than any lease goes without a checkpoint: it follows the tails that leases hold."""
        if self.world.setup.operator != "tampers" and self._rng.random() < 0.1:
            leases = self.world.onlooker.leases.values()
            partition.trim(min((decoded(lease.sink_state).tail for lease in leases), default=-1))

    # Reads

    def read(self, place: ReceiverSource, at: int) -> Received | None:
        """The events behind `at`; None where there is none."""
        partition = self.partitions[place.partition]
        found = partition.events[max(0, at + 1 - partition.first) :][:AT_ONCE]
        if not found:
            return None
        self.world.onlooker.counts["events of tails"] += len(found)
        page: Any = _Page(found)
        return Received([page], found[0].sequence, None, partition.last if place.reports_end else None)

    def begins(self, target: str, at: int) -> None:
        """A claim reads what lies behind `at`. It must have come `tail_s` before its last checkpointed batch, or later."""
        claim = _CLAIM.get()
        if claim is None or decoded(claim.state).group is None:  # somebody has emptied it
            return
        sent = self._sent.get((claim.partition, claim.generation, str(claim.continuation)))
        if sent is None or not sent.saw_end or sent.tenure in self._unsure or sent.tenure == self._tenure():
            return
        least = self.partitions[target].last_at(sent.at - self.tail_s - SLACK_S)
        self.world.onlooker.counts["tails that were measured"] += 1
        self.world.onlooker.check(
            at + 1 >= least, "tail", lambda: f"a claim of {claim.partition} reads behind {at}, and may begin at {least}"
        )

    def unseen(self, target: str) -> None:
        self._unseen_at[host_of(current()), target] = self.world.now

    def _sees_end(self, target: str) -> bool:
        unseen_at = self._unseen_at.get((host_of(current()), target), -inf)
        return self.world.now > unseen_at + tails.UNSEEN_S + self.tail_s

    def asks(self, operation: str, id: str) -> Request:
        return Request(host_of(current()), "sink", operation, id)

    def _asked(
        self, operation: str, id: str, call: Callable[[], T], refused: type[Exception], lost: type[Exception]
    ) -> Awaitable[T]:
        return answered(self.world.weather, self.asks(operation, id), call, refused, lost)

    def _tenure(self) -> tuple[str, str, int] | None:
        claim = _CLAIM.get()
        return None if claim is None else (claim.partition, incarnation(), claim.epoch)


class HubLink:
    """Implements leasehold.pipeline.producer.ProducerLink."""

    bytes_max = BATCH_BYTES_MAX
    is_usable = True

    def __init__(self, hub: EventHub, target: str, numbers: ProducerPosition) -> None:
        self.numbers: ProducerPosition | None = numbers
        self._hub = hub
        self._target = target

    async def send(
        self, payloads: Sequence[bytes], after: ProducerPosition | None, key: str | None, sending: Callable[[], None]
    ) -> None:
        assert after is not None
        sending()
        await self._hub.send(self._target, payloads, after)

    async def close(self) -> None:
        """Nothing is held."""


class _Sink(EventHubsOutputSink):
    def __init__(self, hub: EventHub, rng: random.Random) -> None:
        super().__init__(EventHubAccount(host="simulated", hub="bank"), consumer_group="sink", tail_s=hub.tail_s)
        broker: Any = hub
        timeout_s = hub.timeout_s
        policy = RetryPolicy(retries_max=3, delay_s=0.1, delay_max_s=2.0, try_timeout_s=timeout_s)
        self._broker = broker
        self._tails = _Tails(broker, "sink", timeout_s=timeout_s)
        self._groups = Groups(broker, policy, rng)

    async def prepare(self) -> None:
        """It may read and publish."""

    async def open(self, claim: Claim) -> HubWriter:
        _CLAIM.set(claim)
        return await super().open(claim)

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        _CLAIM.set(None)
        return await super().standing(pipeline, partition)


class _Tails(tails.Tails):
    async def look(self, target: str, behind: int, *, age_max_s: float) -> int:
        """A look may also end in vain before it has a receiver, while claims of the same host read the partition."""
        before = self._ends.get(target)
        seen = await super().look(target, behind, age_max_s=age_max_s)
        looked_at, _ = after = self._ends[target]
        if after != before and looked_at > _VirtualTime.monotonic():
            hub: Any = self.broker
            hub.unseen(target)
        return seen


class _Receiver:
    def __init__(self, hub: EventHub, place: ReceiverSource, at: int) -> None:
        self._hub = hub
        self._place = place
        self._at = at

    async def take_next(self) -> Received:
        while True:
            changed = self._hub.partitions[self._place.partition].changed
            request = self._hub.asks("receive", self._place.partition)
            call = partial(self._hub.read, self._place, self._at)
            found = await answered(self._hub.world.weather, request, call, FeedUnavailable, FeedUnavailable)
            if found is not None:
                self._at = found.pages[0].events["sequence"].to_pylist()[-1]
                return found
            await changed.wait()


class _Page:
    """Columns as Arrow's are asked for their values."""

    def __init__(self, events: Sequence[Kept]) -> None:
        self.events = {"sequence": _Column([e.sequence for e in events]), "properties": _Column([e[1] for e in events])}


class _Column:
    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def to_pylist(self) -> list[Any]:
        return self._values


class _VirtualTime:
    """What the sink asks the module `time`."""

    @staticmethod
    def monotonic() -> float:
        return asyncio.get_running_loop().time()


@contextmanager
def on_virtual_time() -> Iterator[None]:
    """The sink receives from the hub in memory, and its clock is the loop's."""
    tail: Any = tails
    kept = tail.open_receiver, tail.time
    tail.open_receiver, tail.time = _receiving, _VirtualTime
    try:
        yield
    finally:
        tail.open_receiver, tail.time = kept


@asynccontextmanager
async def _receiving(
    hub: Any, place: ReceiverSource, limits: ReceiverLimits, threaded: object
) -> AsyncIterator[_Receiver]:
    found = _SEQUENCE.search(place.selector)
    at = int(found[1]) if found else -1
    request = hub.asks("receive", place.partition)
    try:
        await answered(hub.world.weather, request, lambda: None, FeedUnavailable, FeedUnavailable)
        hub.begins(place.partition, at)
        yield _Receiver(hub, place, at)
    except BaseException:
        hub.unseen(place.partition)
        raise


def _received(payload: bytes) -> Any:
    """As it comes out of the wire."""
    message = placed(Event(rest=payload), 0, 0, 0)
    return event_at(message, 0, len(message), trusts_properties=True)


def _fence(claim: Claim) -> tuple[int, int, int]:
    state = decoded(claim.state)
    return claim.generation, state.series, state.level
