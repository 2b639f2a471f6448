"""What goes wrong around a receiver: it goes on where it was, or says once and clearly why it cannot."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import pytest
from connectors.eventhubs.clients import HUB, receiver
from connectors.eventhubs.feeds import bodies, feed, sent_raw
from patience import PATIENCE_S, until_async
from plugins_eventhubs import EventHubs

from leasehold.common.clock import Pauses
from leasehold.pipeline.connectors.eventhubs.amqp.encode import data
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
from leasehold.pipeline.errors import FeedError, FeedUnavailable, Fenced, MalformedRecord, PipelineError


class Quick:
    """Pauses that are noted and not waited for."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.pauses = Pauses(first_s=0.01, patience_s=60, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


@pytest.mark.parametrize("what", ["cut", "detach", "close"])
async def test_a_receiver_goes_on_where_it_was_cut_off(eventhubs: EventHubs, what: str) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    async with feed(eventhubs) as made, aclosing(made.open_as(7, "0", None)) as read:
        found = (await anext(read)).events["body"].to_pylist()
        getattr(eventhubs.control, what)()
        eventhubs.control.append(HUB, "0", ["b", "c"])
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < 3:
                found += (await anext(read)).events["body"].to_pylist()
    assert found == [b"a", b"b", b"c"]


@pytest.mark.parametrize("do", ["cut", "detach"])
async def test_nothing_is_lost_or_doubled_by_cuts_in_mid_stream(eventhubs: EventHubs, do: str) -> None:
    eventhubs.control.fill(HUB, "0", 6000)
    for after in (500, 900, 2500):
        eventhubs.control.fault(do, of="receive", after=after, times=1)
    async with feed(eventhubs, limits=ReceiverLimits(prefetch=300)) as made, aclosing(made.open("0", None)) as read:
        sequences: list[int] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(sequences) < 6000:
                sequences += (await anext(read)).events["sequence"].to_pylist()
    assert sequences == list(range(6000))
    assert [fault["taken"] for fault in eventhubs.control.faults()] == [1, 1, 1]


@pytest.mark.parametrize("of", ["attach.receiver", "cbs"])
@pytest.mark.parametrize("do", ["cut", "throttle"])
async def test_a_refusal_that_passes_is_waited_for(eventhubs: EventHubs, do: str, of: str) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    eventhubs.control.fault(do, of=of, times=2)
    quick = Quick()
    async with feed(eventhubs, pauses=quick.pauses) as made:
        assert await bodies(made, 1, epoch=1) == ["a"]
    assert quick.slept


@pytest.mark.parametrize("do", ["cut", "throttle"])
async def test_a_service_that_does_not_tell_where_a_partition_stands_is_asked_again(
    eventhubs: EventHubs, do: str
) -> None:
    eventhubs.control.fault(do, of="management", times=2)
    quick = Quick()
    async with feed(eventhubs, pauses=quick.pauses) as made:
        reading = asyncio.create_task(bodies(made, 1, epoch=1))
        await until_async(lambda: eventhubs.control.faults()[0]["taken"] == 2)
        eventhubs.control.append(HUB, "0", ["a"])
        assert await reading == ["a"]
    assert quick.slept


async def test_whoever_finds_the_next_event_does_not_wait_to_be_told_where_the_partition_stands(
    eventhubs: EventHubs,
) -> None:
    eventhubs.control.append(HUB, "0", ["a", "b"])
    eventhubs.control.fault("hang", of="management")
    async with feed(eventhubs) as made:
        assert await bodies(made, 1, "0", "0") == ["b"]


async def test_a_busy_service_is_left_alone_for_as_long_as_its_own_clients_leave_it(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    eventhubs.control.fault("throttle", of="attach.receiver", times=1)
    quick = Quick()
    async with feed(eventhubs, pauses=quick.pauses) as made:
        assert await bodies(made, 1) == ["a"]
    assert [4 <= pause < 5 for pause in quick.slept] == [True]


async def test_a_service_that_does_not_answer_is_told_once_patience_is_used_up(eventhubs: EventHubs) -> None:
    eventhubs.control.fault("hang", of="attach.receiver")
    async with feed(
        eventhubs, limits=ReceiverLimits(timeout_s=0.2), pauses=Pauses(first_s=0.01, patience_s=0.5)
    ) as made:
        with pytest.raises(FeedUnavailable, match="partition '0', consumer group '\\$Default': no answer in time"):
            await bodies(made, 1)


async def test_a_later_owners_receiver_displaces_the_earlier_ones(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    async with feed(eventhubs) as made, feed(eventhubs) as other, aclosing(made.open_as(3, "0", None)) as zombie:
        await anext(zombie)
        waiting = asyncio.ensure_future(anext(zombie))
        assert await bodies(other, 1, epoch=4) == ["a"]
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(Fenced) as fenced:
                await waiting
    assert fenced.value.epoch == 4
    assert "a reader with a higher epoch has the partition" in str(fenced.value)


async def test_an_earlier_owner_that_comes_late_is_refused_and_told_which_epoch_is_there(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    async with feed(eventhubs) as made, aclosing(made.open_as(9, "0", None)) as owner:
        await anext(owner)
        with pytest.raises(Fenced) as fenced:
            await bodies(made, 1, epoch=8)
        assert fenced.value.epoch == 9
        eventhubs.control.append(HUB, "0", ["b"])
        assert (await anext(owner)).events["body"].to_pylist() == [b"b"]


async def test_an_owner_displaces_a_reader_without_rank(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    async with receiver(eventhubs), feed(eventhubs) as made:
        assert await bodies(made, 1, epoch=1) == ["a"]
        await until_async(lambda: not eventhubs.control.links(role="receiver"))


async def test_who_only_looks_is_told_that_somebody_reads_with_an_epoch(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a", "b"])
    time = datetime.fromtimestamp(eventhubs.control.events(HUB, "0")[0].time_ms / 1000, UTC)
    async with feed(eventhubs) as made, aclosing(made.open_as(1, "0", None)) as owner:
        await anext(owner)
        with pytest.raises(FeedError, match="use another group"):
            await bodies(made, 1)
        with pytest.raises(FeedUnavailable, match="no other receiver can search by time"):
            await made.start_of("0", time)


async def test_an_event_that_cannot_be_read_is_told_behind_those_before_it_with_how_to_go_on(
    eventhubs: EventHubs,
) -> None:
    await sent_raw(eventhubs, data(b"a"), data(b"two bodies") + b"\x00\x53\x77\x40", data(b"c"))
    time = datetime.fromtimestamp(eventhubs.control.events(HUB, "0")[0].time_ms / 1000, UTC)
    async with feed(eventhubs) as made:
        assert await made.start_of("0", time) is None
        async with asyncio.timeout(PATIENCE_S), aclosing(made.open("0", None)) as read:
            assert (await anext(read)).events["body"].to_pylist() == [b"a"]
            with pytest.raises(
                MalformedRecord, match=r"bodies of two kinds; to continue without it, set the lease to '1'$"
            ):
                await anext(read)
        assert await bodies(made, 1, "0", "1") == ["c"]
        eventhubs.control.trim(HUB, "0", 1)
        with pytest.raises(
            MalformedRecord, match="the first event since then cannot be read: it has bodies of two kinds"
        ):
            await made.start_of("0", time)


async def refused(made: EventHubsChangeFeed) -> set[tuple[type[PipelineError], str]]:
    found = set()
    for call in (bodies(made, 1, epoch=1), made.partitions(), made.latest("0"), made.lag("0", None)):
        with pytest.raises(FeedError) as error:
            await call
        found.add((type(error.value), str(error.value)))
    return found


async def test_a_wrong_key_is_told_and_what_to_check(eventhubs: EventHubs) -> None:
    wrong = eventhubs.connection_string.replace(eventhubs.key, "d3Jvbmc=")
    assert wrong != eventhubs.connection_string
    async with feed(eventhubs, account={"connection_string": wrong}) as made:
        found = await refused(made)
    assert {kind for kind, _ in found} == {FeedError}
    assert all("check the key or the identity" in text and "401" in text for _, text in found)
    assert not any("d3Jvbmc" in text or eventhubs.key in text for _, text in found)


async def test_an_unknown_hub_is_told(eventhubs: EventHubs) -> None:
    async with feed(eventhubs, hub="no-such-hub") as made:
        found = await refused(made)
    assert {kind for kind, _ in found} == {FeedError}
    assert all("no-such-hub" in text and "check the name of the hub" in text for _, text in found)


async def test_an_unknown_consumer_group_is_told(eventhubs: EventHubs) -> None:
    async with feed(eventhubs, consumer_group="nobody") as made:
        with pytest.raises(
            FeedError, match=r"consumer group 'nobody'.*check the name of the hub and of the consumer group"
        ) as error:
            await bodies(made, 1)
    assert type(error.value) is FeedError


async def test_an_unknown_partition_is_told(eventhubs: EventHubs) -> None:
    async with feed(eventhubs) as made:
        for partition in ("4", "0/../1"):
            with pytest.raises(FeedError, match="partition '"):
                await bodies(made, 1, partition)


async def test_nobody_there_is_told(eventhubs: EventHubs) -> None:
    nowhere = eventhubs.connection_string.replace(f":{eventhubs.port}", ":1")
    async with feed(
        eventhubs, account={"connection_string": nowhere}, pauses=Pauses(first_s=0.01, patience_s=0.05)
    ) as made:
        found = await refused(made)
    assert {kind for kind, _ in found} == {FeedUnavailable}


async def test_a_group_with_too_many_readers_is_waited_for(eventhubs: EventHubs) -> None:
    async with feed(eventhubs, pauses=Pauses(first_s=0.01, patience_s=0.1)) as made:
        readers = [made.open("0", None) for _ in range(5)]
        waiting = [asyncio.ensure_future(anext(each)) for each in readers]
        await until_async(lambda: len(eventhubs.control.links(role="receiver")) == 5)
        with pytest.raises(FeedUnavailable, match="Exceeded the maximum number of allowed receivers"):
            await bodies(made, 1)
        eventhubs.control.append(HUB, "0", ["a"])
        await asyncio.gather(*waiting)
        for each in readers:
            await each.aclose()


async def test_a_closed_reader_leaves_no_link_and_no_task(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    before = asyncio.all_tasks()
    async with feed(eventhubs) as made:
        read: Any = made.open_as(1, "0", None)
        await anext(read)
        await read.aclose()
        await until_async(lambda: not eventhubs.control.links(role="receiver"))
    assert asyncio.all_tasks() == before
