"""One partition of a topic, read in pages. It blocks, and belongs to one thread."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from leasehold.pipeline.connectors.kafka.cluster import DOWN, KafkaCluster
from leasehold.pipeline.connectors.kafka.position import Position
from leasehold.pipeline.errors import FeedUnavailable, MalformedRecord
from leasehold.pipeline.event import EVENT_SCHEMA, Page

Keys = Literal["text", "base64"]
WAIT_S = 0.25
"""The longest time that one call takes, and so the longest time from a reader's end to its thread's end."""
EOF = KafkaError._PARTITION_EOF  # noqa: SLF001
RESET = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
OPERATION = "leasehold-operation"
"""The header in which the sink `kafka` stores an event's operation."""
TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999."""
_headers_of = methodcaller("headers")
"""Raises SystemError if the name of a header is not UTF-8. After that, another call can end the process. A direct call may show
the error only later, because it is not checked once Python has specialized it."""


class UnfitEvent(Exception):
    """Its text is the reason, worded to follow the event's name."""


class OutOfRange(Exception):
    """The brokers have nothing at `position`: it is before the first offset, or past the end."""

    def __init__(self, position: Position) -> None:
        super().__init__(str(position))
        self.position = position


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingLimits:
    """keys: how an event's key becomes a text. trusts_headers: whether the header OPERATION is an event's operation."""

    events_max: int = 10_000
    bytes_max: int = 4 * 1024 * 1024
    keys: Keys = "text"
    trusts_headers: bool = False


class PartitionReader:
    def __init__(
        self, cluster: KafkaCluster, group: str, topic: str, partition: int, position: Position, limits: ReadingLimits
    ) -> None:
        self._limits = limits
        self._partition = partition
        self._position = position
        self._down: KafkaError | None = None
        self._held: list[Message] = []
        self._unreadable: MalformedRecord | None = None
        self._name = f"topic '{topic}', partition '{partition}'"
        kilobytes = max(1, 2 * limits.bytes_max // 1024)
        self._consumer = cluster.make_consumer(
            group,
            self._note,
            **{
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "queued.min.messages": 2 * limits.events_max,
                "queued.max.messages.kbytes": kilobytes,
                "fetch.queue.backoff.ms": 10,  # by default a second passes before a full queue is filled again
                "fetch.error.backoff.ms": 100,
            },
        )
        self._consumer.assign([TopicPartition(topic, partition, position.next)])

    def read(self) -> Page | None:
        """The next page; None if nothing arrived within WAIT_S. A page is empty if only the position moved.

        Raises OutOfRange, FeedUnavailable, MalformedRecord, KafkaException.
        """
        if not self._held and self._unreadable is None:
            self._fetch()
        if not self._held:
            if self._unreadable is not None:
                raise self._unreadable
            if self._down is not None:
                raise KafkaException(self._down)
            return None
        self._down = None
        if (error := self._held[0].error()) is not None:
            return self._passed(self._held.pop(0), error)
        return self._page(self._cut())

    def close(self) -> None:
        self._held.clear()
        self._consumer.close()

    def _note(self, error: KafkaError) -> None:
        if error.code() == DOWN:
            self._down = error

    def _fetch(self) -> None:
        first = self._consumer.poll(WAIT_S)
        if first is None:
            return
        # `consume` would wait until it has as many as it may return
        for message in (first, *self._consumer.consume(max(1, self._limits.events_max - 1), 0)):
            try:
                _headers_of(message)
            except SystemError:
                why = "has a header whose name is not UTF-8 text, which Kafka's client cannot read"
                self._unreadable = self._malformed(message.offset() or 0, why)
                return
            self._held.append(message)

    def _passed(self, message: Message, error: KafkaError) -> Page | None:
        """At the end, move the position past the ends of transactions, which have offsets, too."""
        if error.code() == EOF:
            end = message.offset()
            if end is None or end <= self._position.next:
                return None
            self._position = self._position._replace(next=end)
            return Page(EVENT_SCHEMA.empty_table(), str(self._position))
        if error.code() == RESET:
            raise OutOfRange(self._position)
        raise KafkaException(error)

    def _cut(self) -> list[Message]:
        """The next messages of a page: at least the first one, and none with an error."""
        size = count = 0
        for message in self._held[: self._limits.events_max]:
            size += size_of(message)
            if message.error() is not None or (count and size > self._limits.bytes_max):
                break
            count += 1
        cut, self._held = self._held[:count], self._held[count:]
        return cut

    def _page(self, messages: list[Message]) -> Page:
        offsets = [message.offset() or 0 for message in messages]
        if offsets[0] < self._position.next:
            raise FeedUnavailable(
                f"{self._name}: offset {offsets[0]} arrived instead of {self._position.next} or later; reading starts again"
            )
        try:
            events = events_of(str(self._partition), messages, offsets, self._limits)
        except UnfitEvent as error:
            if len(messages) > 1:  # what precedes the event is read first
                half = len(messages) // 2
                self._held[:0] = messages[half:]
                return self._page(messages[:half])
            raise self._malformed(offsets[0], str(error)) from None
        topic = self._position.topic
        self._position = Position(offsets[-1] + 1, topic)
        return Page(events, str(self._position), lambda n: str(Position(offsets[n - 1] + 1, topic)))

    def _malformed(self, offset: int, why: str) -> MalformedRecord:
        return MalformedRecord(
            f"{self._name}: the event at offset {offset} {why}. To continue without the event, reset the lease to"
            f" '{self._position._replace(next=offset + 1)}'"
        )


def size_of(message: Message) -> int:
    """The bytes of key and body. Headers are few, and do not count."""
    return len(message.value() or b"") + len(message.key() or b"")


def key_of(key: bytes | str | None, keys: Keys) -> str | None:
    """Raises UnfitEvent."""
    if key is None or isinstance(key, str):
        return key
    try:
        return base64.b64encode(key).decode() if keys == "base64" else key.decode()
    except UnicodeDecodeError as error:
        raise UnfitEvent(f"has a key that is not UTF-8 text ({error.reason}): set `keys: base64` of the feed") from None


def properties_of(message: Message) -> dict[str, str | None] | None:
    """The message's headers. If several have one name, the last one counts; bytes that are not UTF-8 become `\\xff`."""
    headers: list[tuple[str, Any]] | None = message.headers()  # type: ignore[assignment]  # never another form
    return {name: None if value is None else _text_of(value) for name, value in headers} if headers else None


def _text_of(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def events_of(partition: str, messages: Sequence[Message], offsets: Sequence[int], limits: ReadingLimits) -> pa.Table:
    """EVENT_SCHEMA. Pure. Raises UnfitEvent."""
    headers = [properties_of(message) for message in messages]
    operations = [each.pop(OPERATION, None) if each and limits.trusts_headers else None for each in headers]
    sequence = pa.array(offsets, pa.int64())
    times = np.array([message.timestamp()[1] for message in messages], "int64")
    if (times > TIME_MS_MAX).any():
        raise UnfitEvent("has a time after the year 9999")
    columns = {
        "partition": pa.repeat(pa.scalar(partition), len(messages)),
        "sequence": sequence,
        "offset": sequence.cast(pa.string()),
        "enqueued_time": pa.array(np.maximum(times, 0) * 1000).cast(pa.timestamp("us", tz="UTC")),
        "key": pa.array([key_of(message.key(), limits.keys) for message in messages], pa.string()),
        "body": pa.array([message.value() for message in messages], pa.binary()),
        "properties": pa.array(
            [list(each.items()) if each else None for each in headers], EVENT_SCHEMA.field("properties").type
        ),
        "operation": pa.array(operations, pa.string()),
    }
    return pa.Table.from_arrays([columns[name] for name in EVENT_SCHEMA.names], schema=EVENT_SCHEMA)
