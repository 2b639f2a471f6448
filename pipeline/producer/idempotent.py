"""`IdempotentProducer`: publishing to the partitions of a hub so that what is sent again is stored once.

```python
async with IdempotentProducer(EventHubsBroker(account, "orders")) as producer:
    batch = await producer.create_batch("0")
    batch.try_add(OutgoingEvent(body=b"one"))
    await producer.send(batch)
    batch.starting_sequence_number  # its first event's
```

It follows the design proposal for idempotent publishing of Event Hubs; see docs/producer.md, also for failed
sends. Not guaranteed: that an event is published once if, after an unknown outcome, it is sent again with *other* contents, or
if a producer is created again without its snapshot.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import TracebackType

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.limits import JSON_LEVELS_MAX
from leasehold.pipeline.producer.broker import Broker
from leasehold.pipeline.producer.errors import PublishError, Reason, refused
from leasehold.pipeline.producer.event import (
    GROUP_MAX,
    NOTHING_YET,
    NUMBER_MAX,
    AttachRequest,
    EventBatch,
    EventSet,
    OutgoingEvent,
)
from leasehold.pipeline.producer.partition import PartitionProducer, RetryPolicy
from leasehold.pipeline.producer.properties import HubProperties, PartitionProperties, PublishingProperties

# What a lease keeps about its producer: the sink state in the lease document, a compact JSON text. Pure.
#
# Each claim raises the owner level in the lease document, and begins with numbers of its own (docs/protocol.md, (b)).


LEVEL_MAX = 2**15 - 2
"""The highest level that is ever claimed. The one above it is reserved for closing a used-up group, whose owners it outranks."""
STATE_BYTES_MAX = 1024
TARGET_LENGTH_MAX = 100

_BOUNDS = {
    "group": (0, GROUP_MAX),
    "series": (0, 2**31 - 1),
    "level": (0, LEVEL_MAX),
    "number": (NOTHING_YET, NUMBER_MAX),
    "tail": (-1, 2**63 - 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """The producer of one lease."""

    group: int | None = None
    """The producer group that was attached last; None before the first time."""
    series: int = 0
    """How many groups were used up before."""
    level: int = 0
    """Owner level of the present claim, 0 before the first."""
    number: int = 0
    """The last event published, under the level at which the group was last attached; 0 or -1 for none."""
    tail: int = -1
    """The broker's sequence of the last event that is settled together with the lease's position, -1 for none.

    New markers follow it.
    """
    target: str | None = None
    """The partition that is published to; None for the one with the feed partition's name."""

    def claimed(self) -> ProducerState:
        """The state for the next claim: one level higher, or the first level of the next group if all levels are used up."""
        if self.level < LEVEL_MAX:
            return replace(self, level=self.level + 1)
        return replace(self, series=self.series + 1, level=1)

    def encoded(self) -> str:
        kept = {name: value for name, value in asdict(self).items() if name != "target" or value is not None}
        return json.dumps(kept, separators=(",", ":"))


def claimed(state: str) -> str:
    """`Sink.claimed` of every sink that publishes idempotently. Raises SinkRejected."""
    return decoded(state).claimed().encoded()


def decoded(state: str) -> ProducerState:
    """The state in a lease document, which is "" for a new lease. Anyone may have written it. Raises SinkRejected."""
    if not state:
        return ProducerState()
    if len(state) > STATE_BYTES_MAX:
        raise _lease_state_refusal("is too long")
    try:
        values = parsed_json(state, JSON_LEVELS_MAX)
    except ValueError:
        raise _lease_state_refusal("is not JSON") from None
    if not isinstance(values, dict) or set(values) | {"target"} != {field.name for field in fields(ProducerState)}:
        raise _lease_state_refusal("does not hold exactly group, series, level, number and tail")
    for name, (least, most) in _BOUNDS.items():
        value = values[name]
        if value is None and name == "group":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise _lease_state_refusal(f"has a {name} that is not a number from {least} to {most}")
    target = values.get("target")
    if target is not None and not (isinstance(target, str) and 0 < len(target) <= TARGET_LENGTH_MAX):
        raise _lease_state_refusal("has a target that is not a partition's name")
    return ProducerState(**values)


def group_of(pipeline: str, partition: str, generation: int, series: int) -> int:
    """The producer group of a lease: 63 bits that are the same in every process and version."""
    name = json.dumps([pipeline, partition, generation, series])
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def _lease_state_refusal(why: str) -> SinkRejected:
    return SinkRejected(
        f"the sink state of the lease {why}: set the document's sinkState to an empty text; the destination knows its position"
    )


class IdempotentProducer:
    """idempotent: fixed from here on. If False, it is a plain producer, which may also let the broker route events.

    partitions: by name, what to request there; for all others the broker chooses. snapshot: what an earlier producer's
    `snapshot` returned; partitions that it knows continue from there. Raises ValueError if these do not fit together.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        idempotent: bool = True,
        partitions: Mapping[str, AttachRequest] | None = None,
        snapshot: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        if not idempotent and (partitions or snapshot):
            raise ValueError("`partitions` and `snapshot` require idempotent=True")
        self._broker = broker
        self._idempotent = idempotent
        self._retry = retry or RetryPolicy()
        self._wanted = {**(partitions or {}), **(restored(snapshot) if snapshot else {})}
        self._partitions: dict[str | None, PartitionProducer] = {}
        self._is_closed = False

    @property
    def is_idempotent(self) -> bool:
        return self._idempotent

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def create_batch(
        self, partition: str | None = None, *, key: str | None = None, bytes_max: int | None = None
    ) -> EventBatch:
        """A batch that is empty and unlocked. bytes_max: at most what the broker takes. Raises PublishError, ValueError."""
        link = await self._producer(partition, key).ensure_link()
        if bytes_max is not None and not 0 < bytes_max <= link.bytes_max:
            raise ValueError(f"bytes_max has to be from 1 to {link.bytes_max}, which is what the broker takes")
        return EventBatch(
            partition=partition,
            key=key,
            bytes_max=bytes_max or link.bytes_max,
            envelope_bytes=self._broker.envelope_bytes,
            prepare=self._broker.prepared,
        )

    async def send(
        self, events: EventBatch | Sequence[OutgoingEvent], partition: str | None = None, *, key: str | None = None
    ) -> None:
        """A batch goes to its own partition; a set of events needs one. All are published, or none. Raises PublishError."""
        if isinstance(events, EventBatch):
            if partition not in (None, events.partition) or key not in (None, events.key):
                raise ValueError("a batch goes to the partition it was created for: leave out partition and key")
            await self._producer(events.partition, events.key).publish(events)
            return
        producer = self._producer(partition, key)
        link = await producer.ensure_link()
        await producer.publish(_MeasuredEvents(events, key, self._broker, link.bytes_max, is_numbered=self._idempotent))

    async def settle(self, partition: str) -> bool:
        """After an unknown outcome: send the events again until the broker has them. False if there was nothing to settle."""
        return await self._producer(partition, None).settle()

    async def publishing_properties(self, partition: str) -> PublishingProperties:
        """This producer's state in the partition, for which a link is made if there was none."""
        producer = self._producer(partition, None)
        if producer.numbers is None:
            await producer.ensure_link()
        numbers = producer.numbers
        return PublishingProperties(
            partition=partition,
            is_idempotent=self._idempotent,
            producer_group=numbers.group if numbers else None,
            owner_level=numbers.level if numbers else None,
            last_published_number=numbers.number if numbers else None,
        )

    @property
    def hub_name(self) -> str:
        return self._broker.hub

    @property
    def namespace(self) -> str | None:
        """Fully qualified; None for an embedded log."""
        return self._broker.namespace

    async def hub_properties(self) -> HubProperties:
        self._check()
        return await self._broker.read_hub()

    async def partition_ids(self) -> tuple[str, ...]:
        return (await self.hub_properties()).partitions

    async def partition_properties(self, partition: str) -> PartitionProperties:
        self._check()
        return await self._broker.read_partition(partition)

    def snapshot(self) -> str:
        """The state of every partition, for a later producer: a text of less than 150 bytes per partition.

        Store it after each send that must not be repeated. Before anything else, the new producer has to send again, unchanged,
        what was sent after the snapshot or is unsettled in it.
        """
        known = {name: each.numbers.asked for name, each in self._partitions.items() if name and each.numbers}
        return snapshot_of({name: asked for name, asked in (self._wanted | known).items() if asked.is_whole})

    async def close(self) -> None:
        """Sends under way are finished; later ones are refused."""
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.gather(*(each.close(self._closed()) for each in self._partitions.values()))
        await self._broker.close()

    async def __aenter__(self) -> IdempotentProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _producer(self, partition: str | None, key: str | None) -> PartitionProducer:
        self._check()
        if self._idempotent and (partition is None or key is not None):
            raise ValueError(
                "idempotent publishing goes to a partition: give one, and no partition key. If the broker has to route, create"
                " a producer with idempotent=False"
            )
        if partition is not None and key is not None:
            raise ValueError("give a partition or a partition key, not both")
        if partition not in self._partitions:
            self._partitions[partition] = PartitionProducer(
                self._broker,
                partition,
                asked=self._wanted.get(partition) if partition is not None else None,
                idempotent=self._idempotent,
                retry=self._retry,
            )
        return self._partitions[partition]

    def _check(self) -> None:
        if self._is_closed:
            raise self._closed()

    def _closed(self) -> PublishError:
        return refused(f"the producer of {self._broker.name} is closed", reason=Reason.CLIENT_CLOSED)


class _MeasuredEvents(EventSet):
    """A set that is refused if it does not fit into one batch."""

    def __init__(
        self, events: Sequence[OutgoingEvent], key: str | None, broker: Broker, bytes_max: int, *, is_numbered: bool
    ) -> None:
        super().__init__(events, key, broker.prepared, is_numbered=is_numbered)
        self._envelope_bytes = broker.envelope_bytes
        self._bytes_max = bytes_max

    def begin(self) -> None:
        super().begin()
        size = self.size_bytes + self._envelope_bytes
        if size > self._bytes_max:
            self.drop()
            raise refused(
                f"the set of {len(self.payloads)} events takes {size} bytes, and one batch at most {self._bytes_max}",
                reason=Reason.MESSAGE_SIZE_EXCEEDED,
            )


PARTITIONS_MAX = 10_000
_SNAPSHOT_FIELDS = ("group", "level", "number")


def snapshot_of(partitions: Mapping[str, AttachRequest]) -> str:
    """A producer's state as a text, for its successor: partitions whose group, level and number are known."""
    kept = {
        name: {field: getattr(asked, field) for field in _SNAPSHOT_FIELDS} for name, asked in sorted(partitions.items())
    }
    return json.dumps(kept, separators=(",", ":"))


def restored(snapshot: str) -> dict[str, AttachRequest]:
    """The state in a snapshot. It is checked, since anyone may have written it. Raises ValueError."""
    try:
        kept = parsed_json(snapshot, JSON_LEVELS_MAX)
    except ValueError:
        raise _refusal("is not JSON") from None
    if not isinstance(kept, dict) or len(kept) > PARTITIONS_MAX:
        raise _refusal("is not an object of partitions")
    return {name: _attach_request(name, values) for name, values in kept.items()}


def _attach_request(partition: str, values: object) -> AttachRequest:
    if not isinstance(values, dict) or set(values) != set(_SNAPSHOT_FIELDS):
        raise _refusal(f"does not hold exactly group, level and number of partition '{partition[:50]}'")
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values.values()):
        raise _refusal(f"holds something that is not a number for partition '{partition[:50]}'")
    try:
        return AttachRequest(**values)
    except ValueError as error:
        raise _refusal(f"has an invalid state for partition '{partition[:50]}': {error}") from None


def _refusal(why: str) -> ValueError:
    return ValueError(f"the snapshot {why}: give what IdempotentProducer.snapshot() returned, or none to start over")
