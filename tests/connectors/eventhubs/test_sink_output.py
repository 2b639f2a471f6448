"""What the Event Hubs sink writes, where it goes, and what it says before anything is written."""

from __future__ import annotations

import pyarrow as pa
import pytest
from azure.eventhub._tracing import get_span_links_from_received_events
from connectors.eventhubs import clients
from connectors.eventhubs.test_sink_faults import (
    GROUP,
    HUB,
    ONCE,
    Lease,
    Permit,
    Sinks,
    delivered,
    output,
    sinks,
    stored,
)
from plugins_eventhubs import EventHubs

from leasehold.pipeline.connectors.eventhubs import account_of
from leasehold.pipeline.connectors.eventhubs.sink.sink import EventHubsSink
from leasehold.pipeline.errors import OutputTooLarge, SinkError, SinkRejected, SinkUnavailable
from leasehold.pipeline.producer import decoded
from leasehold.pipeline.sink import Output
from leasehold.pipeline.tracing import TraceContext

__all__ = ["sinks"]


async def test_columns_become_an_event_s_parts(eventhubs: EventHubs, sinks: Sinks) -> None:
    writer = await Lease(sinks()).open()
    table = pa.table(
        {
            "sequence": [2, 1],
            "key": pa.array(["k", None]),
            "body": pa.array(["é", None]),
            "operation": pa.array(["delete", None]),
            "properties": pa.array(
                [[("x", "1"), ("leasehold-to", "9")], [("y", None)]], pa.map_(pa.string(), pa.string())
            ),
        }
    )
    await writer.write(Output(table=table, start=None, to="7", events=2), Permit())
    first, second = eventhubs.control.events(HUB, "0")
    marked = {
        "leasehold-lease": "bank/0",
        "leasehold-generation": "0",
        "leasehold-level": "1",
        "leasehold-to": "7",
        "leasehold-count": "2",
    }
    assert (first.body, first.key, first.properties) == ("", None, {**marked, "leasehold-index": "0", "y": None})
    assert (second.body, second.key) == ("é", None)
    own = {"leasehold-key": "k", "leasehold-operation": "delete", "x": "1"}
    assert second.properties == {**marked, "leasehold-index": "1", **own}
    events = await clients.received(eventhubs, 2, hub=HUB)
    assert [event.body_as_str() for event in events] == ["", "é"]


async def test_azure_s_sdk_finds_the_context_of_the_delivery_in_each_event(eventhubs: EventHubs, sinks: Sinks) -> None:
    parent = f"00-{7:032x}-{1:016x}-01"
    writer = await Lease(sinks()).open()
    table = pa.table({"body": ["a", "b"]})
    await writer.write(Output(table=table, start=None, to="1", events=2, trace=TraceContext(parent, "k=v")), Permit())
    for event in await clients.received(eventhubs, 2, hub=HUB):
        found = [event.properties[name] for name in (b"Diagnostic-Id", b"traceparent", b"tracestate")]
        assert found == [parent.encode(), parent.encode(), b"k=v"]
        (link,) = get_span_links_from_received_events([event])
        assert link.headers == {"traceparent": parent, "tracestate": "k=v"}


async def test_an_output_larger_than_a_batch_is_refused_with_what_to_lower(eventhubs: EventHubs, sinks: Sinks) -> None:
    writer = await Lease(sinks()).open()
    table = pa.table({"body": [b"x" * 1000] * 1100})
    with pytest.raises(OutputTooLarge, match="lower the pipeline's batch_events_max or batch_bytes_max"):
        await writer.write(Output(table=table, start=None, to="1", events=1100), Permit())
    await writer.write(Output(table=table.slice(0, 600), start=None, to="1", events=600), Permit())
    assert len(stored(eventhubs)) == 600


async def test_a_source_partition_without_a_namesake_keeps_its_target_when_the_hub_grows(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    leases = [Lease(sinks(), f"transactions-{number}.csv") for number in range(8)]
    for lease in leases:
        await delivered(lease, 1)
    before = {lease.partition: decoded(lease.state).target for lease in leases}
    assert len(set(before.values())) > 1
    eventhubs.control.grow(HUB, 32)
    again = sinks()
    for lease in leases:
        lease.sink = again
        await delivered(lease, 2)
    assert {lease.partition: decoded(lease.state).target for lease in leases} == before
    assert sum(len(stored(eventhubs, str(number))) for number in range(32)) == 16


async def test_a_claim_that_fails_leaves_no_link(eventhubs: EventHubs, sinks: Sinks) -> None:
    lease = Lease(sinks())
    writer = await lease.open()
    await writer.write(output(0, 1), Permit())
    await writer.close("failed")
    async with clients.receiver(eventhubs, "0", hub=HUB, group=GROUP, epoch=5):  # nobody can read what was published
        with pytest.raises(SinkRejected):
            await lease.open()
    assert eventhubs.control.links(role="sender") == []


async def test_a_busy_service_is_left_alone_for_as_long_as_its_own_clients_leave_it(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    writer = await Lease(sinks(retry=ONCE)).open()
    eventhubs.control.fault("throttle", times=1)
    with pytest.raises(SinkUnavailable) as busy:
        await writer.write(output(0, 1), Permit())
    assert busy.value.retry_after_s == 4


async def test_a_consumer_group_in_which_nothing_can_be_read_is_told_before_anything_is_published(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    async with clients.receiver(eventhubs, "0", hub=HUB, group=GROUP, epoch=5):
        with pytest.raises(SinkRejected, match=r"'sinks': give it one of its own \(`consumer_group`\)"):
            await sinks().prepare()
    with pytest.raises(
        SinkRejected, match=r"consumer group 'nobody'.*check the name of the hub and of the consumer group"
    ):
        await sinks(consumer_group="nobody").prepare()
    await sinks().prepare()
    assert eventhubs.control.links() == []


async def test_what_is_wrong_with_the_hub_is_told(eventhubs: EventHubs) -> None:
    account = account_of(connection_string=eventhubs.connection_string, event_hub="missing")
    sink = EventHubsSink(account, consumer_group=GROUP, retry=ONCE, timeout_s=2)
    with pytest.raises(SinkError, match="missing"):
        await sink.prepare()
    await sink.close()
