"""The bank over NATS JetStream: both logs are streams of a real server, the rest is as embedded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import nats
from lab.scenarios.brokers import TARGETS, OverBroker, Stored
from lab.scenarios.grounds import PARTITIONS, MakeGround
from nats.aio.msg import Msg
from plugins_nats import NatsMachine, nats_machine

from leasehold.pipeline.connectors.nats.connection import NatsAccess, NatsConnection
from leasehold.pipeline.connectors.nats.position import position_of
from leasehold.pipeline.connectors.nats.stream import Stream

LOOK_TIMEOUT_S = 20.0
TIMEOUT_S = 2
"""Of hosts to the server."""


class OverNats(OverBroker):
    begins_nowhere = False

    def __init__(self, directory: Path, name: str, machine: NatsMachine, *, with_spark: bool = True) -> None:
        super().__init__(directory, name, machine, with_spark=with_spark)
        self._machine = machine
        self.environment = {"BANK_NATS": machine.servers}

    def make_log(self, name: str) -> None:
        asyncio.run(self._make_stream(name))

    async def _make_stream(self, name: str) -> None:
        connection = NatsConnection(NatsAccess(servers=self._machine.servers), timeout_s=LOOK_TIMEOUT_S)
        try:
            await Stream(connection, name, name, PARTITIONS).create(1)
        finally:
            await connection.close()

    def side(self, log: str, side: str) -> dict[str, Any]:
        place = {"type": "nats", "servers": "${BANK_NATS}", "stream": log, "subject": log, "partitions": PARTITIONS}
        return {**place, "timeout_s": TIMEOUT_S, **({"trusts_headers": True} if side == "feed" else {})}

    def paged(self, feed: dict[str, Any], events: int) -> dict[str, Any]:
        return self.replaced(feed, "nats", page_events_max=events)

    def slow(self, sink: dict[str, Any], gate: Path) -> dict[str, Any]:
        return self.slowed(sink, "lab.scenarios.slow_streams:SlowStream", gate)

    def stored(self, log: str) -> dict[str, list[Stored]]:
        return {target: asyncio.run(stored_in(self._machine.url, log, f"{log}.{target}")) for target in TARGETS}

    def is_behind(self, number: int, position: str | None) -> bool:
        return number <= position_of(position).last


async def stored_in(url: str, stream: str, subject: str) -> list[Stored]:
    """All of a subject, read by nats-py's own ordered consumer."""
    client = await nats.connect(url, error_cb=_ignored)
    try:
        streams = client.jetstream()
        count = ((await streams.stream_info(stream, subjects_filter=subject)).state.subjects or {}).get(subject, 0)
        reader = await streams.subscribe(subject, stream=stream, ordered_consumer=True)
        found: list[Msg] = [await reader.next_msg(timeout=LOOK_TIMEOUT_S) for _ in range(count)]
        return [Stored(message.metadata.sequence.stream, message.data) for message in found]
    finally:
        await client.close()


async def _ignored(error: Exception) -> None:
    """Whoever reads is told."""


@contextmanager
def served(*, with_spark: bool = True) -> Iterator[MakeGround]:
    """A server for each bank: one that dies takes no other with it."""
    with ExitStack() as machines:

        def made(directory: Path, name: str) -> OverNats:
            return OverNats(directory, name, machines.enter_context(nats_machine()), with_spark=with_spark)

        yield made
