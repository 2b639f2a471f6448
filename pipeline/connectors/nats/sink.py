"""A stream as a sink: a batch and the position that it brings are one atomic publication.

A lease's position has a subject of its own in the same stream. A claim writes there, expecting what it has read, and so does
every batch; so a later claim shuts out whatever an earlier owner sends, even what is still on its way. The server forgets ids
of messages after a while (`Nats-Msg-Id`), and knows nothing of owners: it is not needed, and would not do.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any, TypeVar

from pydantic import Field, SecretStr

from leasehold import (
    Ambiguous,
    Claim,
    CloseReason,
    Fenced,
    Output,
    OutputTooLarge,
    Permit,
    PipelineError,
    Sink,
    SinkNotFound,
    SinkRejected,
    SinkUnavailable,
    SinkWriter,
    Standing,
    crash_point,
    events_of,
    generation_lost,
)
from leasehold.pipeline.connectors.nats.connection import Connection, NatsError, Refused, Unanswered
from leasehold.pipeline.connectors.nats.entry import Entry, claimed, decoded
from leasehold.pipeline.connectors.nats.message import headers_of
from leasehold.pipeline.connectors.nats.stream import OUTPACED, SWITCHES, Kept, Stream

T = TypeVar("T")
BATCH_MAX = 1000
"""Messages of one atomic publication, the position's among them (ADR-50)."""
CLAIMS_MAX = 5
PASSING = (10176, 10210, 10211)
"""The batch did not come whole, or too many are under way: not stored, and may be sent again."""
_STATE = re.compile(r"(\d{1,18}):(\d{1,18})")


class Outpaced(Fenced):
    """Somebody has written what stands on the lease's subject since it was read."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    subject: str
    payload: bytes
    headers: dict[str, str]


class JetStreamSink(Sink):
    """Events go to the partition of the source partition's name, else to one that its name chooses for good.

    Output columns: `body` (STRING or BINARY); `key`, `operation` and `properties` where wanted. The stream is made where it is
    missing. `partitions` must not change while there are leases.
    """

    leasehold_interface = 1
    holds_position = True

    def __init__(
        self,
        servers: str,
        stream: str,
        subject: str,
        *,
        partitions: Annotated[int, Field(ge=1, le=1024)],
        user: str | None = None,
        password: SecretStr | None = None,
        token: SecretStr | None = None,
        timeout_s: Annotated[float, Field(gt=0)] = 5.0,
    ) -> None:
        connection = Connection(servers, user=user, password=password, token=token, timeout_s=timeout_s)
        self._stream = Stream(connection, stream, subject, partitions)

    @property
    def identity(self) -> str:
        return self._stream.identity

    def claimed(self, state: str) -> str:
        """The stream holds everything; the lease keeps how far it has seen it, to notice that it was deleted."""
        return state

    async def prepare(self) -> None:
        try:
            await _translated(self._stream.made())
        except SinkUnavailable as error:
            if await self._stream.connection.is_nowhere():
                raise SinkNotFound(f"{error}: no such host: look at `servers`") from error
            raise
        found = await _translated(self._stream.configuration())
        if wrong := [*_unfit(found)]:
            raise SinkRejected(f"stream '{self._stream.name}' cannot be published to: {', '.join(wrong)}")

    async def open(self, claim: Claim) -> JetStreamWriter:
        """What an earlier owner had on its way may come between the look and the claim: then both are made again."""
        for _ in range(CLAIMS_MAX - 1):
            with suppress(Outpaced):
                return await self._claimed(claim)
        return await self._claimed(claim)

    async def _claimed(self, claim: Claim) -> JetStreamWriter:
        subject = self._stream.lease(claim.pipeline, claim.partition)
        kept = await _translated(self._stream.last(subject))
        held = None if kept is None else decoded(kept.data, subject)
        self._admit(claim, kept, held)
        writer = JetStreamWriter(self._stream, claim, kept.sequence if kept else 0, claimed(claim, held))
        try:
            await writer.put((), writer.entry)
        except Ambiguous as error:  # it may stand; the next claim outranks it
            raise SinkUnavailable(str(error)) from error
        return writer

    def _admit(self, claim: Claim, kept: Kept | None, held: Entry | None) -> None:
        where = f"stream '{self._stream.name}'"
        if held is None or kept is None or kept.sequence < _seen(claim):
            if _seen(claim):
                raise SinkRejected(
                    f"{where} does not know any more where lease '{claim.partition}' of '{claim.pipeline}' stands: it was"
                    " deleted, restored or purged, and output may be lost. Restore it, or reset the lease"
                )
            return
        if held.epoch > claim.epoch:
            raise Fenced(f"{where} knows '{held.owner}' with epoch {held.epoch}: not {claim.epoch}", epoch=held.epoch)
        if held.generation > claim.generation:
            raise generation_lost(claim, where, held.generation)

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        subject = self._stream.lease(pipeline, partition)
        kept = await _translated(self._stream.last(subject))
        held = None if kept is None else decoded(kept.data, subject)
        return None if held is None else Standing(held.generation, held.position)

    async def close(self) -> None:
        await self._stream.connection.close()


class JetStreamWriter(SinkWriter):
    """entry: the last one that was put. sequence: where it stands in the stream."""

    def __init__(self, stream: Stream, claim: Claim, sequence: int, entry: Entry) -> None:
        self.entry = entry
        self._stream = stream
        self._claim = claim
        self._sequence = sequence
        self._lease = stream.lease(claim.pipeline, claim.partition)
        self._target = stream.events(target_of(claim.partition, stream.partitions))

    @property
    def position(self) -> str | None:
        return self.entry.position

    @property
    def state(self) -> str:
        return f"{self.entry.generation}:{self._sequence}"

    def parts(self, output: Output) -> int:
        rows = int(output.table.num_rows)
        return max(1, -(-rows // (BATCH_MAX - 1)))

    async def write(self, output: Output, permit: Permit) -> None:
        assert self._claim.compare(output.start, self.position) == 0, "a write starts where the one before ended"
        if self.entry.has_ended:
            raise SinkRejected(f"lease '{self._claim.partition}' has ended, and nothing more is taken from it")
        if self.parts(output) > 1:
            raise OutputTooLarge(
                f"the output of {output.events} events has {output.table.num_rows} rows, and a publication holds at most"
                f" {BATCH_MAX - 1}: lower the pipeline's batch_events_max"
            )
        events = await asyncio.to_thread(self._events, output)
        permit.check()
        crash_point("before publish")
        await self.put(events, self.entry.moved(output.to), permit.check)
        crash_point("published")

    async def end(self, permit: Permit) -> None:
        await self.put((), self.entry.ended(), permit.check)

    async def close(self, reason: CloseReason) -> None:
        """Nothing is held between writes."""

    def _events(self, output: Output) -> list[Outgoing]:
        rows = events_of(output.table, "a stream").to_pylist()
        return [Outgoing(self._target, row["body"] or b"", headers_of(row)) for row in rows]

    async def put(self, events: Sequence[Outgoing], entry: Entry, check: Callable[[], None] = lambda: None) -> None:
        """The events and the entry, or nothing. Raises Fenced, Ambiguous, SinkUnavailable, SinkRejected.

        check: called right before the message that makes it count; whoever was stopped while sending learns it there.
        """
        *before, last = batch_of(self._stream.name, events, self._entry(entry))
        connection = self._stream.connection
        try:
            await self._check_sizes(before)
            for message in before:
                await connection.send(message.subject, message.payload, headers=message.headers)
            check()
            answer = await connection.told(
                last.subject, last.payload, last.headers, what=f"publishing to '{self._target}'"
            )
        except NatsError as error:
            raise as_sink_error(error, self._lease) from error
        self._sequence, self.entry = int(answer["seq"]), entry

    def _entry(self, entry: Entry) -> Outgoing:
        headers = {
            "Nats-Expected-Last-Subject-Sequence": str(self._sequence),
            "Nats-Rollup": "sub",
            "Nats-TTL": "never",
        }
        return Outgoing(self._lease, entry.encoded(), headers)

    async def _check_sizes(self, messages: Sequence[Outgoing]) -> None:
        most = (await self._stream.connection.client()).max_payload
        for message in messages:
            size = (
                len(message.payload) + sum(len(name) + len(value) + 4 for name, value in message.headers.items()) + 12
            )
            if size > most:
                raise SinkRejected(
                    f"an event for '{self._target}' takes {size} bytes, and the server takes at most {most}"
                )


def batch_of(stream: str, events: Sequence[Outgoing], entry: Outgoing) -> list[Outgoing]:
    """In the order of sending; the server takes the last one and all of them, or none."""
    expected = {"Nats-Expected-Stream": stream}
    if not events:
        return [Outgoing(entry.subject, entry.payload, {**entry.headers, **expected})]
    batch = uuid.uuid4().hex
    numbered = [
        Outgoing(
            each.subject, each.payload, {**each.headers, "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
        )
        for number, each in enumerate((*events, entry), 1)
    ]
    numbered[-1].headers.update(expected, **{"Nats-Batch-Commit": "1"})
    return numbered


def target_of(partition: str, targets: Sequence[str]) -> str:
    """The one of the same name, else always the same one."""
    if partition in targets:
        return partition
    return max(targets, key=lambda target: blake2b(f"{target}/{partition}".encode(), digest_size=8).digest())


def as_sink_error(error: NatsError, lease: str) -> PipelineError:
    if isinstance(error, Unanswered):
        return Ambiguous(str(error))
    if isinstance(error, Refused):
        if error.number in OUTPACED:
            return Outpaced(f"'{lease}' was claimed by another owner since")
        if error.status < 500 and error.number not in PASSING:
            return SinkRejected(str(error))
    return SinkUnavailable(str(error))


async def _translated(call: Awaitable[T]) -> T:
    """Of a question. One without an answer did nothing either."""
    try:
        return await call
    except NatsError as error:
        is_final = isinstance(error, Refused) and error.status < 500
        raise (SinkRejected if is_final else SinkUnavailable)(str(error)) from error


def _unfit(configuration: dict[str, Any]) -> list[str]:
    """What a stream that others have made lacks."""
    missing = [f"`{name}` has to be on" for name in SWITCHES if not configuration.get(name)]
    if configuration.get("retention") != "limits":
        missing.append("its retention has to be `limits`")
    if configuration.get("max_msgs_per_subject", -1) > 0:
        missing.append("`max_msgs_per_subject` has to be off")
    return missing


def _seen(claim: Claim) -> int:
    """The newest entry that the lease knows of in this generation; 0 where it knows none."""
    found = _STATE.fullmatch(claim.state)
    return int(found[2]) if found and int(found[1]) == claim.generation else 0
