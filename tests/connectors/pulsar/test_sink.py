"""How the sink `pulsar` fences, what it refuses, and what it stores; on a real broker, seen by pulsar-client itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from connectors.pulsar.topics import PERMIT, Always, Topics, claim, numbers, output
from patience import PATIENCE_S
from plugins_pulsar import PulsarMachine

from leasehold import (
    Ambiguous,
    Claim,
    Fenced,
    NotTrusted,
    Output,
    OutputRefused,
    OutputTooLarge,
    Sink,
    SinkRejected,
    SinkWriter,
)
from leasehold.pipeline.connectors.pulsar.producer import ExclusiveProducer
from leasehold.pipeline.connectors.pulsar.sink import PulsarOutputSink
from leasehold.pipeline.connectors.pulsar.tail import TailSearch
from leasehold.pipeline.connectors.targets import target_of
from leasehold.pipeline.tracing import TraceContext

pytestmark = pytest.mark.xdist_group("pulsar")
"""One broker, instead of one for each process."""

Make = Callable[..., PulsarOutputSink]


@pytest.fixture
async def make(topics: Topics) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        def made(of: Topics = topics, **more: Any) -> PulsarOutputSink:
            sink = of.sink(**more)
            stack.push_async_callback(sink.close)
            return sink

        yield made


async def opened(sink: Sink, claim: Claim) -> SinkWriter:
    await sink.prepare()
    return await sink.open(claim)


def call_before(method: str, monkeypatch: pytest.MonkeyPatch, interlude: Callable[[], Any]) -> list[Any]:
    """Calls it once, when a producer's method is called next, on the loop. What it returned is in the list then."""
    original, loop, returned = getattr(ExclusiveProducer, method), asyncio.get_running_loop(), []

    def late(self: ExclusiveProducer, *arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(ExclusiveProducer, method, original)
        returned.append(asyncio.run_coroutine_threadsafe(interlude(), loop).result(PATIENCE_S))
        return original(self, *arguments, **more)

    monkeypatch.setattr(ExclusiveProducer, method, late)
    return returned


async def test_a_zombie_that_comes_late_finds_the_new_owners_batch_and_gives_way(
    topics: Topics, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked before the new owner claimed, and fences it; then it finds the later epoch."""
    zombie, ours = make(), make()
    await zombie.prepare()
    await (await opened(ours, claim(1))).write(output(0, 2), PERMIT)

    async def new_owner() -> SinkWriter:
        owner = await ours.open(claim(3))
        await owner.write(output(2, 3), PERMIT)
        return owner

    owners = call_before("attach", monkeypatch, new_owner)
    with pytest.raises(Fenced) as fenced:
        await zombie.open(claim(2))
    assert fenced.value.epoch == 3
    with pytest.raises(Fenced):
        await owners[0].write(output(3, 4), PERMIT)
    again = await ours.open(claim(4))
    assert again.position == "3"
    await again.write(output(3, 4), PERMIT)
    assert numbers(topics) == [1, 2, 3, 4]


async def test_a_zombie_that_comes_late_before_the_new_owners_first_batch_repeats_and_loses_nothing(
    topics: Topics, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing shows the zombie that there is a new owner. If it had trust, its batch would count, for the new owner, too."""
    zombie, ours = make(), make()
    await zombie.prepare()
    await (await opened(ours, claim(1))).write(output(0, 2), PERMIT)
    owners = call_before("attach", monkeypatch, lambda: ours.open(claim(3)))
    late = await zombie.open(claim(2))
    with pytest.raises(Fenced):
        await owners[0].write(output(2, 4), PERMIT)
    await late.write(output(2, 3), PERMIT)
    again = await ours.open(claim(4))
    assert again.position == "3"
    with pytest.raises(Fenced):
        await late.write(output(3, 4), PERMIT)
    await again.write(output(3, 4), PERMIT)
    assert numbers(topics) == [1, 2, 3, 4]


async def test_a_zombie_of_an_older_generation_that_comes_late_gives_way(
    topics: Topics, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked before the lease was reset, and has a higher epoch than the new owner."""
    zombie, ours = make(), make()
    await zombie.prepare()
    await (await opened(ours, claim(8))).write(output(0, 2), PERMIT)
    reset = claim(1, generation=1, continuation="1")

    async def new_owner() -> SinkWriter:
        owner = await ours.open(reset)
        await owner.write(output(1, 2), PERMIT)
        return owner

    owners = call_before("attach", monkeypatch, new_owner)
    with pytest.raises(SinkRejected, match="of generation 0"):
        await zombie.open(claim(9))
    with pytest.raises(Fenced):
        await owners[0].write(output(2, 3), PERMIT)
    again = await ours.open(replace(reset, epoch=2))
    assert again.position == "2"
    await again.write(output(2, 3), PERMIT)
    assert numbers(topics) == [1, 2, 2, 3]


async def test_a_batch_on_its_way_when_the_next_owner_comes_is_refused_whole(
    topics: Topics, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, ours = await opened(make(), claim(1)), make()
    await older.write(output(0, 2), PERMIT)
    owners = call_before("publish", monkeypatch, lambda: opened(ours, claim(2)))
    with pytest.raises(Fenced):
        await older.write(output(2, 5), PERMIT)
    assert owners[0].position == "2"
    await owners[0].write(output(2, 4), PERMIT)
    assert numbers(topics) == [1, 2, 3, 4]


async def test_a_batch_is_one_entry_and_its_first_event_alone_bears_the_marker(topics: Topics, make: Make) -> None:
    writer = await opened(make(), claim(7, generation=3))
    await writer.write(output(0, 3), PERMIT)
    await writer.write(output(3, 4), PERMIT)
    found = topics.messages("0")
    entries = [(each.message_id().ledger_id(), each.message_id().entry_id()) for each in found]
    assert len(set(entries)) == 2
    assert entries[0] == entries[2] != entries[3]
    assert [sorted(each.properties()) for each in found[1:3]] == [[], []]
    assert found[3].properties() == {
        "leasehold-lease": "bank/0",
        "leasehold-generation": "3",
        "leasehold-level": "7",
        "leasehold-from": "3",
        "leasehold-to": "4",
        "leasehold-count": "1",
        "leasehold-index": "0",
        "leasehold-number": "2",
    }


async def test_keys_properties_operations_and_traces_are_what_foreign_readers_see(topics: Topics, make: Make) -> None:
    writer = await opened(make(), claim())
    columns: dict[str, list[Any]] = {
        "key": ["k", None],
        "operation": ["delete", None],
        "properties": [[("colour", "blau")], None],
    }
    types = {"properties": pa.map_(pa.string(), pa.string())}
    table = pa.table({"body": [b"1", None], **{n: pa.array(c, types.get(n)) for n, c in columns.items()}})
    trace = TraceContext("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
    await writer.write(Output(table=table, start=None, to="2", events=2, trace=trace), PERMIT)
    first, second = topics.messages("0")
    own = {name: value for name, value in first.properties().items() if not name.startswith("leasehold-")}
    assert (first.partition_key(), own["colour"], second.has_null_value()) == ("k", "blau", True)
    assert (own["traceparent"], second.properties()["traceparent"]) == (trace.parent, trace.parent)


async def test_trust_that_ends_while_a_batch_is_prepared_leaves_nothing_of_it(topics: Topics, make: Make) -> None:
    class Ending(Always):
        left = 2

        def check(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise NotTrusted("the test closed the trust window")

    sink = make()
    writer = await opened(sink, claim(1))
    with pytest.raises(NotTrusted):
        await writer.write(output(0, 3), Ending())
    assert (numbers(topics), writer.position) == ([], None)
    again = await sink.open(claim(2))
    await again.write(output(0, 2), PERMIT)
    assert numbers(topics) == [1, 2]


async def test_an_answer_that_was_lost_is_settled_by_the_next_claim(
    topics: Topics, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends the batch again, with the same number; the broker stores it once, and says no place."""
    sink = make()
    writer = await opened(sink, claim(1))
    await writer.write(output(0, 2), PERMIT)
    publish = ExclusiveProducer.publish

    def twice(self: ExclusiveProducer, *arguments: Any) -> Any:
        publish(self, *arguments)
        return publish(self, *arguments)

    monkeypatch.setattr(ExclusiveProducer, "publish", twice)
    with pytest.raises(Ambiguous, match="its first answer was lost"):
        await writer.write(output(2, 4), PERMIT)
    monkeypatch.undo()
    again = await sink.open(claim(2))
    assert again.position == "4"
    await again.write(output(4, 5), PERMIT)
    assert numbers(topics) == [1, 2, 3, 4, 5]


async def test_a_number_that_the_broker_has_and_no_reader_shows_is_waited_for_in_vain_and_claimed_again(
    topics: Topics, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch whose producer was shut out is still being stored: its position is not known before."""
    sink = make(timeout_s=1.0)
    writer = await opened(sink, claim(1))
    await writer.write(output(0, 2), PERMIT)
    state = writer.state
    read, hidden = TailSearch.read, [True]
    await writer.write(output(2, 3), PERMIT)

    def blind(self: TailSearch) -> None:
        if not hidden[0]:
            read(self)

    monkeypatch.setattr(TailSearch, "read", blind)
    with pytest.raises(SinkRejected, match="progress is unknown"):
        await sink.open(claim(2, state=state, continuation="2"))
    hidden[0] = False
    assert (await sink.open(claim(3, state=state, continuation="2"))).position == "3"


async def test_a_source_partition_of_another_name_keeps_the_partition_that_was_chosen_for_it(
    topics: Topics, make: Make
) -> None:
    sink = make()
    writer = await opened(sink, claim(partition="orders.csv"))
    await writer.write(output(0, 2), PERMIT)
    assert writer.place is not None
    assert numbers(topics, writer.place) == [1, 2]
    topics.machine.admin("POST", f"persistent/{topics.topic}/partitions", 16)
    again = make()
    heir = await opened(again, claim(2, partition="orders.csv", state=writer.state))
    assert (heir.place, heir.position) == (writer.place, "2")
    with pytest.raises(SinkRejected, match="in partition 99, and has 16 partitions now"):
        await again.open(claim(3, partition="orders.csv", state="0:0:1:1:99"))


async def test_two_leases_of_one_partition_are_refused_once_one_has_published(topics: Topics, make: Make) -> None:
    sink = make()
    writer = await opened(sink, claim(partition="0"))
    await writer.write(output(0, 2), PERMIT)
    other = next(name for name in map(str, range(4, 100)) if target_of(name, ("0", "1", "2", "3"), None) == "0")
    with pytest.raises(SinkRejected, match="output of lease 'bank/0', and a partition takes that of one lease alone"):
        await sink.open(claim(partition=other))
    await writer.write(output(2, 3), PERMIT)
    assert numbers(topics) == [1, 2, 3]


async def test_a_topic_that_is_missing_is_named(pulsar_server: PulsarMachine, make: Make) -> None:
    with pytest.raises(SinkRejected, match="create the topic, or correct `topic`"):
        await make(Topics(pulsar_server)).prepare()


async def test_output_that_is_too_large_is_cut_or_refused_with_its_event(topics: Topics, make: Make) -> None:
    writer = await opened(make(message_bytes_max=20_000), claim())
    table = pa.table({"body": [b"x" * 8_000] * 3, "sequence": [1, 2, 3]})
    assert writer.parts(Output(table=table, start=None, to="3", events=3)) > 1
    with pytest.raises(OutputTooLarge, match="3 rows"):
        await writer.write(Output(table=table, start=None, to="3", events=3), PERMIT)
    one = pa.table({"body": [b"x", b"x" * 30_000], "sequence": [1, 2]})
    with pytest.raises(OutputRefused, match="maxMessageSize") as refused:
        await writer.write(Output(table=one, start=None, to="2", events=2), PERMIT)
    assert refused.value.sequences == (2,)
    await writer.write(output(0, 1), PERMIT)
    assert numbers(topics) == [1]


async def test_a_batch_that_the_broker_finds_too_large_is_cut(topics: Topics, make: Make) -> None:
    writer = await opened(make(message_bytes_max=50_000_000), claim())
    table = pa.table({"body": [b"x" * 2_000_000] * 3})
    with pytest.raises(OutputTooLarge, match="lower `message_bytes_max`"):
        await writer.write(Output(table=table, start=None, to="3", events=3), PERMIT)
    await writer.write(output(0, 2), PERMIT)
    assert numbers(topics) == [1, 2]


async def test_a_broker_without_deduplication_is_refused_with_the_first_batch(
    pulsar_server: PulsarMachine, make: Make
) -> None:
    pulsar_server.admin("PUT", "namespaces/public/careless", {})
    pulsar_server.admin("POST", "namespaces/public/careless/deduplication", False)
    careless = Topics(pulsar_server, namespace="public/careless")
    pulsar_server.make_topic(careless.name, 1, careless.namespace)
    sink = make(careless)
    writer = await opened(sink, claim(1))
    with pytest.raises(SinkRejected, match="set-deduplication --enable"):
        await writer.write(output(0, 2), PERMIT)
    with pytest.raises(SinkRejected, match="set-deduplication --enable"):
        await sink.open(claim(2))
    careless.close()


async def test_a_producer_that_the_broker_has_forgotten_continues_behind_its_marker(
    topics: Topics, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after some hours without a host: the broker tells no number, and the tail has the position."""
    monkeypatch.setattr("leasehold.pipeline.connectors.pulsar.tail.FRESH_S", -1.0)
    sink = make()
    await (await opened(sink, claim(1))).write(output(0, 2), PERMIT)
    attach = ExclusiveProducer.attach

    def forgotten(self: ExclusiveProducer, *, fences: bool) -> int:
        known = attach(self, fences=fences)
        return -1 if fences else known

    monkeypatch.setattr(ExclusiveProducer, "attach", forgotten)
    again = await sink.open(claim(2))
    assert again.position == "2"
    await again.write(output(2, 4), PERMIT)
    assert numbers(topics) == [1, 2, 3, 4]


async def test_a_claim_whose_published_end_is_gone_is_refused_and_one_that_published_nothing_since_is_not(
    pulsar_server: PulsarMachine, make: Make
) -> None:
    """The broker remembers the last number, though retention has taken all entries."""
    pulsar_server.admin("PUT", "namespaces/public/brief", {})
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    pulsar_server.admin("POST", "namespaces/public/brief/retention", nothing)
    brief = Topics(pulsar_server, namespace="public/brief")
    pulsar_server.make_topic(brief.name, 1, brief.namespace)
    sink = make(brief)
    writer = await opened(sink, claim(1))
    await writer.write(output(0, 2), PERMIT)
    early = writer.state
    await writer.write(output(2, 3), PERMIT)
    late = writer.state
    await writer.close("shutdown")
    brief.forget("0")
    with pytest.raises(SinkRejected, match="progress is unknown"):
        await sink.open(claim(2, state=early, continuation="2"))
    again = await sink.open(claim(3, state=late, continuation="3"))
    assert again.position == "3"
    await again.write(output(3, 4), PERMIT)
    assert numbers(brief) == [4]
    brief.forget("0")
    anew = await sink.open(claim(4, generation=1, state=early, continuation="4"))  # after a reset
    assert anew.position == "4"
    await anew.write(output(4, 5), PERMIT)
    assert numbers(brief) == [5]
    brief.close()


async def test_a_topic_that_was_deleted_and_created_again_is_noticed(topics: Topics, make: Make) -> None:
    sink = make()
    writer = await opened(sink, claim(1))
    await writer.write(output(0, 2), PERMIT)
    topics.remake()
    with pytest.raises(SinkRejected, match="deleted, and created again"):
        await sink.open(claim(2, state=writer.state, continuation="2"))
    anew = await opened(sink, claim(3, generation=1, state=writer.state, continuation="2"))  # after a reset
    assert anew.position == "2"
    heir = await opened(sink, claim(4, generation=1, state=anew.state, continuation="2"))
    await heir.write(output(2, 3), PERMIT)
    last = await opened(sink, claim(5, generation=1, state=anew.state, continuation="2"))
    assert last.position == "3"
    assert numbers(topics) == [3]


async def test_a_stored_batch_whose_number_cannot_be_looked_up_is_in_doubt(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make()
    writer = await opened(sink, claim(1))

    def fail(self: ExclusiveProducer, *, fences: bool) -> int:
        raise pulsar.Timeout("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(ExclusiveProducer, "attach", fail)
        with pytest.raises(Ambiguous, match="a batch is stored"):
            await writer.write(output(0, 2), PERMIT)
    assert (await sink.open(claim(2, state=writer.state))).position == "2"


async def test_a_foreign_message_that_is_not_text_is_ignored(topics: Topics, make: Make) -> None:
    topics.produce("0", [b"foreign"], properties={"a": b"\xff"})
    sink = make()
    writer = await opened(sink, claim(1))
    await writer.write(output(0, 2), PERMIT)
    assert (await sink.open(claim(2, state=writer.state))).position == "2"


async def test_an_older_generation_is_refused_after_a_reset(make: Make) -> None:
    sink = make()
    writer = await opened(sink, claim(1))
    await writer.write(output(0, 2), PERMIT)
    anew = await opened(sink, claim(2, generation=1, state=writer.state, continuation="1"))
    await anew.write(output(1, 3), PERMIT)
    with pytest.raises(SinkRejected, match="generation 1"):
        await sink.open(claim(3, state=writer.state, continuation="2"))


async def test_other_producers_are_kept_out_of_a_partition_that_a_lease_has(topics: Topics, make: Make) -> None:
    await (await opened(make(), claim())).write(output(0, 1), PERMIT)
    with pytest.raises(pulsar.ProducerBusy):
        topics.produce("0", [b"foreign"])
    topics.produce("1", [b"foreign"])


async def test_a_lease_that_has_ended_takes_nothing_more(make: Make) -> None:
    writer = await opened(make(), claim())
    await writer.end(PERMIT)
    with pytest.raises(SinkRejected, match="has ended"):
        await writer.write(output(0, 1), PERMIT)
