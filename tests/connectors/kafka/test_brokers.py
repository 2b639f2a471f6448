"""Feed and sink `kafka` while brokers die, freeze, or forget: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from connectors.kafka.topics import PERMIT, Topics, claim, committed, output
from patience import PATIENCE_S, until, until_async
from plugins_kafka import KafkaMachine, kafka_machines

from leasehold import Fenced, SinkRejected, SinkUnavailable
from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess, KafkaCluster
from leasehold.pipeline.connectors.kafka.feed import KafkaChangeFeed
from leasehold.pipeline.connectors.kafka.sink import KafkaOutputSink
from leasehold.pipeline.errors import Ambiguous, FeedUnavailable

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""

THREE = {
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "offsets_topic_replication_factor": "3",
    "transaction_state_log_replication_factor": "3",
    "transaction_state_log_min_isr": "2",
    "replica_lag_time_max_ms": "3000",
    "broker_session_timeout_ms": "3000",
    "broker_heartbeat_interval_ms": "500",
}
MORE = 6
"""How many events are written after a fault, to see that all goes on."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[KafkaMachine]]:
    with kafka_machines(3, **THREE) as machines:
        yield machines


class Delivery:
    """An owner as a worker: after each failure it claims again, with the next epoch."""

    def __init__(self, sink: KafkaOutputSink) -> None:
        self.sink = sink
        self.position = 0
        self.failures: list[Exception] = []
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        while not self.stopping.is_set():
            try:
                await self._write()
            except (SinkUnavailable, Ambiguous, Fenced) as error:
                self.failures.append(error)

    async def _write(self) -> None:
        writer = await self.sink.open(claim(len(self.failures) + 1, state="known:0" if self.position else ""))
        try:
            while not self.stopping.is_set():
                at = self.position = int(writer.position or 0)
                await writer.write(output(at, at + 1), PERMIT)
        finally:
            await writer.close("failed")

    async def reached(self, position: int) -> None:
        await until_async(lambda: self.position >= position, f"position {position}", lambda: self.failures[-3:])


class Reading:
    """All that a feed yields, as a worker reads it."""

    def __init__(self, feed: KafkaChangeFeed) -> None:
        self.feed = feed
        self.numbers: list[int] = []

    async def run(self) -> None:
        position: str | None = None
        while True:
            try:
                async with aclosing(self.feed.open("0", position)) as pages:
                    async for page in pages:
                        position = page.to
                        self.numbers += map(int, page.events["body"].to_pylist())
            except FeedUnavailable:
                continue

    def has_read(self, number: int) -> bool:
        return bool(self.numbers) and self.numbers[-1] >= number


def leaders_of(machines: list[KafkaMachine], topic: str) -> dict[int, int]:
    """The number of each partition's broker, or -1."""
    found = machines[0].admin().list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    return {number: partition.leader for number, partition in found.items()}


def leader_of(machines: list[KafkaMachine], topic: str) -> KafkaMachine:
    found = leaders_of(machines, topic)[0]
    return next(machine for machine in machines if machine.number == found)


def kill(machines: list[KafkaMachine], leader: KafkaMachine) -> Callable[[], None]:
    leader.kill()
    return leader.start


def freeze(machines: list[KafkaMachine], leader: KafkaMachine) -> Callable[[], None]:
    """Longer than a request may take."""
    leader.send(signal.SIGSTOP)
    return lambda: leader.send(signal.SIGCONT)


def kill_two(machines: list[KafkaMachine], leader: KafkaMachine) -> Callable[[], None]:
    """What is left may take nothing, by `min.insync.replicas`."""
    other = next(machine for machine in machines if machine is not leader)
    for each in (leader, other):
        each.kill()
    return lambda: [each.start() for each in (leader, other)] and None


@pytest.mark.parametrize("harm", [kill, freeze, kill_two])
async def test_output_is_exact_while_brokers_die_and_freeze(
    cluster: list[KafkaMachine], harm: Callable[[list[KafkaMachine], KafkaMachine], Callable[[], None]]
) -> None:
    name = f"bank-{harm.__name__}"
    await asyncio.to_thread(cluster[0].make_topic, name, 1, 3)
    topics = Topics(machine=cluster[0], name=name)
    access = KafkaAccess(servers=",".join(machine.servers for machine in cluster))
    sink = KafkaOutputSink(access, name, timeout_s=5.0, transaction_timeout_s=10.0)
    feed = KafkaChangeFeed(access, name, timeout_s=5.0)
    await sink.prepare()
    delivery, reading = Delivery(sink), Reading(feed)
    tasks = [asyncio.create_task(delivery.run()), asyncio.create_task(reading.run())]
    try:
        await delivery.reached(MORE)
        undo = await asyncio.to_thread(harm, cluster, leader_of(cluster, name))
        if harm is kill_two:
            await until_async(lambda: delivery.failures, "writes fail")
        else:
            await delivery.reached(delivery.position + MORE)
        await asyncio.to_thread(undo)
        for machine in cluster:
            await asyncio.to_thread(machine.await_serving)
        await delivery.reached(delivery.position + MORE)
        delivery.stopping.set()
        await tasks[0]
        written = [int(record.value or b"") for record in await committed(topics)]
        assert written == list(range(1, len(written) + 1))
        assert len(written) >= delivery.position
        await until_async(lambda: reading.has_read(len(written)), "the feed has read all", lambda: reading.numbers[-3:])
        assert reading.numbers == written
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await sink.close()
        await feed.close()


async def test_a_partition_whose_leader_does_not_answer_is_unavailable_and_leaves_the_others_alone(
    cluster: list[KafkaMachine],
) -> None:
    """Its lag is unknown, and so is where it starts. For a broker that dies, the client first gives an offset that is none."""
    name = "bank-alone"
    await asyncio.to_thread(cluster[0].make_topic, name, 3, min_insync_replicas="1")
    topics = Topics(machine=cluster[0], name=name)
    for partition in range(3):
        topics.produce(partition, [b"%d" % partition] * 2)
    feed = KafkaChangeFeed(KafkaAccess(servers=",".join(machine.servers for machine in cluster)), name, timeout_s=1.0)
    leaders = leaders_of(cluster, name)
    dead = next(leader for leader in leaders.values() if leader != cluster[0].number)
    victim = next(machine for machine in cluster if machine.number == dead)
    for number in leaders:
        await until_async(partial(is_there, feed, str(number)), "its events are there")
    undo = await asyncio.to_thread(kill, cluster, victim)
    try:
        for number, leader in leaders.items():
            if leader == dead:
                for start in ("latest", "earliest", datetime(2020, 1, 1, tzinfo=UTC)):
                    with pytest.raises(FeedUnavailable):
                        await feed.start_of(str(number), start)
                with pytest.raises(FeedUnavailable):
                    await feed.lag(str(number), None)
            else:
                await until_async(partial(is_there, feed, str(number)), "the others are there")
    finally:
        await asyncio.to_thread(undo)
        await asyncio.to_thread(victim.await_serving)
        await feed.close()


async def is_there(feed: KafkaChangeFeed, partition: str) -> bool:
    """The client may wait for a broker that is away, to ask for the topic, before it asks another one."""
    try:
        return await feed.lag(partition, None) == 2
    except FeedUnavailable:
        return False


async def test_a_batch_that_waits_for_the_only_broker_ends_when_it_comes_again() -> None:
    """The client's call that adds the position may wait for many minutes (librdkafka#5456)."""
    with kafka_machines() as [machine]:
        machine.make_topic("bank", 1)
        topics = Topics(machine=machine, name="bank")
        sink = KafkaOutputSink(topics.access, "bank", timeout_s=5.0)
        await sink.prepare()
        owner = await sink.open(claim(1))
        await owner.write(output(0, 2), PERMIT)
        machine.kill()
        waiting = asyncio.create_task(owner.write(output(2, 4), PERMIT))
        machine.start()
        await asyncio.to_thread(machine.await_serving)
        await until_async(waiting.done, "the batch is stored, or has failed")
        assert isinstance(waiting.exception(), SinkUnavailable | Ambiguous | Fenced | None)
        heir = await sink.open(claim(2, state=owner.state))
        await heir.write(output(int(heir.position or 0), 6), PERMIT)
        assert [int(record.value or b"") for record in await committed(topics)] == [1, 2, 3, 4, 5, 6]
        await sink.close()


async def test_a_topic_that_is_missing_is_not_created_by_a_producer() -> None:
    """On brokers that create what any client names. A sink whose topic was deleted must not get another, empty one."""
    with kafka_machines(auto_create_topics_enable="true") as [machine]:
        cluster = KafkaCluster(KafkaAccess(servers=machine.servers), timeout_s=5.0)
        ours, theirs = cluster.make_producer("ours"), Producer({"bootstrap.servers": machine.servers, "log_level": 0})
        for name, producer in (("ours", ours), ("theirs", theirs)):
            await asyncio.to_thread(producer.list_topics, name, PATIENCE_S)
        topics = machine.admin().list_topics
        await until_async(lambda: "theirs" in topics(timeout=PATIENCE_S).topics, "a client's topic")
        assert "ours" not in topics(timeout=PATIENCE_S).topics
        await cluster.close()


async def test_an_owner_whose_transactional_id_the_brokers_forgot_claims_again_and_keeps_its_position() -> None:
    """After a second, here. A claim begins with a new id, and finds the position, which the brokers keep for longer."""
    forgetful = {
        "transactional_id_expiration_ms": "1000",
        "transaction_remove_expired_transaction_cleanup_interval_ms": "500",
    }
    with kafka_machines(**forgetful) as [machine]:
        machine.make_topic("bank", 1)
        topics = Topics(machine=machine, name="bank")
        sink = KafkaOutputSink(topics.access, "bank")
        await sink.prepare()
        owner = await sink.open(claim(1))
        await owner.write(output(0, 2), PERMIT)
        await asyncio.to_thread(await_forgotten, machine, "leasehold.bank/bank/0")
        with pytest.raises((Fenced, SinkUnavailable)):
            await owner.write(output(2, 4), PERMIT)
        heir = await sink.open(claim(2, state=owner.state))
        assert heir.position == "2"
        await heir.write(output(2, 4), PERMIT)
        assert [record.value for record in await committed(topics)] == [b"1", b"2", b"3", b"4"]
        await sink.close()


def await_forgotten(machine: KafkaMachine, transactional_id: str) -> None:
    """Until the brokers' own log of transactions has the id's end."""
    consumer = Consumer({"bootstrap.servers": machine.servers, "group.id": "look"})
    consumer.assign([TopicPartition("__transaction_state", 0, 0)])

    def is_forgotten() -> bool:
        found = consumer.poll(1.0)
        return (
            found is not None
            and found.error() is None
            and found.value() is None
            and transactional_id.encode() in (found.key() or b"")
        )

    try:
        until(is_forgotten, f"'{transactional_id}' is forgotten")
    finally:
        consumer.close()


async def test_a_group_that_is_stopped_for_longer_than_positions_are_kept_is_refused() -> None:
    """For a minute, here. An idle owner keeps its own position."""
    retention = {"offsets_retention_minutes": "1", "offsets_retention_check_interval_ms": "1000"}
    with kafka_machines(**retention) as [machine]:
        machine.make_topic("bank", 2)
        sink = KafkaOutputSink(KafkaAccess(servers=machine.servers), "bank", refresh_s=1.0)
        await sink.prepare()
        stopped, idle = await sink.open(claim(1)), await sink.open(claim(1, partition="1"))
        for writer in (stopped, idle):
            await writer.write(output(0, 2), PERMIT)
        await stopped.close("shutdown")

        async def is_forgotten() -> bool:
            await idle.follow()
            return await sink.standing("bank", "0") is None

        await until_async(is_forgotten, "the position is forgotten")
        with pytest.raises(SinkRejected, match=r"offsets\.retention\.minutes.*--to 2 --yes`.*--to earliest"):
            await sink.open(claim(2, state=stopped.state, continuation="2"))
        assert (await sink.open(claim(2, partition="1", state=idle.state))).position == "2"
        await sink.close()
