"""How the sink `kafka` fences, what it refuses, and what it stores; on a real broker, seen by aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from connectors.kafka.topics import PERMIT, Always, Topics, claim, committed, output
from patience import PATIENCE_S, until_async
from plugins_node import free_port

from leasehold import Claim, Fenced, NotTrusted, Output, OutputRefused, Sink, SinkRejected, SinkUnavailable, SinkWriter
from leasehold.pipeline.connectors.held import Held
from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess, KafkaCluster
from leasehold.pipeline.connectors.kafka.sink import KafkaOutputSink
from leasehold.pipeline.connectors.kafka.transactions import Transactions
from leasehold.pipeline.tracing import TraceContext

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""

GROUP = "leasehold.{topic}/bank/0"


Make = Callable[..., KafkaOutputSink]


async def bodies(topics: Topics, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in await committed(topics, partition)]


@pytest.fixture
async def make(topics: Topics) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        def made(topic: str = topics.name, **more: object) -> KafkaOutputSink:
            sink = KafkaOutputSink(topics.access, topic, **more)  # type: ignore[arg-type]
            stack.push_async_callback(sink.close)
            return sink

        yield made


async def opened(sink: Sink, claim: Claim) -> SinkWriter:
    await sink.prepare()
    return await sink.open(claim)


@pytest.mark.parametrize("first", [2, 3], ids=["before the new owner's first batch", "after it"])
async def test_a_zombie_that_initializes_late_gives_way(
    topics: Topics, make: Make, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """It has looked before the new owner claimed, and fences it; then it finds the later epoch.

    first: up to where the new owner has written by then. Before it came, that is 2.
    """
    zombie, ours = make(), make()
    await zombie.prepare()
    await (await opened(ours, claim(1))).write(output(0, 2), PERMIT)
    begin, loop, owners = Transactions.begin, asyncio.get_running_loop(), []

    def begin_late(self: Transactions) -> None:
        monkeypatch.setattr(Transactions, "begin", begin)
        owners.append(asyncio.run_coroutine_threadsafe(new_owner(), loop).result(PATIENCE_S))
        begin(self)

    async def new_owner() -> SinkWriter:
        owner = await ours.open(claim(3))
        if first > 2:
            await owner.write(output(2, first), PERMIT)
        return owner

    monkeypatch.setattr(Transactions, "begin", begin_late)
    with pytest.raises(Fenced) as fenced:
        await zombie.open(claim(2))
    assert fenced.value.epoch == 3
    [owner] = owners
    with pytest.raises(Fenced):
        await owner.write(output(first, 4), PERMIT)
    again = await ours.open(claim(4))
    assert again.position == str(first)
    await again.write(output(first, 4), PERMIT)
    assert await bodies(topics) == [b"1", b"2", b"3", b"4"]


async def test_a_zombie_of_an_older_generation_that_initializes_late_gives_way(
    topics: Topics, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked before the lease was reset, and has a higher epoch than the new owner."""
    zombie, ours = make(), make()
    await zombie.prepare()
    await (await opened(ours, claim(8))).write(output(0, 2), PERMIT)
    begin, loop, owners = Transactions.begin, asyncio.get_running_loop(), []

    def begin_late(self: Transactions) -> None:
        monkeypatch.setattr(Transactions, "begin", begin)
        reset = claim(1, generation=1, continuation="1")
        owners.append(asyncio.run_coroutine_threadsafe(ours.open(reset), loop).result(PATIENCE_S))
        begin(self)

    monkeypatch.setattr(Transactions, "begin", begin_late)
    with pytest.raises(SinkRejected, match="of generation 0"):
        await zombie.open(claim(9))
    [owner] = owners
    with pytest.raises(Fenced):
        await owner.write(output(1, 3), PERMIT)
    again = await ours.open(claim(2, generation=1, continuation="1"))
    assert again.position == "1"
    await again.write(output(1, 3), PERMIT)
    assert await bodies(topics) == [b"1", b"2", b"2", b"3"]


async def test_a_zombie_that_initializes_while_the_new_owner_claims_is_outranked_by_its_next_claim(
    topics: Topics, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing shows the zombie that there is a new owner, whose claim is not committed yet."""
    zombie, ours = make(), make()
    await zombie.prepare()
    await (await opened(ours, claim(1))).write(output(0, 2), PERMIT)
    commit, loop, zombies = Transactions.commit, asyncio.get_running_loop(), []

    def commit_late(self: Transactions, *parts: Any) -> None:
        monkeypatch.setattr(Transactions, "commit", commit)
        zombies.append(asyncio.run_coroutine_threadsafe(zombie.open(claim(2)), loop).result(PATIENCE_S))
        commit(self, *parts)

    monkeypatch.setattr(Transactions, "commit", commit_late)
    with pytest.raises(Fenced):
        await ours.open(claim(3))
    [late] = zombies
    await late.write(output(2, 3), PERMIT)
    again = await ours.open(claim(4))
    assert again.position == "3"
    with pytest.raises(Fenced):
        await late.write(output(3, 4), PERMIT)
    await again.write(output(3, 4), PERMIT)
    assert await bodies(topics) == [b"1", b"2", b"3", b"4"]


async def test_an_owner_that_is_known_to_be_late_fences_nobody(topics: Topics, make: Make) -> None:
    sink = make()
    owner = await opened(sink, claim(5))
    for late in (claim(4), claim(5, owner="another")):
        with pytest.raises(Fenced) as fenced:
            await sink.open(late)
        assert fenced.value.epoch == 5
    await owner.write(output(0, 1), PERMIT)
    assert await bodies(topics) == [b"1"]


async def test_an_owner_of_an_older_generation_is_refused_for_good(make: Make) -> None:
    sink = make()
    owner = await opened(sink, claim(1, generation=2))
    with pytest.raises(SinkRejected, match=r"of generation 1, and topic .* its generation 2"):
        await sink.open(claim(9, generation=1))
    await owner.write(output(0, 1), PERMIT)


async def test_what_a_dead_owner_left_open_is_ended_by_the_next_claim(topics: Topics, make: Make) -> None:
    sink = make()
    await (await opened(sink, claim(1))).write(output(0, 1), PERMIT)
    dead = topics.transactional(GROUP.format(topic=topics.name))
    dead.begin_transaction()
    topics.produce(0, [b"left open"], by=dead)
    topics.produce(0, [b"other"])
    heir = await sink.open(claim(2))
    assert heir.position == "1"
    await heir.write(output(1, 2), PERMIT)
    assert await bodies(topics) == [b"1", b"other", b"2"]


async def test_a_position_that_the_brokers_forgot_is_refused_with_the_remedy(topics: Topics, make: Make) -> None:
    sink = make()
    owner = await opened(sink, claim(1))
    await owner.write(output(0, 2), PERMIT)
    state = owner.state
    await owner.close("shutdown")
    forget(topics)
    with pytest.raises(SinkRejected, match=r"offsets.retention.minutes.*--to 2 --yes`.*--to earliest"):
        await sink.open(claim(2, state=state, continuation="2"))
    reset = await sink.open(claim(3, state=state, continuation="2", generation=1))
    assert reset.position == "2"


def forget(topics: Topics) -> None:
    """As the brokers do after `offsets.retention.minutes`."""
    group, client = GROUP.format(topic=topics.name), topics.machine.admin()
    client.delete_consumer_groups([group])[group].result(PATIENCE_S)


async def test_a_position_of_a_topic_that_was_created_again_is_refused(topics: Topics, make: Make) -> None:
    sink = make()
    owner = await opened(sink, claim(1))
    await owner.write(output(0, 2), PERMIT)
    await owner.close("shutdown")
    topics.machine.delete_topic(topics.name)
    topics.machine.make_topic(topics.name, 4)
    with pytest.raises(SinkRejected, match="deleted or restored"):
        await sink.open(claim(2, state=owner.state, continuation="2"))


async def test_an_idle_owner_commits_its_position_again(topics: Topics, make: Make) -> None:
    for refresh_s, is_kept in ((3600.0, False), (0.0, True)):
        sink = make(refresh_s=refresh_s)
        owner = await opened(sink, claim(1, generation=int(is_kept)))
        await owner.write(output(0, 2), PERMIT)
        forget(topics)
        await owner.follow()
        assert (await sink.standing("bank", "0") is not None) == is_kept
        await owner.close("shutdown")


async def test_an_offset_that_another_program_committed_is_refused(topics: Topics, make: Make) -> None:
    group = GROUP.format(topic=topics.name)
    place = TopicPartition(topics.name, 0, 7, "theirs")
    asked = [ConsumerGroupTopicPartitions(group, [place])]
    client = topics.machine.admin()
    client.alter_consumer_group_offsets(asked)[group].result(PATIENCE_S)
    with pytest.raises(SinkRejected, match="written by another program"):
        await opened(make(), claim())


async def test_a_missing_topic_is_refused_or_created(topics: Topics, make: Make) -> None:
    name = f"{topics.name}-new"
    with pytest.raises(SinkRejected, match=f"create topic '{name}', or set `partitions`"):
        await make(name).prepare()
    writer = await opened(make(name, partitions=3), claim())
    await writer.write(output(0, 1), PERMIT)
    assert len(topics.machine.admin().list_topics(name, timeout=PATIENCE_S).topics[name].partitions) == 3
    assert await bodies(replace(topics, name=name)) == [b"1"]


async def test_brokers_that_are_away_are_tried_again_before_the_first_claim() -> None:
    sink = KafkaOutputSink(KafkaAccess(servers=f"127.0.0.1:{free_port()}"), "bank", timeout_s=1.0)
    with pytest.raises(SinkUnavailable, match="Kafka 127"):
        await sink.prepare()
    await sink.close()


@pytest.mark.parametrize("knows_limit", [True, False])
async def test_an_event_that_is_larger_than_the_topic_takes_is_refused(
    topics: Topics, make: Make, monkeypatch: pytest.MonkeyPatch, knows_limit: bool
) -> None:
    """The client refuses it; the brokers do, if this client may not read the topic's limit."""

    async def unknown(self: KafkaCluster, topic: str) -> None: ...

    if not knows_limit:
        monkeypatch.setattr(KafkaCluster, "find_message_bytes_max", unknown)
    topic = f"{topics.name}-small"
    topics.machine.make_topic(topic, 1, max_message_bytes="2000")
    sink = make(topic)
    writer = await opened(sink, claim(1))
    table = pa.table({"body": [b"x" * 10, b"x" * 4000]})
    with pytest.raises(OutputRefused, match=r"max\.message\.bytes"):
        await writer.write(Output(table=table, start=None, to="2", events=2), PERMIT)
    assert writer.position is None
    await (await sink.open(claim(2))).write(output(0, 1), PERMIT)
    assert await bodies(replace(topics, name=topic)) == [b"1"]


@pytest.mark.parametrize("knows_limit", [True, False])
async def test_an_event_that_is_larger_than_a_clients_default_is_taken_if_the_topic_takes_it(
    topics: Topics, make: Make, monkeypatch: pytest.MonkeyPatch, knows_limit: bool
) -> None:
    async def unknown(self: KafkaCluster, topic: str) -> None: ...

    if not knows_limit:
        monkeypatch.setattr(KafkaCluster, "find_message_bytes_max", unknown)
    topic = f"{topics.name}-large"
    topics.machine.make_topic(topic, 1, max_message_bytes="3000000")
    writer = await opened(make(topic), claim())
    await writer.write(Output(table=pa.table({"body": [b"x" * 2_000_000]}), start=None, to="1", events=1), PERMIT)
    assert [len(body or b"") for body in await bodies(replace(topics, name=topic))] == [2_000_000]


async def test_a_limit_that_is_raised_counts_from_the_next_claim_on(topics: Topics, make: Make) -> None:
    topic = f"{topics.name}-small"
    topics.machine.make_topic(topic, 1, max_message_bytes="2000")
    sink, large = make(topic), Output(table=pa.table({"body": [b"x" * 4000]}), start=None, to="1", events=1)
    with pytest.raises(OutputRefused):
        await (await opened(sink, claim(1))).write(large, PERMIT)
    await raise_limit(topics, topic, 8000)
    await (await sink.open(claim(2))).write(large, PERMIT)
    assert await bodies(replace(topics, name=topic)) == [b"x" * 4000]


async def raise_limit(topics: Topics, topic: str, limit: int) -> None:
    """Until the broker shows it."""
    entry = ConfigEntry("max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET)
    raised = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client, cluster = topics.machine.admin(), KafkaCluster(topics.access, timeout_s=PATIENCE_S)
    client.incremental_alter_configs([raised])[raised].result(PATIENCE_S)

    async def is_raised() -> bool:
        return await cluster.find_message_bytes_max(topic) == limit

    await until_async(is_raised, "the limit is raised")
    await cluster.close()


async def test_many_events_are_more_than_one_message_of_a_small_topic(topics: Topics, make: Make) -> None:
    topic = f"{topics.name}-small"
    topics.machine.make_topic(topic, 1, max_message_bytes="2000")
    writer = await opened(make(topic), claim())
    await writer.write(Output(table=pa.table({"body": [b"x" * 500] * 40}), start=None, to="40", events=40), PERMIT)
    assert len(await bodies(replace(topics, name=topic))) == 40


async def test_a_partition_that_was_added_is_known_to_hosts_that_started_before(topics: Topics, make: Make) -> None:
    early, late = make(), make()
    await early.prepare()
    topics.machine.add_partitions(topics.name, 8)
    writer = await opened(late, claim(1, partition="6"))
    await writer.write(output(0, 1), PERMIT)
    writer = await early.open(claim(2, partition="6"))
    assert (writer.position, writer.place) == ("1", "6")
    await writer.write(output(1, 2), PERMIT)
    assert await bodies(topics, 6) == [b"1", b"2"]


async def test_a_transaction_may_not_take_longer_than_the_brokers_permit(make: Make) -> None:
    with pytest.raises(SinkRejected, match=r"transaction\.max\.timeout\.ms"):
        await opened(make(transaction_timeout_s=3600.0), claim())


async def test_a_batch_that_may_no_longer_be_sent_is_aborted(topics: Topics, make: Make) -> None:
    class Lapsed(Always):
        looks = 0

        def check(self) -> None:
            self.looks += 1
            if self.looks > 1:
                raise NotTrusted("lapsed")

    writer = await opened(make(), claim())
    with pytest.raises(NotTrusted):
        await writer.write(output(0, 1), Lapsed())
    await writer.write(output(0, 1), PERMIT)
    assert await bodies(topics) == [b"1"]


async def test_by_key_events_go_where_the_clients_of_kafka_look_for_them(topics: Topics, make: Make) -> None:
    """aiokafka's own partitioner agrees, and events of one key stay in order."""
    from aiokafka.partitioner import DefaultPartitioner

    keys = [f"account-{number % 7}" for number in range(40)] + [None]
    writer = await opened(make(by_key=True), claim())
    await writer.write(output(0, 41, key=keys), PERMIT)
    everywhere = list(range(4))
    seen = 0
    for partition in everywhere:
        records = await committed(topics, partition)
        seen += len(records)
        for record in records:
            expected = 0 if record.key is None else DefaultPartitioner()(record.key, everywhere, everywhere)
            assert expected == partition
        numbers = [int(record.value or b"") for record in records]
        assert numbers == sorted(numbers)
    assert seen == 41


async def test_keys_properties_operation_and_trace_are_stored(topics: Topics, make: Make) -> None:
    """Behind a NUL, too, at which a text of C ends."""
    writer = await opened(make(), claim())
    properties = pa.array([[("a", "1\0 "), ("b", None)]], pa.map_(pa.string(), pa.string()))
    table = pa.table({"body": [None], "key": ["k\0"], "operation": ["delete\0d"], "properties": properties})
    trace = TraceContext(f"00-{1:032}-{2:016}-01")
    await writer.write(Output(table=table, start=None, to="1", events=1, trace=trace), PERMIT)
    [record] = await committed(topics)
    assert (record.key, record.value) == (b"k\0", None)
    headers = dict(record.headers)
    assert headers == {
        "a": b"1\0 ",
        "b": None,
        "leasehold-operation": b"delete\0d",
        "traceparent": trace.parent.encode(),
    }


async def test_other_columns_are_refused_by_name(make: Make) -> None:
    writer = await opened(make(), claim())
    with pytest.raises(SinkRejected, match="'amount'"):
        await writer.write(output(0, 1, amount=[1]), PERMIT)
    await writer.write(output(0, 1), PERMIT)
    assert writer.position == "1"


async def test_a_position_that_is_too_long_for_the_brokers_names_their_setting(make: Make) -> None:
    writer = await opened(make(), claim())
    with pytest.raises(SinkRejected, match=r"offset\.metadata\.max\.bytes"):
        await writer.write(replace(output(0, 1), to="9" * 5000), PERMIT)
    await writer.write(output(0, 1), PERMIT)
    assert writer.position == "1"


async def test_a_position_is_not_known_while_any_transaction_has_it(topics: Topics, make: Make) -> None:
    """Neither the one before is returned nor the new one, which may be aborted yet."""
    sink, hasty = make(), make(timeout_s=1.0)
    await (await opened(sink, claim(1))).write(output(0, 1), PERMIT)
    foreign = topics.transactional()
    for to, is_kept in ((5, False), (7, True)):
        foreign.begin_transaction()
        move(topics, foreign, to)
        for ask in (lambda: hasty.standing("bank", "0"), lambda: hasty.open(claim(2))):
            with pytest.raises(SinkUnavailable):
                await ask()
        waiting = asyncio.create_task(sink.standing("bank", "0"))
        await asyncio.to_thread(foreign.commit_transaction if is_kept else foreign.abort_transaction, PATIENCE_S)
        found = await waiting
        assert found is not None
        assert found.position == ("7" if is_kept else "1")
    assert (await sink.open(claim(3))).position == "7"


def move(topics: Topics, by: Producer, to: int) -> None:
    """Move the position within its transaction, as an earlier owner would."""
    group = Consumer({"bootstrap.servers": topics.machine.servers, "group.id": GROUP.format(topic=topics.name)})
    held = Held(generation=0, epoch=1, owner="host-1", position=str(to), target=0)
    place = TopicPartition(topics.name, 0, 0, held.encoded())
    by.send_offsets_to_transaction([place], group.consumer_group_metadata(), PATIENCE_S)
    group.close()
