"""Leases in a stream: a subject for each document, whose newest message is the document and whose sequence is its ETag.

Every write expects the sequence that was read (`Nats-Expected-Last-Subject-Sequence`): compare-and-swap is the server's. A
deleted document leaves a message without a body, which goes away by itself; sequences are never used again.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Annotated, TypeVar
from urllib.parse import quote, unquote

from pydantic import Field, SecretStr

from leasehold import LeaseStore, StoreAmbiguous, StoreConflict, Stored, StoreMissing, StoreUnavailable
from plugins.jetstream.connection import Connection, NatsError, Refused, Unanswered
from plugins.jetstream.consumer import Broken, Message, consuming
from plugins.jetstream.stream import NO_STREAM, OUTPACED, STREAM_EXISTS, Kept, Stream

T = TypeVar("T")
PAGE_EVENTS_MAX = 500
PAGE_BYTES_MAX = 8 * 1024 * 1024
TOMBSTONE_S = 3600
_ETAG = re.compile(r"[1-9][0-9]{0,17}")


class JetStreamLeases(LeaseStore):
    """The stream is made by the first call that misses it, and holds nothing else."""

    leasehold_interface = 1

    def __init__(
        self,
        servers: str,
        stream: str,
        *,
        replicas: Annotated[int, Field(ge=1, le=5)] = 1,
        user: str | None = None,
        password: SecretStr | None = None,
        token: SecretStr | None = None,
        timeout_s: Annotated[float, Field(gt=0)] = 5.0,
    ) -> None:
        self._connection = Connection(servers, user=user, password=password, token=token, timeout_s=timeout_s)
        self._stream = Stream(self._connection, stream, stream, 0)
        self._replicas = replicas

    async def list(self, prefix: str) -> list[Stored]:
        newest = {message.subject: message for message in await self._there(self._read)}
        documents = [
            Stored(self._id(subject), message.body.decode(), str(message.sequence))
            for subject, message in newest.items()
            if message.body
        ]
        return sorted((one for one in documents if one.id.startswith(prefix)), key=lambda one: one.id)

    async def read(self, id: str) -> Stored:
        kept = await self._last(id)
        if kept is None or not kept.data:
            raise StoreMissing(f"there is no document '{id}'")
        return Stored(id, kept.data.decode(), str(kept.sequence))

    async def create(self, id: str, body: str) -> str:
        kept = await self._last(id)
        if kept is not None and kept.data:
            raise StoreConflict(f"document '{id}' is there already")
        try:
            return await self._put(id, body.encode(), 0 if kept is None else kept.sequence)
        except Outpaced as error:
            raise StoreConflict(f"document '{id}' was made by somebody else") from error

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._changed(id, body.encode(), etag)

    async def delete(self, id: str, etag: str) -> None:
        await self._changed(id, b"", etag, {"Nats-TTL": f"{TOMBSTONE_S}s"})

    async def close(self) -> None:
        await self._connection.close()

    async def _changed(self, id: str, data: bytes, etag: str, headers: dict[str, str] | None = None) -> str:
        if _ETAG.fullmatch(etag):
            with suppress(Outpaced):
                return await self._put(id, data, int(etag), headers)
        await self.read(id)  # it may be missing
        raise StoreConflict(f"document '{id}' has changed")

    async def _put(self, id: str, data: bytes, expected: int, headers: dict[str, str] | None = None) -> str:
        """Raises Outpaced, StoreUnavailable, StoreAmbiguous."""
        own = {"Nats-Expected-Last-Subject-Sequence": str(expected), **(headers or {})}
        try:
            told = await self._connection.told(self._subject(id), data, own, what=f"writing '{id}'")
        except Unanswered as error:
            raise StoreAmbiguous(str(error)) from error
        except Refused as error:
            if error.number in OUTPACED:
                raise Outpaced from error
            raise StoreUnavailable(str(error)) from error
        except NatsError as error:
            raise StoreUnavailable(str(error)) from error
        return str(told["seq"])

    async def _last(self, id: str) -> Kept | None:
        return await self._there(lambda: self._stream.last(self._subject(id)))

    async def _read(self) -> Sequence[Message]:
        """The newest of each subject, and what is written meanwhile."""
        found: list[Message] = []
        async with consuming(self._stream, f"{self._stream.subject}.>", deliver_policy="last_per_subject") as consumer:
            left = consumer.pending
            while left:
                page = await consumer.page(PAGE_EVENTS_MAX, PAGE_BYTES_MAX)
                found += page
                left = page[-1].left if page else 0
        return found

    async def _there(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What is asked of the stream, which is made where it is missing. Raises StoreUnavailable."""
        try:
            try:
                return await ask()
            except Refused as refused:
                if refused.number != NO_STREAM:
                    raise
                await self._make()
                return await ask()
        except (Broken, NatsError) as error:
            raise StoreUnavailable(str(error)) from error

    async def _make(self) -> None:
        name = self._stream.name
        try:
            await self._connection.api(
                f"STREAM.CREATE.{name}",
                name=name,
                subjects=[f"{name}.>"],
                max_msgs_per_subject=1,
                allow_msg_ttl=True,
                storage="file",
                num_replicas=self._replicas,
            )
        except Refused as refused:
            if refused.number != STREAM_EXISTS:
                raise

    def _subject(self, id: str) -> str:
        return f"{self._stream.subject}.{quote(id, safe='/').replace('.', '%2E')}"

    def _id(self, subject: str) -> str:
        return unquote(subject.removeprefix(f"{self._stream.subject}."))


class Outpaced(Exception):
    """The newest message of the subject is another one than expected."""
