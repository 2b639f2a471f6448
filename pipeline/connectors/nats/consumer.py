"""An ordered pull consumer, ephemeral and without acknowledgements. Its reader makes another if it breaks.

The lease has the position, so the server needs none. A pull limits its events and bytes, which bounds what is in flight.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error
from nats.errors import TimeoutError as NoneCame

from leasehold.common.cancellation import heeding
from leasehold.pipeline.connectors.nats.connection import NatsError
from leasehold.pipeline.connectors.nats.stream import EPOCH, Stream

IDLE_S = 5.0
"""How long a pull waits at the end of a partition. Then the reader looks at the stream, and pulls again."""
INACTIVE_S = 120
"""The server forgets a consumer after this long without a pull."""
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """number: counts the messages of this consumer. left: how many follow. sequence: in the stream. bytes: an estimate."""

    subject: str
    number: int
    left: int
    sequence: int
    time: datetime
    headers: Mapping[str, str]
    body: bytes
    bytes: int


class Broken(Exception):
    """This consumer yields no more; another one can continue."""


class StreamConsumer:
    """Reads one subject. pending: how many events there were to read when it was made."""

    def __init__(self, stream: Stream, name: str, subscription: Subscription, pending: int) -> None:
        self.pending = pending
        self._stream = stream
        self._name = name
        self._subscription = subscription
        self._inbox = subscription.subject.removesuffix("*")
        self._pulls = 0
        self._owed = 0
        self._number = 0
        self._held: deque[StreamMessage] = deque()
        self._is_too_large = False

    async def read(self, events_max: int, bytes_max: int) -> list[StreamMessage]:
        """The events that have arrived, after waiting for one; empty if none arrives within IDLE_S. Raises Broken, NatsError."""
        if not self._held and not await self._wait(events_max, bytes_max):
            return []
        while self._owed > 0 and self._subscription.pending_msgs and len(self._held) < events_max:
            self._take(await self._next())
        return self._cut(events_max, bytes_max)

    def _cut(self, events_max: int, bytes_max: int) -> list[StreamMessage]:
        page = [self._held.popleft()]
        size = page[0].bytes
        while self._held and len(page) < events_max and (size := size + self._held[0].bytes) <= bytes_max:
            page.append(self._held.popleft())
        return page

    async def _wait(self, events_max: int, bytes_max: int) -> bool:
        """Wait for the first event. False if the pull ended without one."""
        while not self._held:
            if self._owed <= 0:
                await self._pull(events_max, bytes_max)
            if self._take(await self._next()) == "idle":
                return False
        return True

    async def _pull(self, events_max: int, bytes_max: int) -> None:
        wanted: dict[str, Any] = {"batch": events_max, "max_bytes": bytes_max}
        if self._is_too_large:
            wanted = {"batch": 1}
        self._is_too_large = False
        self._owed = wanted["batch"]
        self._pulls += 1
        await self._stream.connection.send(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream.name}.{self._name}",
            json.dumps({**wanted, "expires": int(IDLE_S * SECOND)}).encode(),
            reply=f"{self._inbox}{self._pulls}",
        )

    async def _next(self) -> Msg:
        """Raises Broken."""
        began_at = asyncio.get_running_loop().time()
        try:
            return await heeding(self._subscription.next_msg(timeout=IDLE_S + self._stream.connection.timeout_s))
        except NoneCame as error:
            raise Broken(f"the server does not answer{self._stream.connection.explained(began_at)}") from error
        except Error as error:
            raise Broken(str(error)) from error

    def _take(self, message: Msg) -> str:
        """Raises Broken."""
        status = (message.headers or {}).get("Status")
        if status is not None and not message.reply:
            return self._ended(message, status)
        taken = _message(message)
        self._number += 1
        if taken.number != self._number:
            raise Broken("an event was lost on its way")
        self._owed -= 1
        self._held.append(taken)
        return "taken"

    def _ended(self, message: Msg, status: str) -> str:
        """What the server's answer to a pull means if it is not an event. Raises Broken."""
        if message.subject != f"{self._inbox}{self._pulls}":
            return "stale"
        words = (message.headers or {}).get("Description", "")
        self._owed = 0
        if status in ("404", "408"):
            return "idle"
        self._is_too_large = "MaxBytes" in words and not self._held
        if status == "409" and ("MaxBytes" in words or "Batch Completed" in words):
            return "full"
        raise Broken(f"{status} {words}")


@asynccontextmanager
async def open_consumer(stream: Stream, subject: str, **start: Any) -> AsyncIterator[StreamConsumer]:
    """start: `opt_start_seq` or `opt_start_time`. Raises NatsError."""
    policy = "by_start_sequence" if "opt_start_seq" in start else "by_start_time"
    connection, name = stream.connection, uuid.uuid4().hex
    client = await connection.client()
    subscription = await connection.subscribe(f"{client.new_inbox()}.*")
    try:
        made = await connection.ask(
            f"CONSUMER.CREATE.{stream.name}.{name}.{subject}",
            stream_name=stream.name,
            config={
                "name": name,
                "deliver_policy": policy,
                "ack_policy": "none",
                "filter_subject": subject,
                "inactive_threshold": INACTIVE_S * SECOND,
                "mem_storage": True,
                "num_replicas": 1,
                **start,
            },
        )
        yield StreamConsumer(stream, name, subscription, int(made["num_pending"]))
    finally:
        with suppress(Error):
            await heeding(subscription.unsubscribe())
        with suppress(NatsError):  # the server forgets it anyway
            await connection.send(f"$JS.API.CONSUMER.DELETE.{stream.name}.{name}", b"")


def _message(message: Msg) -> StreamMessage:
    """A message, with the numbers in the subject for its acknowledgement. Raises Broken."""
    tokens = message.reply.split(".")
    at = 5 if len(tokens) == 9 else 7  # 7 if the domain and the account precede them
    try:
        sequence, number, nanoseconds, left = map(int, tokens[at : at + 4])
    except ValueError:
        raise Broken(f"'{message.reply}' is not the subject of an acknowledgement") from None
    headers = message.headers or {}
    return StreamMessage(
        subject=message.subject,
        number=number,
        left=left,
        sequence=sequence,
        time=EPOCH + timedelta(microseconds=nanoseconds // 1000),
        headers=headers,
        body=message.data,
        bytes=len(message.data) + sum(len(name) + len(value) for name, value in headers.items()),
    )
