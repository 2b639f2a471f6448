"""The bank over Apache Kafka: both logs are topics of a real broker, the rest is as embedded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from connectors.kafka.topics import Topics, committed
from lab.scenarios.brokers import TARGETS, TIMEOUT_S, OverBroker, Stored
from lab.scenarios.grounds import PARTITIONS, MakeGround
from plugins_kafka import KafkaMachine, kafka_machines

from leasehold.pipeline.connectors.kafka.position import position_of


class OverKafka(OverBroker):
    def __init__(self, directory: Path, name: str, machine: KafkaMachine, *, with_spark: bool = True) -> None:
        super().__init__(directory, name, machine, with_spark=with_spark)
        self._machine = machine
        self.environment = {"BANK_KAFKA": machine.servers}

    def make_log(self, name: str) -> None:
        self._machine.make_topic(name, PARTITIONS)

    def side(self, log: str, side: str) -> dict[str, Any]:
        return {"type": "kafka", "servers": "${BANK_KAFKA}", "topic": log, "timeout_s": TIMEOUT_S}

    def paged(self, feed: dict[str, Any], events: int) -> dict[str, Any]:
        return self.replaced(feed, "lab.scenarios.slow_topics:PagedTopic", page_events_max=events)

    def slow(self, sink: dict[str, Any], gate: Path) -> dict[str, Any]:
        return self.slowed(sink, "lab.scenarios.slow_topics:SlowTopic", gate)

    def stored(self, log: str) -> dict[str, list[Stored]]:
        return asyncio.run(self._stored(Topics(machine=self._machine, name=log)))

    async def _stored(self, topics: Topics) -> dict[str, list[Stored]]:
        found = await asyncio.gather(*(committed(topics, int(target)) for target in TARGETS))
        stored = [[Stored(record.offset, record.value or b"") for record in records] for records in found]
        return dict(zip(TARGETS, stored, strict=True))

    def is_behind(self, number: int, position: str | None) -> bool:
        return number < position_of(position).next


@contextmanager
def served(*, with_spark: bool = True) -> Iterator[MakeGround]:
    """A broker for each bank: one that dies takes no other with it."""
    with ExitStack() as machines:

        def made(directory: Path, name: str) -> OverKafka:
            [machine] = machines.enter_context(kafka_machines())
            return OverKafka(directory, name, machine, with_spark=with_spark)

        yield made
