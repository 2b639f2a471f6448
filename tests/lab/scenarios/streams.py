"""The bank over NATS JetStream: both logs are streams of a real server, the rest is as embedded."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import nats
from lab.scenarios.bank import Bank
from lab.scenarios.grounds import (
    MADE,
    PARTITIONS,
    Breakage,
    Embedded,
    Logs,
    MakeGround,
    behind,
    forget_leases,
    paged_files,
    slow_postgres,
    spread,
)
from nats.aio.msg import Msg
from patience import until
from plugins_nats import NatsMachine, nats_machine

from leasehold.pipeline.connectors.nats.connection import NatsAccess, NatsConnection
from leasehold.pipeline.connectors.nats.position import position_of
from leasehold.pipeline.connectors.nats.stream import Stream
from leasehold.pipeline.connectors.targets import target_of

TARGETS = tuple(map(str, range(PARTITIONS)))
FILES = spread(TARGETS, lambda name: target_of(name, TARGETS, None) or "")
LOOK_TIMEOUT_S = 20.0
TIMEOUT_S = 2
"""Of hosts to the broker."""
FROZEN_S = 4
"""So that an answer is given up, and comes all the same; less than a lease."""


class Streams(Embedded):
    """name: of the bank; others may stand on the same server."""

    files = tuple(FILES.values())
    buffer_bytes: Mapping[str, int] = {"generate": 17_000, "transform": 17_000, "balances": 7_700}
    full = 0.75
    begins_nowhere = False

    def __init__(self, directory: Path, name: str, machine: NatsMachine, *, with_spark: bool = True) -> None:
        super().__init__(directory, with_spark=with_spark)
        self.machine = machine
        self.environment = {"BANK_NATS": machine.servers}
        self._streams = Logs(name, lambda stream: asyncio.run(self._made(stream)))
        self.breakages: Mapping[str, Breakage] = {**self.breakages, "broker frozen": self._frozen}

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        for pipeline in settings["pipelines"]:
            for side, more in (("feed", {"trusts_headers": True}), ("sink", {})):
                if pipeline[side]["type"] == "log":
                    pipeline[side] = {"type": "nats", **self._place(pipeline[side]["path"]), **more}
        return settings

    def _place(self, log: str) -> dict[str, Any]:
        stream = self._streams[log]
        return {
            "servers": "${BANK_NATS}",
            "stream": stream,
            "subject": stream,
            "partitions": PARTITIONS,
            "timeout_s": TIMEOUT_S,
        }

    def paged(self, feed: dict[str, Any], events: int) -> dict[str, Any]:
        return paged_files(self._directory, feed, events) or {**feed, "page_events_max": events}

    def slow(self, sink: dict[str, Any], gate: Path) -> dict[str, Any]:
        kind = "lab.scenarios.slow_streams:SlowStream"
        return slow_postgres(sink, gate) or {**sink, "type": kind, "gate": str(gate)}

    def open(self) -> None:
        self._streams.open()

    async def _made(self, name: str) -> None:
        connection = NatsConnection(NatsAccess(servers=self.machine.servers), timeout_s=LOOK_TIMEOUT_S)
        try:
            await Stream(connection, name, name, PARTITIONS).create(1)
        finally:
            await connection.close()

    def undo(self, stage: Path, roles: Sequence[str]) -> None:
        for role in roles:
            forget_leases(stage / "leases.db", role)

    def put_back(self, roles: Sequence[str]) -> None:
        self._streams.put_back(roles)

    def events(self, log: str) -> dict[str, list[Any]]:
        """Partitions without events are left out, as an embedded log has none of them."""
        found = {FILES[target]: [json.loads(m.data) for m in self._messages(log, target)] for target in TARGETS}
        return {name: bodies for name, bodies in found.items() if bodies}

    def counted(self, positions: Iterable[tuple[str, str | None]]) -> dict[str, int]:
        return {
            FILES[target]: sum(
                message.metadata.sequence.stream <= position_of(position).last
                for message in self._messages("transformed-event", target)
            )
            for target, position in positions
        }

    def _messages(self, log: str, target: str) -> list[Msg]:
        return asyncio.run(messages_in(self.machine.url, self._streams[log], f"{self._streams[log]}.{target}"))

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        self.machine.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.machine.send(signal.SIGCONT)


async def messages_in(url: str, stream: str, subject: str) -> list[Msg]:
    """All of a subject, read by nats-py's own ordered consumer."""
    client = await nats.connect(url, error_cb=_ignored)
    try:
        streams = client.jetstream()
        count = ((await streams.stream_info(stream, subjects_filter=subject)).state.subjects or {}).get(subject, 0)
        reader = await streams.subscribe(subject, stream=stream, ordered_consumer=True)
        return [await reader.next_msg(timeout=LOOK_TIMEOUT_S) for _ in range(count)]
    finally:
        await client.close()


async def _ignored(error: Exception) -> None:
    """Whoever reads is told."""


@contextmanager
def served(*, with_spark: bool = True) -> Iterator[MakeGround]:
    """A broker for each bank: one that dies takes no other with it."""
    with ExitStack() as machines:

        def made(directory: Path, name: str) -> Streams:
            return Streams(directory, name, machines.enter_context(nats_machine()), with_spark=with_spark)

        yield made


# Faults of the broker


@contextmanager
def _killed(machine: NatsMachine) -> Iterator[None]:
    machine.kill()
    yield
    machine.start()


@contextmanager
def _stopped(machine: NatsMachine) -> Iterator[None]:
    machine.send(signal.SIGSTOP)
    yield
    threading.Event().wait(FROZEN_S)
    machine.send(signal.SIGCONT)


BREAKAGES = {"broker killed": _killed, "broker frozen": _stopped}


def survived(bank: Bank, role: str, how: str) -> None:
    """Every partition has a batch, and is given the next while the broker is away: it comes to the same end. Raises Failed."""
    with bank.running("a", role, *behind(role), slow=True) as host:
        bereaved(bank, role, how)
        bank.see_end(host)


def bereaved(bank: Bank, role: str, how: str) -> None:
    """A slow host has delivered a batch of every partition: the broker goes away, the host goes on, the broker comes back."""
    ground = bank.ground
    assert isinstance(ground, Streams), "there is a broker"
    delivered = partial(ground.events, MADE[role]) if role in MADE else bank.viewed
    until(lambda: len(delivered()) == PARTITIONS, f"{role} delivers a batch of every partition")
    with BREAKAGES[how](ground.machine):
        bank.gate.touch()
