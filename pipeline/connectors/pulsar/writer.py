"""A claim's writer of a topic's partition: one batch at a time, with Pulsar's errors translated to those of a sink."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pulsar

from leasehold.pipeline.connectors.pulsar.broker import FORBIDDEN, MISSING
from leasehold.pipeline.connectors.pulsar.message import MARKER_BYTES, OutgoingMessage, outgoing_of, size_of
from leasehold.pipeline.connectors.pulsar.producer import BATCH_MAX, ExclusiveProducer, SendFailed, described
from leasehold.pipeline.connectors.pulsar.tail import SettledEntry, marker_properties, unnumbered
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import (
    Ambiguous,
    Fenced,
    OutputRefused,
    OutputTooLarge,
    PipelineError,
    SinkRejected,
    SinkUnavailable,
)
from leasehold.pipeline.publishing_writer import marker_of, sequences_of, traced_events_of
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, SinkWriter, checked_until_cancelled

T = TypeVar("T")


class PulsarWriter(SinkWriter):
    """A write that is not stored when its cancellation ends never will be, or the next `open` shows that it is.

    number: the lease's last one. is_numbered: whether the broker is known to remember numbers.
    """

    def __init__(
        self,
        producer: ExclusiveProducer,
        claim: Claim,
        position: str | None,
        *,
        target: str,
        tail: SettledEntry | None,
        number: int,
        is_numbered: bool,
        message_bytes_max: int,
    ) -> None:
        self._topic = producer.topic
        self._target = target
        self._producer = producer
        self._claim = claim
        self._position = position
        self._tail = tail
        self._number = number
        self._is_numbered = is_numbered
        self._bytes_max = message_bytes_max
        self._has_ended = False

    @property
    def position(self) -> str | None:
        return self._position

    @property
    def state(self) -> str:
        return self._claim.state if self._tail is None else self._tail.encoded()

    @property
    def place(self) -> str:
        return self._target

    def parts(self, output: Output) -> int:
        rows, size = int(output.table.num_rows), int(output.table.nbytes)
        by_size = -(-size * 5 // (self._bytes_max * 4)) if rows > 1 else 1  # a quarter more, since events differ
        return max(1, -(-rows // BATCH_MAX), by_size)

    async def write(self, output: Output, permit: Permit) -> None:
        assert self._claim.compare(output.start, self.position) == 0, "a write starts where the one before ended"
        if self._has_ended:
            raise SinkRejected(f"lease '{self._claim.partition}' has ended, and nothing more is taken from it")
        if output.table.num_rows:
            permit.check()
            with checked_until_cancelled(permit) as check:
                await self._run(lambda: self._publish(output, check))
        self._position = output.to

    async def end(self, permit: Permit) -> None:
        """It stores nothing: later owners learn from their leases that the partition has ended."""
        permit.check()
        await self._run(partial(self._producer.attach, fences=False))
        self._has_ended = True

    async def close(self, reason: CloseReason) -> None:
        self._producer.leave()

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            return await self._producer.run(call)
        except pulsar.PulsarException as error:
            raise as_sink_error(self._topic, error) from error
        except SendFailed as failed:
            raise _of_send(self._topic, failed) from failed

    def _publish(self, output: Output, check: Callable[[], None]) -> None:
        messages, number = self._messages_of(output), self._number + 1
        check()
        crash_point("before entry")
        place = self._producer.publish(messages, number, check)
        crash_point("entry stored")
        self._tail, self._number = SettledEntry(self._claim.generation, number, place, self._target), number
        if not self._is_numbered:
            try:
                remembered = self._producer.attach(fences=False)
            except pulsar.PulsarException as error:
                raise Ambiguous(
                    f"{described(self._topic, error)}: a batch is stored, but the broker may not remember its number"
                ) from error
            if remembered < number:
                raise unnumbered(f"topic '{self._topic}'")
            self._is_numbered = True

    def _messages_of(self, output: Output) -> list[OutgoingMessage]:
        """Raises SinkRejected, OutputRefused, OutputTooLarge."""
        events = traced_events_of(output, "a topic")
        first, *others = [outgoing_of(row) for row in events.to_pylist()]
        self._check_size(output, [first, *others])
        marker = marker_properties(marker_of(self._claim, self._claim.epoch, output, 1), self._number + 1)
        return [first._replace(properties=first.properties | marker), *others]

    def _check_size(self, output: Output, messages: list[OutgoingMessage]) -> None:
        most = self._bytes_max - MARKER_BYTES
        sizes = [size_of(message) for message in messages]
        for size, sequence in zip(sizes, sequences_of(output.table), strict=True):
            if size > most:
                raise OutputRefused(
                    f"an event takes {size} bytes, and a message of topic '{self._topic}' at most {most}: raise"
                    " `maxMessageSize` of the brokers and `message_bytes_max` of the sink, or produce smaller output",
                    sequences=() if sequence is None else (sequence,),
                )
        if sum(sizes) > most or len(messages) > BATCH_MAX:
            raise OutputTooLarge(
                f"the output of {output.events} events has {len(messages)} rows of {sum(sizes)} bytes, and a batch of topic"
                f" '{self._topic}' at most {BATCH_MAX} of {most} bytes: lower the pipeline's batch_events_max or batch_bytes_max"
            )


def as_sink_error(topic: str, error: pulsar.PulsarException) -> PipelineError:
    """What the error of a call that sends no events means to a sink."""
    text = described(topic, error)
    if isinstance(error, pulsar.ProducerFenced):
        return Fenced(f"{text}: another owner has claimed the lease")
    if isinstance(error, FORBIDDEN):
        return SinkRejected(f"{text}: look at the token, and at the permissions that docs/pulsar.md lists")
    if isinstance(error, (*MISSING, pulsar.TopicTerminated)):
        return SinkRejected(f"{text}: create the topic, or correct `topic`")
    if isinstance(error, pulsar.IncompatibleSchema):
        return SinkRejected(f"{text}: the topic must take bytes; give it no schema")
    return SinkUnavailable(text)


def _of_send(topic: str, failed: SendFailed) -> PipelineError:
    results, text = pulsar.Result, f"topic '{topic}': {failed}"
    if failed.result in (results.ProducerFenced, results.AlreadyClosed):
        return Fenced(f"{text}: another owner has claimed the lease")
    if failed.result == results.MessageTooBig:
        return OutputTooLarge(f"{text}: lower `message_bytes_max` of the sink to `maxMessageSize` of the brokers")
    if failed.result in (results.TopicTerminated, results.AuthorizationError, results.NotAllowedError):
        return SinkRejected(f"{text}: look at the topic, and at the permissions that docs/pulsar.md lists")
    if failed.result in (results.ProducerBlockedQuotaExceededError, results.ProducerBlockedQuotaExceededException):
        return SinkUnavailable(f"{text}: a subscription has too large a backlog")
    return Ambiguous(text)
