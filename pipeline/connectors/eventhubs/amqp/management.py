"""The service's information about a hub: its partitions, and the beginning and end of each.

The service allows 50 requests a second in a consumer group, for all clients together. So a client sends few at a time, and at
a limited rate. Connections are opened for a request, kept for a minute at most, and not kept alive in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from leasehold.common.cancellation import insisting
from leasehold.common.clock import Turnstile
from leasehold.pipeline.connectors.eventhubs.amqp.connection import Hub, connect, disconnect
from leasehold.pipeline.connectors.eventhubs.amqp.sdk_internals import sdk
from leasehold.pipeline.connectors.eventhubs.refusal import refusal, refused
from leasehold.pipeline.errors import FeedError, FeedUnavailable

OF_HUB, OF_PARTITION = "com.microsoft:eventhub", "com.microsoft:partition"
KEPT_S = 60.0
LINES_MAX = 4
"""Connections at a time, each with one request."""
QUESTIONS_PER_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExtent:
    """first: number of the oldest event kept. last, offset, time_ms: of the newest event ever, -1 if there was none.

    is_empty: whether the partition has no event, either not yet or no longer.
    """

    first: int
    last: int
    offset: str
    time_ms: int
    is_empty: bool

    @property
    def is_new(self) -> bool:
        """Whether there never was an event."""
        return self.last < 0


class Management:
    """Its requests raise FeedError, FeedUnavailable."""

    def __init__(self, hub: Hub, *, timeout_s: float) -> None:
        self._hub = hub
        self._idle = [_ManagementLink(hub, timeout_s=timeout_s) for _ in range(LINES_MAX)]
        self._free = asyncio.Semaphore(LINES_MAX)
        self._closing = asyncio.Lock()
        self._pace = Turnstile(time.monotonic, asyncio.sleep)

    async def list_partitions(self) -> list[str]:
        """The names of the partitions, as they are now."""
        return (await self.read_hub())[1]

    async def read_hub(self) -> tuple[int, list[str]]:
        """When the hub was created, in milliseconds since 1970, and the names of its partitions."""
        found = await self._ask(OF_HUB, self._hub.name)
        return int(found[b"created_at"]), sorted(_decoded(name) for name in found[b"partition_ids"])

    async def read_extent(self, partition: str) -> PartitionExtent:
        found = await self._ask(OF_PARTITION, f"{self._hub.name}, partition '{partition}'", partition=partition)
        first, last = max(0, int(found[b"begin_sequence_number"])), int(found[b"last_enqueued_sequence_number"])
        return PartitionExtent(
            first=first,
            last=last,
            is_empty=first > last or bool(found.get(b"is_partition_empty")),
            offset=_decoded(found[b"last_enqueued_offset"]),
            time_ms=int(found[b"last_enqueued_time_utc"]),
        )

    async def close(self) -> None:
        """Close the connections once the requests under way are answered."""
        async with self._closing, AsyncExitStack() as lines:
            for _ in range(LINES_MAX):
                await lines.enter_async_context(self._free)
            for line in self._idle:
                await line.close()

    async def _ask(self, kind: str, what: str, **more: str) -> Mapping[bytes, Any]:
        async with self._free:
            line = self._idle.pop()  # the one that was used last: its connection is open
            try:
                await self._pace.wait(QUESTIONS_PER_S)
                return await line.ask(kind, what, more)
            finally:
                self._idle.append(line)


class _ManagementLink:
    """One connection, for one request at a time."""

    def __init__(self, hub: Hub, *, timeout_s: float) -> None:
        self._hub = hub
        self._timeout_s = timeout_s
        self._client: Any = None
        self._auth: Any = None
        self._opened_at = 0.0

    async def ask(self, kind: str, what: str, more: Mapping[str, str]) -> Mapping[bytes, Any]:
        """The answer's fields. A kept connection may have been closed meanwhile: then the request is repeated once."""
        if time.monotonic() - self._opened_at > KEPT_S:
            await self.close()
        is_kept = self._client is not None
        try:
            return await self._answer(kind, what, more)
        except FeedUnavailable:
            if not is_kept or self._client is not None:
                raise  # the service refuses: repeating the request at once would make that worse
        return await self._answer(kind, what, more)

    async def _answer(self, kind: str, what: str, more: Mapping[str, str]) -> Mapping[bytes, Any]:
        try:
            async with asyncio.timeout(self._timeout_s):
                status, description, answer = await insisting(self._exchange(kind, more))
        except Exception as error:
            await self.close()
            raise refusal(error, f"event hub {what}") from error
        except BaseException:
            await self.close()
            raise
        if status >= 400:
            raise refused(status, _decoded(description), f"event hub {what}")
        return _require_map(answer.value, what)

    async def _exchange(self, kind: str, more: Mapping[str, str]) -> tuple[Any, Any, Any]:
        client = await self._open()
        status, description, answer = await client.mgmt_request_async(
            await self._request(more),
            operation="READ",
            operation_type=kind,
            status_code_field=b"status-code",
            status_description_field=b"status-description",
        )
        return status, description, answer

    async def _request(self, more: Mapping[str, str]) -> Any:
        token = (await self._auth.get_token()).token
        return sdk().Message(
            application_properties={"name": self._hub.account.hub, "security_token": token, **more},
        )

    async def _open(self) -> Any:
        if self._client is None:
            self._auth = await self._hub.make_auth()
            client = self._client = sdk().AMQPClientAsync(auth=self._auth, **self._hub.options())
            self._opened_at = time.monotonic()
            await connect(client)
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await disconnect(client)


def _require_map(value: Any, what: str) -> Mapping[bytes, Any]:
    if not isinstance(value, dict):
        raise FeedError(f"event hub {what}: the service's answer lacks the requested values")
    return value


def _decoded(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
