"""A claim's writer of a stream: one publication at a time, with NATS's errors translated to those of a sink."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from leasehold.pipeline.connectors.held import Held
from leasehold.pipeline.connectors.held_writer import Change, HeldWriter
from leasehold.pipeline.connectors.nats.connection import Forbidden, NatsError, RefusedRequest, Unanswered
from leasehold.pipeline.connectors.nats.message import HEADER_BYTES_MAX, headers_of, size_of
from leasehold.pipeline.connectors.nats.stream import Stream
from leasehold.pipeline.errors import (
    Ambiguous,
    Fenced,
    OutputRefused,
    OutputTooLarge,
    PipelineError,
    SinkRejected,
    SinkUnavailable,
)
from leasehold.pipeline.publishing_writer import sequences_of, traced_events_of
from leasehold.pipeline.sink import Claim, CloseReason, Output

BATCH_MAX = 1000
"""The most messages of one atomic publication, including the position (ADR-50)."""
BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Output of more bytes is published in parts, because the server holds a batch until it is complete."""
OUTPACED = (10071, 10164)
"""The last sequence of a subject is not the expected one."""
PASSING = (10176, 10210, 10211)
"""The batch did not arrive whole, or too many are in flight: nothing was stored, and the batch may be sent again."""
NOT_CLUSTERED = 10074
"""A single server keeps no replicas."""
BATCH_HEADERS_BYTES = 200
"""The most bytes that a batch adds to a message's headers."""


class Outpaced(Fenced):
    """Another owner has written the lease's position since it was read."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """sequence: of the row, if it has one."""

    subject: str
    payload: bytes
    headers: dict[str, str]
    sequence: int | None = None


class NatsWriter(HeldWriter[Outgoing]):
    """sequence: of the last position, in the stream."""

    def __init__(
        self,
        stream: Stream,
        claim: Claim,
        held: Held,
        sequence: int,
        *,
        refresh_s: float,
        message_bytes_max: int | None,
    ) -> None:
        super().__init__(claim, held, refresh_s)
        self._stream = stream
        self._sequence = sequence
        self._message_bytes_max = message_bytes_max
        self._turn = asyncio.Lock()

    @property
    def state(self) -> str:
        return f"{self._held.generation}:{self._sequence}"

    def parts(self, output: Output) -> int:
        rows, size = int(output.table.num_rows), int(output.table.nbytes)
        return max(1, -(-rows // (BATCH_MAX - 1)), -(-size // BATCH_BYTES_MAX) if rows > 1 else 1)

    async def close(self, reason: CloseReason) -> None:
        """Nothing is held between writes."""

    async def _messages_of(self, output: Output) -> list[Outgoing]:
        if output.table.num_rows >= BATCH_MAX:
            raise OutputTooLarge(
                f"the output of {output.events} events has {output.table.num_rows} rows, and a publication holds at most"
                f" {BATCH_MAX - 1}: lower the pipeline's `batch_events_max`"
            )
        return await asyncio.to_thread(self._outgoing_of, output)

    def _outgoing_of(self, output: Output) -> list[Outgoing]:
        events = traced_events_of(output, "a stream")
        subject = self._stream.events(str(self._held.target))
        rows = zip(events.to_pylist(), sequences_of(output.table), strict=True)
        return [Outgoing(subject, row["body"] or b"", headers_of(row), sequence) for row, sequence in rows]

    async def _put(self, messages: Sequence[Outgoing], change: Change, check: Callable[[], None]) -> None:
        async with self._turn:
            held, connection, began_at = change(self._held), self._stream.connection, asyncio.get_running_loop().time()
            *before, last = batch_of(self._stream.name, messages, self._position_of(held))
            try:
                await self._check_sizes(messages)
                for message in before:
                    await connection.send(message.subject, message.payload, headers=message.headers)
                check()
                what = f"publishing to '{self._stream.subject}'"
                answer = await connection.request(last.subject, last.payload, last.headers, what=what)
            except NatsError as error:
                raise as_sink_error(error, connection.explained(began_at)) from error
            sequence = answer.get("seq")
            if answer.get("stream") != self._stream.name or not isinstance(sequence, int):
                raise Ambiguous(f"{what}: another client than stream '{self._stream.name}' has answered")
            self._sequence, self._held = sequence, held

    def _position_of(self, held: Held) -> Outgoing:
        headers = {
            "Nats-Expected-Last-Subject-Sequence": str(self._sequence),
            "Nats-Rollup": "sub",
            "Nats-TTL": "never",
        }
        return Outgoing(
            self._stream.lease(self._claim.pipeline, self._claim.partition), held.encoded().encode(), headers
        )

    async def _check_sizes(self, events: Sequence[Outgoing]) -> None:
        """Raises OutputRefused."""
        of_server = (await self._stream.connection.client()).max_payload
        most = min(of_server, self._message_bytes_max or of_server)
        for row, event in enumerate(events, 1):
            headers = size_of(event.headers) + BATCH_HEADERS_BYTES
            if headers > HEADER_BYTES_MAX:
                raise _refused(
                    event,
                    f"row {row} of {len(events)}: its key and properties take {headers} bytes as headers, and JetStream stores"
                    f" at most {HEADER_BYTES_MAX}",
                )
            if (size := headers + len(event.payload)) > most:
                raise _refused(
                    event,
                    f"row {row} of {len(events)} takes {size} bytes, and stream '{self._stream.name}' takes at most {most}: raise"
                    " `max_payload` of the server and `max_msg_size` of the stream, or produce smaller output",
                )


def _refused(event: Outgoing, message: str) -> OutputRefused:
    return OutputRefused(message, sequences=() if event.sequence is None else (event.sequence,))


def batch_of(stream: str, events: Sequence[Outgoing], position: Outgoing) -> list[Outgoing]:
    """The messages in the order of sending. With the last one, the server stores all, or none. Each batch has a new id."""
    expected = {"Nats-Expected-Stream": stream}
    if not events:
        return [replace(position, headers={**position.headers, **expected})]
    batch = uuid.uuid4().hex
    numbered = [
        replace(each, headers={**each.headers, "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)})
        for number, each in enumerate((*events, position), 1)
    ]
    return [*numbered[:-1], replace(numbered[-1], headers=numbered[-1].headers | expected | {"Nats-Batch-Commit": "1"})]


def as_sink_error(error: NatsError, beside: str = "") -> PipelineError:
    """What the error of an unacknowledged publication, or of another request, means to a sink. beside: appended to a pause's."""
    if isinstance(error, Unanswered):
        return Ambiguous(str(error))
    if isinstance(error, Forbidden):
        return SinkRejected(
            f"{error}: look at the settings of the login, and at the permissions that docs/nats.md lists"
        )
    if isinstance(error, RefusedRequest):
        if error.number in OUTPACED:
            return Outpaced(f"another owner has claimed the lease: {error}")
        if (error.status < 500 and error.number not in PASSING) or error.number == NOT_CLUSTERED:
            return SinkRejected(str(error))
    return SinkUnavailable(f"{error}{beside}")
