"""One lease's producer: the only one of its partition. It blocks, and has a thread of its own.

All producers of a lease have one name. A broker accepts a new one only after it has stored or refused what the earlier one sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Literal

import pulsar

from leasehold.common.clock import Backoff
from leasehold.pipeline.connectors.own_thread import OwnThread
from leasehold.pipeline.connectors.pulsar.broker import PulsarBroker, text_of
from leasehold.pipeline.connectors.pulsar.message import OutgoingMessage
from leasehold.pipeline.connectors.pulsar.position import INDEX_MAX, MessagePlace
from leasehold.pipeline.errors import Ambiguous, SinkUnavailable

Compression = Literal["none", "lz4", "zlib", "zstd", "snappy"]
BATCH_MAX = INDEX_MAX + 1
UNLIMITED = 1 << 30
"""Batches end where ours do, not at the client's own limits."""
GRACE_S = 1.0
"""How long an answer may outlast the client's own timeout."""
PAUSES = Backoff(first_s=0.01, max_s=0.5)


class SendFailed(Exception):
    """result: the client's."""

    def __init__(self, result: Any) -> None:
        super().__init__(result.name)
        self.result = result


class ExclusiveProducer(OwnThread):
    def __init__(self, broker: PulsarBroker, topic: str, lease: str, compression: Compression) -> None:
        super().__init__("pulsar-sink")
        self._broker = broker
        self.topic = topic
        self._name = f"leasehold/{lease}"
        self._compression = getattr(pulsar.CompressionType, "NONE" if compression == "none" else compression.upper())
        self._producer: pulsar.Producer | None = None

    def attach(self, *, fences: bool) -> int:
        """fences: whether it shuts out others. If not, it is refused if there are any.

        Returns the last number that the broker knows. Raises PulsarException.
        """
        self.close()
        mode = pulsar.ProducerAccessMode
        deadline, turn = time.monotonic() + self._broker.timeout_s, 0
        while True:
            try:
                self._producer = self._broker.client().create_producer(
                    self.topic,
                    producer_name=self._name,
                    access_mode=mode.ExclusiveWithFencing if fences else mode.Exclusive,
                    send_timeout_millis=self._broker.patience_ms,
                    compression_type=self._compression,
                    max_pending_messages=0,
                    batching_enabled=True,
                    batching_max_messages=UNLIMITED,
                    batching_max_allowed_size_in_bytes=UNLIMITED,
                    batching_max_publish_delay_ms=UNLIMITED,
                )
                return int(self._producer.last_sequence_id())
            except pulsar.ProducerBusy:  # the earlier producer still has something in flight
                if time.monotonic() > deadline:
                    raise
            turn += 1
            time.sleep(PAUSES.pause_s(turn, 0.0))

    def publish(self, messages: Sequence[OutgoingMessage], number: int, check: Callable[[], None]) -> MessagePlace:
        """Publish the messages as one entry. check: called right before they are sent.

        Raises what `check` raises, SendFailed, Ambiguous, SinkUnavailable.
        """
        producer = self._producer
        if producer is None:
            raise SinkUnavailable(f"topic '{self.topic}': the producer was left; it is claimed again")
        answered: Future[tuple[Any, MessagePlace]] = Future()

        def note(result: Any, found: Any) -> None:
            """All events of an entry share its outcome."""
            if not answered.done():
                answered.set_result((result, MessagePlace(found.ledger_id(), found.entry_id())))

        try:
            for body, key, properties in messages:
                producer.send_async(body, note, properties=properties, partition_key=key, sequence_id=number)
            if not answered.done():
                check()
        except BaseException:
            self.close()  # drops the messages that wait to be sent
            raise
        if not answered.done():
            with suppress(pulsar.PulsarException):
                producer.flush()
        return self._settled(answered)

    def _settled(self, answered: Future[tuple[Any, MessagePlace]]) -> MessagePlace:
        try:
            result, place = answered.result(self._broker.timeout_s + GRACE_S)
        except TimeoutError:
            self.close()
            raise Ambiguous(f"topic '{self.topic}': no answer to a batch") from None
        if result != pulsar.Result.Ok:
            raise SendFailed(result)
        if place.ledger < 0:
            raise Ambiguous(f"topic '{self.topic}': the broker had the batch already, as its first answer was lost")
        return place

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(pulsar.PulsarException):
                producer.close()


def described(topic: str, error: BaseException) -> str:
    return f"topic '{topic}': {text_of(error)}"
