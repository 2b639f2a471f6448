"""A stream as a sink, exactly once: a batch and its new position are one atomic publication.

What carries the guarantee:

- Each lease has a subject for its position, in the same stream as the events. Claims and batches write to it.
- The events of a batch and the new position are one atomic publication: the server stores all of it, or nothing.
- The position is written only if the last sequence of its subject is the one that this owner wrote or claimed
  (`Nats-Expected-Last-Subject-Sequence`). So a claim shuts out whatever an earlier owner sends, even what is still on its way.

Message ids (`Nats-Msg-Id`) are not used. The server forgets them after some minutes, and they do not shut out an earlier owner.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from leasehold.common.standing import Standing
from leasehold.pipeline.connectors.held import Held, admit, claimed, decoded
from leasehold.pipeline.connectors.nats.connection import NatsAccess, NatsConnection, NatsError, RefusedRequest
from leasehold.pipeline.connectors.nats.stream import NO_STREAM, Kept, Stream, unfit_to_publish
from leasehold.pipeline.connectors.nats.writer import NatsWriter, Outpaced, as_sink_error
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import Ambiguous, SinkNotFound, SinkRejected, SinkUnavailable
from leasehold.pipeline.markers import lease_of
from leasehold.pipeline.sink import Claim, Sink, to_write_again

T = TypeVar("T")
CLAIMS_MAX = 5
FOREIGN = "let nothing but Leasehold publish there, and delete that message"
_STATE = re.compile(r"(\d{1,18}):(\d{1,18})")


class NatsOutputSink(Sink):
    """A source partition goes to the subject of the same name. If there is none, one is chosen once.

    Output columns: as for the log.

    - `replicas`: create a missing stream with this many replicas. None: the stream has to exist.
    - `refresh_s`: how often an idle lease writes its position again, so that retention by size does not delete it.
    """

    holds_position = True

    def __init__(
        self,
        access: NatsAccess,
        stream: str,
        subject: str,
        *,
        partitions: int,
        replicas: int | None = None,
        timeout_s: float = 5.0,
        refresh_s: float = 3600.0,
    ) -> None:
        self._stream = Stream(NatsConnection(access, timeout_s=timeout_s), stream, subject, partitions)
        self._replicas = replicas
        self._refresh_s = refresh_s
        self._message_bytes_max: int | None = None

    @property
    def identity(self) -> str:
        return self._stream.identity

    @property
    def endpoint(self) -> Endpoint:
        return self._stream.connection.access.endpoint(self._stream.name)

    def claimed(self, state: str) -> str:
        """The stream holds everything; the lease keeps how far it has seen the stream, to notice a deletion or a restore."""
        return state

    async def prepare(self) -> None:
        try:
            if self._replicas is not None:
                await self._stream.create(self._replicas)
            configuration = await self._stream.find_configuration()
        except NatsError as error:
            raise await self._explain(error) from error
        subjects = [self._stream.events("0"), self._stream.lease("PIPELINE", "PARTITION")]
        if wrong := list(unfit_to_publish(configuration, subjects)):
            raise SinkRejected(f"stream '{self._stream.name}' cannot be published to: {', and '.join(wrong)}")
        limit = int(configuration.get("max_msg_size", -1))
        self._message_bytes_max = limit if limit > 0 else None

    async def _explain(self, error: NatsError) -> Exception:
        if isinstance(error, RefusedRequest) and error.number == NO_STREAM:
            return SinkRejected(f"{error}: create the stream, or set `replicas` of the sink, which then creates it")
        translated = _of_question(error)
        if isinstance(translated, SinkUnavailable) and await self._stream.connection.access.are_nowhere():
            return SinkNotFound(f"{error}: no such host: look at `servers`")
        return translated

    async def open(self, claim: Claim) -> NatsWriter:
        """A batch of an earlier owner may arrive between the look and the claim; then both are repeated."""
        for _ in range(CLAIMS_MAX - 1):
            with suppress(Outpaced):
                return await self._claim(claim)
        return await self._claim(claim)

    async def _claim(self, claim: Claim) -> NatsWriter:
        where = self._where(claim.pipeline, claim.partition)
        kept, held = await self._find(claim.pipeline, claim.partition)
        admit(claim, held, where)
        self._check_kept(claim, kept, held, where)
        ours = claimed(claim, held, len(self._stream.partitions), where)
        sequence = 0 if kept is None else kept.sequence
        writer = NatsWriter(
            self._stream, claim, ours, sequence, refresh_s=self._refresh_s, message_bytes_max=self._message_bytes_max
        )
        try:
            await writer.put_position()
        except Ambiguous as error:  # the next claim outranks it, whether it was stored or not
            raise SinkUnavailable(str(error)) from error
        return writer

    def _check_kept(self, claim: Claim, kept: Kept | None, held: Held | None, where: str) -> None:
        """Raises SinkRejected if the stream had a newer position, and has none or an older one now."""
        if held is not None and kept is not None and kept.sequence >= _seen(claim):
            return
        if _seen(claim):
            raise SinkRejected(
                f"{where} no longer has the position of lease '{lease_of(claim.pipeline, claim.partition)}': the stream was"
                " deleted, restored or purged, or its retention by size deleted it. Restore the stream. Otherwise some output may"
                f" be there already, and you can {to_write_again(claim)}"
            )

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        _, held = await self._find(pipeline, partition)
        return None if held is None else Standing(held.generation, held.position)

    async def close(self) -> None:
        await self._stream.connection.close()

    async def _find(self, pipeline: str, partition: str) -> tuple[Kept | None, Held | None]:
        kept = await self._asked(self._stream.find_last(self._stream.lease(pipeline, partition)))
        if kept is None:
            return None, None
        return kept, decoded(kept.data.decode(errors="replace"), self._where(pipeline, partition), FOREIGN)

    def _where(self, pipeline: str, partition: str) -> str:
        return f"stream '{self._stream.name}' (subject '{self._stream.lease(pipeline, partition)}')"

    async def _asked(self, question: Awaitable[T]) -> T:
        try:
            return await question
        except NatsError as error:
            raise _of_question(error) from error


def _of_question(error: NatsError) -> Exception:
    """What the error of a request that stores nothing means to a sink; never Ambiguous."""
    translated = as_sink_error(error)
    return SinkUnavailable(str(translated)) if isinstance(translated, Ambiguous) else translated


def _seen(claim: Claim) -> int:
    """The sequence of the newest position that the lease knows in this generation; 0 if it knows none."""
    found = _STATE.fullmatch(claim.state)
    return int(found[2]) if found and int(found[1]) == claim.generation else 0
