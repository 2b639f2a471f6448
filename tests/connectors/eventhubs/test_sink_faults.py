"""What the wire does to the Event Hubs sink: every output is stored once, in order, whatever it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from connectors.eventhubs import clients
from patience import until_async
from plugins_eventhubs import EventHubs

from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.sink.sink import EventHubsOutputSink
from leasehold.pipeline.connectors.eventhubs.sink.tail import LOOK_TIMEOUT_S, QUIET_S
from leasehold.pipeline.connectors.eventhubs.sink.writer import HubWriter
from leasehold.pipeline.contract import body, event_table
from leasehold.pipeline.errors import Ambiguous, Fenced, NotTrusted, SinkRejected, SinkUnavailable
from leasehold.pipeline.producer import LEVEL_MAX, ProducerPosition, ProducerState, RetryPolicy, decoded
from leasehold.pipeline.sink import Claim, ClaimReports, Output, SinkWriter

HUB, GROUP = "transformed-event", "sinks"
QUICK = RetryPolicy(retries_max=2, delay_s=0.01, try_timeout_s=1)
ONCE = RetryPolicy(retries_max=0, try_timeout_s=1)
Sinks = Callable[..., EventHubsOutputSink]


class Permit:
    """checks: after so many, trust is gone."""

    def __init__(self, checks: int = 1000) -> None:
        self.checks = checks

    def check(self) -> None:
        self.checks -= 1
        if self.checks < 0:
            raise NotTrusted("the trust window is closed")

    async def wait_until_granted(self) -> None:
        self.check()


class Lease:
    """Claims as a worker does: each from the state of the last checkpoint, or from what a refusal says."""

    def __init__(self, sink: EventHubsOutputSink, partition: str = "0") -> None:
        self.sink = sink
        self.partition = partition
        self.state = ""
        self.continuation: str | None = None
        self.generation = 0

    def claim(self) -> Claim:
        self.state = self.sink.claimed(self.state)
        return Claim(
            pipeline="bank",
            partition=self.partition,
            owner="host",
            epoch=1,
            generation=self.generation,
            continuation=self.continuation,
            state=self.state,
            compare=lambda a, b: int(a or 0) - int(b or 0),
        )

    async def open(self) -> SinkWriter:
        while True:
            try:
                writer = await self.sink.open(self.claim())
            except Fenced as fenced:
                self.state = str(fenced.state)
                continue
            self.continuation, self.state = writer.position, writer.state
            return writer


def output(start: int, to: int) -> Output:
    table = event_table("0", range(start + 1, to + 1))
    return Output(table=table, start=str(start) if start else None, to=str(to), events=to - start)


@pytest.fixture
async def sinks(eventhubs: EventHubs) -> AsyncIterator[Sinks]:
    made: list[EventHubsOutputSink] = []

    def make(**options: Any) -> EventHubsOutputSink:
        account = account_of(connection_string=eventhubs.connection_string, event_hub=HUB)
        made.append(EventHubsOutputSink(account, **{"retry": QUICK, "consumer_group": GROUP, "quiet_s": 0.1} | options))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


def stored(eventhubs: EventHubs, partition: str = "0") -> list[str]:
    return eventhubs.control.bodies(HUB, partition)


def bodies(*numbers: int) -> list[str]:
    return [body(number).decode() for number in numbers]


async def delivered(lease: Lease, up_to: int, step: int = 2) -> None:
    """As a worker and its runner: what fails is answered by the next claim, which says from where."""
    for _ in range(20):
        try:
            writer = await lease.open()
            while (position := int(writer.position or 0)) < up_to:
                await writer.write(output(position, min(position + step, up_to)), Permit())
        except Fenced as fenced:
            lease.continuation, lease.state = writer.position, fenced.state or lease.state
            continue
        except (Ambiguous, SinkUnavailable):
            continue
        lease.continuation, lease.state = writer.position, writer.state
        return
    raise AssertionError("it never came to its end")


FAULTS = {
    "cut before it was stored": {"do": "cut"},
    "cut after it was stored": {"do": "cut_after"},
    "acknowledgement lost": {"do": "lose_ack"},
    "acknowledgement late": {"do": "late_ack", "delay_s": 1.5},
    "batch late": {"do": "delay", "delay_s": 1.5},
    "link stolen": {"do": "detach", "condition": "amqp:link:stolen"},
    "link stolen after it was stored": {"do": "detach_after", "condition": "amqp:link:stolen"},
    "link detached": {"do": "detach"},
    "throttled": {"do": "throttle"},
    "out of order": {"do": "refuse", "condition": "com.microsoft:out-of-order-sequence"},
    "level stolen": {"do": "refuse", "condition": "com.microsoft:producer-epoch-stolen"},
    "timed out": {"do": "refuse", "condition": "com.microsoft:timeout"},
}


@pytest.mark.parametrize("retry", [QUICK, ONCE], ids=["with retries", "once"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_whatever_happens_to_a_batch_it_is_stored_once(
    eventhubs: EventHubs, sinks: Sinks, fault: str, retry: RetryPolicy
) -> None:
    lease = Lease(sinks(retry=retry))
    eventhubs.control.fault(of="send", after=1, times=2, **FAULTS[fault])
    await delivered(lease, 6)
    assert stored(eventhubs) == bodies(*range(1, 7))
    await delivered(lease, 8)
    assert stored(eventhubs) == bodies(*range(1, 9))


@pytest.mark.parametrize(("times", "series"), [(1, 0), (2, 1)])
async def test_what_the_service_acknowledges_and_discards_after_a_claim_is_published_again(
    eventhubs: EventHubs, sinks: Sinks, times: int, series: int
) -> None:
    """At first at a higher level; if that is discarded too, by the next group."""
    lease = Lease(sinks())
    await delivered(lease, 2)
    eventhubs.control.fault("discard", of="send", times=times)
    await delivered(lease, 6)
    assert stored(eventhubs) == bodies(*range(1, 7))
    assert decoded(lease.state).series == series
    await delivered(lease, 8)
    assert stored(eventhubs) == bodies(*range(1, 9))


async def test_a_batch_that_cannot_be_verified_is_looked_for_by_the_next_claim(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    writer = await (lease := Lease(sinks())).open()
    eventhubs.control.fault("refuse", of="attach.receiver", times=1)
    with pytest.raises(Ambiguous, match="the first batch of the claim cannot be verified"):
        await writer.write(output(0, 2), Permit())
    await delivered(lease, 4)
    assert stored(eventhubs) == bodies(1, 2, 3, 4)


@pytest.mark.parametrize("do", ["cut", "throttle", "hang", "refuse"])
@pytest.mark.parametrize("of", ["attach.sender", "management"])
async def test_a_claim_that_fails_half_way_is_made_again(eventhubs: EventHubs, sinks: Sinks, of: str, do: str) -> None:
    lease = Lease(sinks(retry=ONCE, timeout_s=1))
    await delivered(lease, 2)
    for after in range(3):
        eventhubs.control.fault(do, of=of, after=after, times=1)
        while True:
            try:
                await lease.open()
                break
            except SinkUnavailable:
                continue
        eventhubs.control.heal()
    await delivered(lease, 4)
    assert stored(eventhubs) == bodies(1, 2, 3, 4)


@pytest.mark.parametrize("nothing", [0, -1])
async def test_a_new_lease_reads_nothing_of_what_others_have_published(
    eventhubs: EventHubs, sinks: Sinks, nothing: int
) -> None:
    eventhubs.control.rules(nothing=nothing)
    eventhubs.control.fill(HUB, "0", 5_000)
    lease = Lease(sinks())
    await delivered(lease, 2)
    assert eventhubs.control.count("delivered", HUB) < 100
    await delivered(lease, 4)
    assert stored(eventhubs)[5_000:] == bodies(1, 2, 3, 4)


async def test_a_host_that_dies_with_its_batch_stored_is_followed_behind_it(eventhubs: EventHubs, sinks: Sinks) -> None:
    lease = Lease(sinks())
    writer = await lease.open()
    for start in range(5):
        await writer.write(output(start, start + 1), Permit())  # and no checkpoint
    heir = Lease(sinks())
    heir.state = lease.state
    assert (await heir.open()).position == "5"
    await delivered(heir, 6)
    assert stored(eventhubs) == bodies(*range(1, 7))


@pytest.mark.parametrize("old", [{"old_events": 2}, {"old_events": 1000}, {"old_s": 3600}], ids=str)
async def test_an_old_answer_of_the_service_hides_nothing_of_a_crashed_host(
    eventhubs: EventHubs, sinks: Sinks, old: dict[str, float]
) -> None:
    lease = Lease(sinks())
    writer = await lease.open()
    await writer.write(output(0, 2), Permit())
    lease.continuation, lease.state = writer.position, writer.state
    await writer.write(output(2, 4), Permit())  # a crash before its checkpoint
    eventhubs.control.rules(**old)
    assert (await lease.open()).position == "4"
    await delivered(lease, 6)
    eventhubs.control.rules()
    await delivered(lease, 8)
    assert stored(eventhubs) == bodies(*range(1, 9))


async def test_a_zombie_s_batch_stored_between_question_and_fence_is_found(
    eventhubs: EventHubs, sinks: Sinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(sinks())
    zombie = await lease.open()
    heir = Lease(
        sinks(quiet_s=QUIET_S)
    )  # the old answer calls the partition empty, so what arrives has to be waited for
    heir.state = lease.state
    eventhubs.control.rules(old_events=2)
    standing = heir.sink._groups.find_standing

    async def stored_meanwhile(claim: Claim, state: ProducerState, target: str) -> ProducerPosition:
        known = await standing(claim, state, target)
        if zombie.position is None:
            await zombie.write(output(0, 2), Permit())
        return known

    monkeypatch.setattr(heir.sink._groups, "find_standing", stored_meanwhile)
    assert (await heir.open()).position == "2"


async def test_a_partition_that_is_empty_is_claimed(eventhubs: EventHubs, sinks: Sinks) -> None:
    lease = Lease(sinks())
    assert (await lease.open()).position is None
    await delivered(lease, 2)
    eventhubs.control.trim(HUB, "0", 2)  # retention has forgotten everything
    await delivered(lease, 4)
    assert stored(eventhubs) == bodies(3, 4)


async def test_events_of_others_lie_between_ours(eventhubs: EventHubs, sinks: Sinks) -> None:
    lease = Lease(sinks())
    writer = await lease.open()
    for start in range(3):
        await clients.send(eventhubs, "theirs", hub=HUB, partition_id="0")
        await writer.write(output(start, start + 1), Permit())
    another = Lease(lease.sink, "source-a")  # of another source, perhaps in the same partition
    await delivered(another, 2)
    assert (await lease.open()).position == "3"


@pytest.mark.parametrize("others", [1, 200_000])
async def test_a_claim_reads_what_came_since_the_last_checkpoint_whoever_else_publishes(
    eventhubs: EventHubs, sinks: Sinks, others: int
) -> None:
    lease = Lease(sinks(tail_s=0))
    writer = await lease.open()
    for start in range(5):
        eventhubs.control.fill(HUB, "0", others // 5 or 1, 20)
        await writer.write(output(start, start + 1), Permit())
    lease.continuation, lease.state = writer.position, writer.state  # a checkpoint at the partition's end
    await writer.write(output(5, 6), Permit())  # a crash before the next one
    before = eventhubs.control.count("delivered", HUB)
    assert (await lease.open()).position == "6"
    assert eventhubs.control.count("delivered", HUB) - before < 100


async def test_a_first_claim_that_fails_behind_the_fence_is_followed_by_one_that_reads_little(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    eventhubs.control.fill(HUB, "0", 20_000, 20)
    lease = Lease(sinks(retry=RetryPolicy(retries_max=0, try_timeout_s=20)))
    await lease.sink.prepare()
    eventhubs.control.fault("refuse", of="attach.receiver")
    for _ in range(2):
        with pytest.raises(SinkUnavailable):
            await lease.open()
    eventhubs.control.heal()
    before = eventhubs.control.count("delivered", HUB)
    assert (await lease.open()).position is None
    assert eventhubs.control.count("delivered", HUB) - before < 100


async def test_a_long_search_reports_progress_and_is_continued_where_it_broke_off(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    lease = Lease(sinks())
    writer = await lease.open()
    await writer.write(output(0, 2), Permit())  # a crash before its checkpoint
    eventhubs.control.fill(HUB, "0", 6_000, 20)
    reports = []
    eventhubs.control.fault("detach", of="receive", after=4_000, times=1)
    before = eventhubs.control.count("delivered", HUB)
    with pytest.raises(SinkUnavailable):
        await lease.sink.open(
            replace(lease.claim(), reports=ClaimReports(progress=lambda: reports.append("broken off")))
        )
    claim = replace(lease.claim(), reports=ClaimReports(progress=lambda: reports.append("continued")))
    assert (await lease.sink.open(claim)).position == "2"
    assert set(reports) == {"broken off", "continued"}
    assert eventhubs.control.count("delivered", HUB) - before < 6_100


async def test_each_of_many_leases_that_share_a_partition_reads_what_came_since_its_checkpoint(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    eventhubs.control.make_hub(HUB, 1, [GROUP])
    sink = sinks(tail_s=0)
    leases = [Lease(sink, f"source-{number}") for number in range(8)]
    writers = [await lease.open() for lease in leases]
    for start in range(0, 200, 50):
        for lease, writer in zip(leases, writers, strict=True):
            await writer.write(output(start, start + 50), Permit())
            lease.continuation, lease.state = writer.position, writer.state
    await writers[0].write(output(200, 210), Permit())  # a crash before its checkpoint
    before = eventhubs.control.count("delivered", HUB)
    assert (await leases[0].open()).position == "210"
    since_its_checkpoint = 50 + 7 * 50 + 10
    assert eventhubs.control.count("delivered", HUB) - before <= since_its_checkpoint


async def test_retention_that_passed_an_old_claim_does_not_stop_a_lease_that_publishes(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    lease = Lease(sinks(tail_s=0))
    writer = await lease.open()
    for start in range(5):
        await writer.write(output(start, start + 1), Permit())
        eventhubs.control.fill(HUB, "0", 100, 20)
    await writer.write(output(5, 6), Permit())
    lease.continuation, lease.state = writer.position, writer.state
    eventhubs.control.trim(HUB, "0", eventhubs.control.partition(HUB, "0").end - 10)
    await writer.write(output(6, 7), Permit())  # a crash before its checkpoint
    await delivered(lease, 8)
    assert stored(eventhubs)[-2:] == bodies(7, 8)


async def test_by_default_too_a_claim_reads_what_came_since_the_last_checkpoint(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    """200,000 events of others are older than the checkpoint. The tail passes them without a question to $management."""
    lease = Lease(sinks())
    writer = await lease.open()
    await writer.write(output(0, 1), Permit())
    eventhubs.control.fill(HUB, "0", 200_000, 20)
    end, asked = eventhubs.control.partition(HUB, "0").end, eventhubs.control.count("reads")

    async def has_passed_them() -> bool:
        position = int(writer.position or 0)
        await writer.write(output(position, position + 1), Permit())
        return decoded(writer.state).tail >= end

    await until_async(has_passed_them)
    assert eventhubs.control.count("reads") == asked
    lease.continuation, lease.state = writer.position, writer.state  # a checkpoint
    position = int(writer.position or 0)
    await writer.write(output(position, position + 1), Permit())  # a crash before the next one
    before = eventhubs.control.count("delivered", HUB)
    assert (await lease.open()).position == str(position + 1)
    assert eventhubs.control.count("delivered", HUB) - before < 1000


async def test_the_tail_of_an_idle_lease_follows_but_not_past_a_batch_that_is_under_way(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    lease = Lease(sinks(tail_s=0, retry=ONCE))
    writer = await lease.open()
    assert isinstance(writer, HubWriter)
    await writer.write(output(0, 1), Permit())
    eventhubs.control.fill(HUB, "0", 200_000, 20)
    await writer.follow()
    lease.continuation, lease.state = writer.position, writer.state  # a checkpoint
    assert decoded(writer.state).tail == eventhubs.control.partition(HUB, "0").end - 1
    eventhubs.control.fault("lose_ack", of="send", times=1)
    with pytest.raises(Ambiguous):
        await writer.write(output(1, 2), Permit())
    await writer.follow()
    assert writer.state == lease.state
    before = eventhubs.control.count("delivered", HUB)
    assert (await lease.open()).position == "2"
    assert eventhubs.control.count("delivered", HUB) - before < 1000


@pytest.mark.parametrize("do", ["cut", "throttle", "refuse", "hang"])
async def test_a_tail_that_cannot_be_moved_delays_little_and_not_soon_again(
    eventhubs: EventHubs, sinks: Sinks, do: str
) -> None:
    lease = Lease(sinks(tail_s=0))
    writer = await lease.open()
    await writer.write(output(0, 1), Permit())
    eventhubs.control.fault(do, of="attach.receiver")
    async with asyncio.timeout(6 * LOOK_TIMEOUT_S):  # a link itself may take longer
        for position in range(1, 5):
            await writer.write(output(position, position + 1), Permit())
    if do == "hang":
        [fault] = eventhubs.control.faults()
        assert fault["taken"] <= 1  # no other look within a minute
    eventhubs.control.heal()
    await delivered(lease, 5)
    assert stored(eventhubs) == bodies(1, 2, 3, 4, 5)


async def test_a_zombie_s_late_batch_is_refused(eventhubs: EventHubs, sinks: Sinks) -> None:
    """It was on its way when the next claim raised the level: it must not arrive."""
    lease = Lease(sinks(retry=RetryPolicy(retries_max=0, try_timeout_s=2.5)))
    writer = await lease.open()
    await writer.write(output(0, 1), Permit())
    eventhubs.control.fault("delay", of="send", times=1, delay_s=7)
    with pytest.raises(Ambiguous):
        await writer.write(output(1, 2), Permit())
    heir = await lease.open()
    assert heir.position == "1"
    await heir.write(output(1, 2), Permit())
    await until_async(lambda: eventhubs.control.count("refused", hub=HUB), "the late one comes, and is refused")
    assert stored(eventhubs) == bodies(1, 2)


async def test_of_two_tenures_with_one_document_one_is_let_in_at_most(eventhubs: EventHubs, sinks: Sinks) -> None:
    """It was put back from a backup, so that its level was given out twice."""
    for start in range(3):
        lease = Lease(sinks())
        lease.state = ProducerState(level=10 * start).encoded()
        claim = lease.claim()
        opened = await asyncio.gather(*(sinks().open(claim) for _ in range(2)), return_exceptions=True)
        assert sum(isinstance(each, Fenced) for each in opened) >= 1
        await delivered(lease, start + 1)
    assert stored(eventhubs) == bodies(1, 2, 3)


@pytest.fixture(params=["current", "next"])
def null_level(request: pytest.FixtureRequest, eventhubs: EventHubs) -> None:
    """What an attach with a null level means: nobody knows."""
    eventhubs.control.rules(null_level=request.param)


@pytest.mark.usefixtures("null_level")
async def test_a_claim_does_not_fence_itself(eventhubs: EventHubs, sinks: Sinks) -> None:
    lease = Lease(sinks())
    for start in range(3):
        writer = await lease.sink.open(lease.claim())
        await writer.write(output(start, start + 1), Permit())
        lease.continuation, lease.state = writer.position, writer.state
    await writer.end(Permit())
    ended = await lease.sink.open(lease.claim())
    assert ended.position == "3"
    with pytest.raises(SinkRejected, match="has ended"):
        await ended.write(output(3, 4), Permit())


@pytest.mark.usefixtures("null_level")
async def test_an_old_document_is_claimed_above_what_the_service_knows(eventhubs: EventHubs, sinks: Sinks) -> None:
    lease = Lease(sinks())
    lease.state = ProducerState(level=500).encoded()
    await delivered(lease, 2)
    for old in ("", ProducerState(group=decoded(lease.state).group, level=3, tail=0).encoded()):
        lease.state = old
        with pytest.raises(Fenced) as outranked:
            await lease.sink.open(lease.claim())
        lease.state = str(outranked.value.state)
        assert (await lease.sink.open(lease.claim())).position == "2"


@pytest.mark.usefixtures("null_level")
async def test_an_outranked_claim_disturbs_the_one_above_it_once_at_most(eventhubs: EventHubs, sinks: Sinks) -> None:
    lease, late = Lease(sinks()), Lease(sinks())
    await delivered(lease, 2)
    late.state = ProducerState(group=decoded(lease.state).group, level=0).encoded()
    with pytest.raises(Fenced):
        await late.sink.open(late.claim())
    await delivered(lease, 4)
    assert stored(eventhubs) == bodies(1, 2, 3, 4)


async def test_trust_that_ends_between_two_tries_makes_the_write_ambiguous(eventhubs: EventHubs, sinks: Sinks) -> None:
    lease = Lease(sinks())
    writer = await lease.open()
    eventhubs.control.fault("cut", times=1)
    with pytest.raises(Ambiguous, match="the trust window is closed"):
        await writer.write(output(0, 1), Permit(2))  # one check before all, one before the first try
    assert stored(eventhubs) == []
    eventhubs.control.fault("throttle", times=1)
    writer = await lease.open()
    with pytest.raises(NotTrusted):
        await writer.write(output(0, 1), Permit(2))  # refused for sure: nothing was sent
    await writer.write(output(0, 1), Permit())
    assert stored(eventhubs) == bodies(1)


async def test_when_levels_are_used_up_the_next_group_goes_on_and_closes_the_last(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    lease = Lease(sinks())
    lease.state = ProducerState(level=LEVEL_MAX - 1).encoded()
    last = await lease.open()
    await last.write(output(0, 2), Permit())
    heir = await lease.open()
    assert (decoded(heir.state).series, decoded(heir.state).level, heir.position) == (1, 1, "2")
    with pytest.raises(Fenced):
        await last.write(output(2, 3), Permit())
    await heir.write(output(2, 3), Permit())
    recreated = Lease(lease.sink)
    assert (await recreated.open()).position == "3"
    assert stored(eventhubs) == bodies(1, 2, 3)


async def test_a_document_that_lost_its_generation_is_not_followed(eventhubs: EventHubs, sinks: Sinks) -> None:
    lease = Lease(sinks())
    writer = await lease.open()
    await writer.write(output(0, 1), Permit())
    lease.generation, lease.continuation = 1, "5"
    writer = await lease.open()
    await writer.write(output(5, 6), Permit())
    with pytest.raises(SinkRejected, match=r"generation 0, and .* holds output of its generation 1: .*Reset the lease"):
        await Lease(lease.sink).open()
    await writer.write(output(6, 7), Permit())
    assert stored(eventhubs) == bodies(1, 6, 7)


async def test_retention_that_passed_what_was_published_stops_the_lease(eventhubs: EventHubs, sinks: Sinks) -> None:
    lease = Lease(sinks())
    writer = await lease.open()
    for start in range(3):
        await writer.write(output(start, start + 1), Permit())
    eventhubs.control.trim(HUB, "0", 2)
    with pytest.raises(SinkRejected, match="is deleted: its progress is unknown"):
        await lease.open()
    lease.generation, lease.continuation = 1, "3"
    await delivered(lease, 4)
    assert stored(eventhubs) == bodies(3, 4)


async def test_retention_does_not_stop_a_lease_that_has_published_nothing_since(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    lease = Lease(sinks())
    await delivered(lease, 2)
    eventhubs.control.fill(HUB, "0", 50)
    eventhubs.control.trim(HUB, "0", 40)
    await delivered(lease, 3)
    assert stored(eventhubs)[-1:] == bodies(3)


@pytest.mark.usefixtures("null_level")
@pytest.mark.parametrize("nothing", [0, -1])
async def test_a_service_that_has_forgotten_the_producer_makes_nothing_count_twice(
    eventhubs: EventHubs, sinks: Sinks, nothing: int
) -> None:
    """After a crash, while a writer has no link, and where all that was published stands in the lease."""
    eventhubs.control.rules(nothing=nothing)
    lease = Lease(sinks())
    await delivered(lease, 2)
    writer = await lease.open()
    await writer.write(output(2, 4), Permit())  # a crash before its checkpoint
    assert eventhubs.control.forget(HUB, "0") > 0
    heir = Lease(sinks())
    heir.state, heir.continuation = lease.state, lease.continuation
    writer = await heir.open()
    assert writer.position == "4"
    await writer.write(output(4, 5), Permit())
    eventhubs.control.order("cut", hub=HUB, partition="0", role="sender")
    assert eventhubs.control.forget(HUB, "0") > 0
    await delivered(heir, 7, step=1)
    assert eventhubs.control.forget(HUB, "0") > 0
    await delivered(heir, 8)
    assert stored(eventhubs) == bodies(*range(1, 9))


async def test_retention_that_moves_with_what_others_publish_does_not_stop_a_lease_that_publishes(
    eventhubs: EventHubs, sinks: Sinks
) -> None:
    """The partition keeps 40 events, of two leases and of a stranger. Each claim follows a crash."""
    eventhubs.control.make_hub(HUB, 1, [GROUP], 40)
    sink = sinks(tail_s=0)
    leases = [Lease(sink, name) for name in ("source-a", "source-b")]
    arrived: list[str] = []
    for start in range(0, 30, 3):
        for lease in leases:
            before = eventhubs.control.partition(HUB, "0").end
            writer = await lease.open()
            assert writer.position == (str(start) if start else None)
            await writer.write(output(start, start + 1), Permit())
            lease.continuation, lease.state = writer.position, writer.state  # the last checkpoint
            eventhubs.control.fill(HUB, "0", 10, 20)
            await writer.write(output(start + 1, start + 3), Permit())
            arrived += [event.body for event in eventhubs.control.events(HUB, "0", before) if event.properties]
    numbers = [number for start in range(0, 30, 3) for number in [*range(start + 1, start + 4)] * 2]
    assert arrived == bodies(*numbers)
    assert eventhubs.control.partition(HUB, "0").first > 0


async def test_a_reader_with_an_epoch_stops_claims_until_it_leaves(eventhubs: EventHubs, sinks: Sinks) -> None:
    lease = Lease(sinks())
    writer = await lease.open()
    await writer.write(output(0, 5), Permit())
    async with clients.receiver(eventhubs, "0", hub=HUB, group=GROUP, epoch=5):
        with pytest.raises(SinkRejected, match=r"consumer group 'sinks': give it one of its own"):
            await lease.open()
    await delivered(lease, 6)
    assert stored(eventhubs) == bodies(*range(1, 7))


@pytest.mark.parametrize("beyond", ["refused", "waits"])
async def test_a_hub_that_was_made_again_stops_the_lease_until_it_is_reset(
    eventhubs: EventHubs, sinks: Sinks, beyond: str
) -> None:
    eventhubs.control.rules(beyond=beyond)
    lease = Lease(sinks(timeout_s=3))
    await delivered(lease, 2)
    eventhubs.control.make_hub(HUB, 4, [GROUP])
    with pytest.raises(SinkRejected, match="the hub was deleted and made again"):
        await lease.open()
    lease.generation, lease.continuation = 1, "2"
    await delivered(lease, 3)
    assert stored(eventhubs) == bodies(3)
