"""Offsets that the feed `kafka` commits to a group on request, seen by aiokafka as KEDA and Burrow see them; on a real broker."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from click.testing import CliRunner
from connectors.kafka.topics import Topics
from patience import PATIENCE_S, until_async
from plugins_node import free_port

from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess
from leasehold.pipeline.connectors.kafka.committed import CommittedOffsets
from leasehold.pipeline.errors import FeedError, FeedUnavailable
from leasehold.service.cli.main import main
from leasehold.service.config.load import load
from leasehold.service.wiring.build import processor_of

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""


class Bank:
    """A pipeline over the topic, whose host runs until nothing is left. group: a new one."""

    def __init__(self, topics: Topics, folder: Path, *, commits: bool = True) -> None:
        self.topics = topics
        self.group = f"bank-{uuid.uuid4().hex[:8]}"
        self.file = folder / "bank.yaml"
        self.file.write_text(
            f"""
leases: {{type: sqlite, path: leases.db}}
pipelines:
  - name: bank
    feed: {{type: kafka, servers: "{topics.machine.servers}", topic: {topics.name}, group: {self.group}, commits: {commits}}}
    sink: {{type: log, path: out}}
"""
        )

    async def drain(self) -> None:
        log = structlog.wrap_logger(None, processors=[_dropped])
        processor = processor_of(load(self.file, os.environ), host="host-a", log=log)
        await processor.start()
        async with asyncio.timeout(PATIENCE_S):
            await processor.idle()
        await processor.stop()

    async def run(self, *line: str) -> str:
        told = await asyncio.to_thread(CliRunner().invoke, main, list(line))
        assert told.exit_code == 0, told.output
        return told.output

    async def committed(self) -> dict[int, int | None]:
        return {partition: committed for partition, (committed, _) in (await self._seen()).items()}

    async def lag(self) -> dict[int, int]:
        """As scalers have it: the end of each partition, uncommitted events included, less the group's offset."""
        return {partition: end - (committed or 0) for partition, (committed, end) in (await self._seen()).items()}

    async def _seen(self) -> dict[int, tuple[int | None, int]]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.topics.machine.servers, group_id=self.group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            places = [TopicPartition(self.topics.name, partition) for partition in range(4)]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            return {place.partition: (await consumer.committed(place), ends[place]) for place in places}
        finally:
            await consumer.stop()


def _dropped(logger: object, level: str, event: dict[str, Any]) -> str:
    raise structlog.DropEvent


async def test_others_see_the_lag_of_a_group_and_none_once_all_is_delivered(topics: Topics, tmp_path: Path) -> None:
    """The ends of transactions have offsets, too, and must not look like lag for ever."""
    bank = Bank(topics, tmp_path)
    producer = topics.transactional()
    producer.begin_transaction()
    for partition in range(3):
        topics.produce(partition, [b"{}"] * (partition + 1), by=producer)
    producer.commit_transaction(PATIENCE_S)
    whole = {0: 2, 1: 3, 2: 4, 3: 0}  # once the ends of the transaction are written

    async def has_ended() -> bool:
        return await bank.lag() == whole

    await until_async(has_ended, "the transaction has ended")
    await bank.drain()
    assert await bank.committed() == whole
    assert await bank.lag() == dict.fromkeys(range(4), 0)
    topics.produce(1, [b"{}"] * 5)
    assert (await bank.lag())[1] == 5


async def test_nothing_is_committed_without_the_setting(topics: Topics, tmp_path: Path) -> None:
    bank = Bank(topics, tmp_path, commits=False)
    topics.produce(0, [b"{}"])
    await bank.drain()
    assert await bank.committed() == dict.fromkeys(range(4))


async def test_a_reset_while_no_host_runs_is_seen_by_others(topics: Topics, tmp_path: Path) -> None:
    bank = Bank(topics, tmp_path)
    topics.produce(0, [b"{}"] * 3)
    await bank.drain()
    await bank.run("leases", "reset", str(bank.file), "bank", "0", "--to", "1", "--yes")
    assert (await bank.committed())[0] == 1
    assert "bank: committed offsets: fine, 4 there" in await bank.run("check", str(bank.file), "--probe")


async def test_a_group_with_members_is_an_error_and_keeps_its_offsets(topics: Topics) -> None:
    group = f"members-{uuid.uuid4().hex[:8]}"
    topics.produce(0, [b"{}"] * 3)
    consumer = AIOKafkaConsumer(
        topics.name, bootstrap_servers=topics.machine.servers, group_id=group, enable_auto_commit=False
    )
    ours = CommittedOffsets(topics.access, topics.name, group, timeout_s=20.0)
    await consumer.start()
    try:
        with pytest.raises(FeedError, match=f"group '{group}' has members: let nothing but this pipeline use it"):
            await ours.write("0", "2", 0)
        assert await consumer.committed(TopicPartition(topics.name, 0)) is None
    finally:
        await consumer.stop()
        await ours.close()


async def test_brokers_that_are_away_are_an_error(topics: Topics) -> None:
    away = CommittedOffsets(KafkaAccess(servers=f"127.0.0.1:{free_port()}"), topics.name, "bank", timeout_s=1.0)
    with pytest.raises(FeedUnavailable, match="Kafka 127"):
        await away.write("0", "2", 0)
    await away.close()
