"""When nobody knows what became of a batch: it is stored once, and its numbers are never given to anything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from connectors.producer.conftest import HUB, Hub, Place
from connectors.producer.parts import batch_of, cancelled, events, failed, number_of, stored
from patience import PATIENCE_S, until_async

from leasehold.pipeline.connectors.eventhubs.sink import sender
from leasehold.pipeline.producer import NUMBER_MAX, AttachRequest, IdempotentProducer, Outcome, Reason, RetryPolicy

Make = Callable[..., IdempotentProducer]
IMPATIENT = RetryPolicy(retries_max=2, delay_s=0.01, try_timeout_s=4.0)


async def unsettled(place: Place, one: IdempotentProducer, *bodies: str) -> None:
    place.fault("before", times=3)
    error = await failed(one.send(events(*bodies), "0"))
    assert (error.outcome, error.is_transient) == (Outcome.UNKNOWN, True)
    assert "may have been published, or not: send the same events again" in str(error)


async def test_the_same_contents_sent_again_are_stored_once(place: Place, producer: Make) -> None:
    one, made = producer(), events("a", "b")
    await unsettled(place, one, "a", "b")
    await one.send(made, "0")
    assert ([event.number for event in made], place.bodies("0")) == ([1, 2], ["a", "b"])


async def test_a_batch_whose_outcome_is_unknown_may_be_sent_again_as_new(place: Place, producer: Make) -> None:
    one = producer()
    batch = await batch_of(one, "a")
    place.fault("before", times=3)
    await failed(one.send(batch))
    assert (batch.is_published, batch.starting_sequence_number) == (False, None)
    await one.send(batch)
    assert (batch.starting_sequence_number, place.bodies("0")) == (1, ["a"])


async def test_other_contents_never_get_the_numbers_of_what_is_unsettled(place: Place, producer: Make) -> None:
    one, made = producer(), events("c", "d")
    await unsettled(place, one, "a", "b")
    await one.send(made, "0")
    assert ([event.number for event in made], place.bodies("0")) == ([3, 4], ["a", "b", "c", "d"])


async def test_what_is_unsettled_can_be_settled_by_itself(place: Place, producer: Make) -> None:
    one = producer()
    await unsettled(place, one, "a")
    assert await one.settle("0")
    assert place.bodies("0") == ["a"]
    assert not await one.settle("0")
    assert await number_of(one) == 1


async def test_where_nothing_can_be_settled_nothing_else_is_sent(place: Place, producer: Make) -> None:
    one = producer()
    await unsettled(place, one, "a")
    place.fault("before", times=3)
    error = await failed(one.send(events("b"), "0"))
    assert error.outcome is Outcome.FAILED
    assert "nothing of this send was sent: the outcome of an earlier one is unknown" in str(error)
    await one.send(events("c"), "0")
    assert place.bodies("0") == ["a", "c"]


async def test_what_is_cancelled_while_an_earlier_send_is_settled_is_not_sent(place: Place, producer: Make) -> None:
    one = producer()
    await unsettled(place, one, "a")
    batch = await batch_of(one, "b")
    place.fault("slow")
    task = asyncio.create_task(one.send(batch))
    await stored(place, "a")
    await cancelled(task)
    assert (batch.is_published, await number_of(one), place.bodies("0")) == (False, 1, ["a"])
    await one.send(batch)
    assert (batch.starting_sequence_number, place.bodies("0")) == (2, ["a", "b"])


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_numbers_wrap_within_a_batch_and_over_a_lost_answer(place: Place, producer: Make, fault: str) -> None:
    one = producer(partitions={"0": AttachRequest(group=7, number=NUMBER_MAX - 2)})
    batch, made = await batch_of(one, "a", "b", "c", "d"), events("e")
    place.fault(fault)
    await one.send(batch)
    place.fault(fault)
    await one.send(made, "0")
    assert (batch.starting_sequence_number, made[0].number) == (NUMBER_MAX - 1, 2)
    assert place.bodies("0") == list("abcde")


# By Event Hubs alone


@pytest.mark.parametrize("fault", ["cut_after", "detach_after", "lose_ack"])
@pytest.mark.parametrize("reply", ["known", "asked"])
async def test_a_lost_acknowledgement_is_made_up_for_whatever_the_service_replies(
    hub: Hub, reply: str, fault: str
) -> None:
    """Some services tell a producer that comes back how far it got, some what it has asked for."""
    hub.eventhubs.control.rules(reply=reply)
    async with IdempotentProducer(hub.broker(), retry=IMPATIENT) as one:
        await one.send(events("a"), "0")
        hub.eventhubs.control.fault(fault, times=1)
        made = events("b", "c")
        await one.send(made, "0")
        assert [event.number for event in made] == [2, 3]
        await one.send(events("d"), "0")
    assert hub.bodies("0") == list("abcd")
    assert hub.eventhubs.control.partition(HUB, "0").repeated == (reply == "asked")


@pytest.mark.parametrize("fault", ["cut", "cut_after"])
@pytest.mark.parametrize("nothing", [0, -1])
async def test_the_first_batch_survives_a_lost_link_whatever_number_the_service_begins_with(
    hub: Hub, nothing: int, fault: str
) -> None:
    hub.eventhubs.control.rules(nothing=nothing)
    async with IdempotentProducer(hub.broker(), retry=IMPATIENT) as one:
        batch = await batch_of(one, "a")
        hub.eventhubs.control.cut()
        hub.eventhubs.control.fault(fault, times=1)
        await one.send(batch)
        await one.send(events("b"), "0")
    assert (hub.bodies("0"), batch.starting_sequence_number) == (["a", "b"], nothing + 1)


@pytest.mark.parametrize("nothing", [0, -1])
async def test_a_producer_that_has_published_nothing_is_restored_from_its_snapshot(hub: Hub, nothing: int) -> None:
    hub.eventhubs.control.rules(nothing=nothing)
    async with IdempotentProducer(hub.broker(), retry=IMPATIENT) as fresh:
        await fresh.create_batch("0")
        kept, group = fresh.snapshot(), (await fresh.publishing_properties("0")).producer_group
    async with IdempotentProducer(hub.broker(), retry=IMPATIENT, snapshot=kept) as restored:
        made = events("a")
        await restored.send(made, "0")
        assert (await restored.publishing_properties("0")).producer_group == group
    assert (hub.bodies("0"), made[0].number) == (["a"], nothing + 1)


@pytest.mark.parametrize("reply", ["known", "asked"])
async def test_other_contents_after_a_lost_acknowledgement_are_not_taken_for_a_repetition(hub: Hub, reply: str) -> None:
    """As many events under the same numbers would be, and never be stored."""
    hub.eventhubs.control.rules(reply=reply)
    async with IdempotentProducer(hub.broker(), retry=RetryPolicy(retries_max=0, try_timeout_s=4.0)) as one:
        await one.send(events("a"), "0")
        hub.eventhubs.control.fault("lose_ack", times=1)
        error = await failed(one.send(events("b"), "0"))
        assert (error.outcome, error.reason) == (Outcome.UNKNOWN, Reason.SERVICE_TIMEOUT)
        made = events("c")
        await one.send(made, "0")
    assert (hub.bodies("0"), made[0].number) == (["a", "b", "c"], 3)


async def test_a_batch_that_arrives_late_is_known(hub: Hub) -> None:
    async with IdempotentProducer(hub.broker(), retry=IMPATIENT) as one:
        await one.send(events("a"), "0")
        hub.eventhubs.control.fault("delay", times=1, delay_s=6)
        await one.send(events("b"), "0")
        await until_async(lambda: hub.eventhubs.control.partition(HUB, "0").repeated, "the late one")
        await one.send(events("c"), "0")
    assert hub.bodies("0") == ["a", "b", "c"]


async def test_a_send_that_is_cancelled_twice_ends_at_once_and_stays_unsettled(hub: Hub) -> None:
    async with IdempotentProducer(hub.broker(), retry=RetryPolicy(try_timeout_s=10 * PATIENCE_S)) as one:
        await one.send(events("a"), "0")
        hub.eventhubs.control.fault("lose_ack", times=1)
        task = asyncio.create_task(one.send(events("b"), "0"))
        await stored(hub, "a", "b")
        task.cancel()
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):  # and not the time of a try, which is longer
            await cancelled(task)
        made = events("c")
        await one.send(made, "0")
    assert (hub.bodies("0"), made[0].number) == (["a", "b", "c"], 3)


async def test_an_idle_link_is_made_anew_before_it_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    async with IdempotentProducer(hub.broker()) as one:
        await one.send(events("a"), "0")
        (link,) = hub.eventhubs.control.links(hub=HUB, role="sender")
        monkeypatch.setattr(sender, "IDLE_S", 0.0)
        await one.send(events("b"), "0")
        (another,) = hub.eventhubs.control.links(hub=HUB, role="sender")
    assert link != another
    assert hub.bodies("0") == ["a", "b"]


@pytest.mark.parametrize(
    ("condition", "reason", "is_transient", "outcome"),
    [
        ("com.microsoft:server-busy", Reason.SERVICE_BUSY, True, Outcome.FAILED),
        ("com.microsoft:timeout", Reason.SERVICE_TIMEOUT, True, Outcome.UNKNOWN),
        ("amqp:internal-error", Reason.GENERAL_ERROR, True, Outcome.UNKNOWN),
        ("amqp:something-new", Reason.SERVICE_COMMUNICATION_PROBLEM, True, Outcome.UNKNOWN),
        ("amqp:resource-limit-exceeded", Reason.QUOTA_EXCEEDED, False, Outcome.FAILED),
        ("amqp:link:message-size-exceeded", Reason.MESSAGE_SIZE_EXCEEDED, False, Outcome.FAILED),
        ("amqp:not-found", Reason.RESOURCE_NOT_FOUND, False, Outcome.FAILED),
        ("amqp:unauthorized-access", Reason.GENERAL_ERROR, False, Outcome.FAILED),
        ("com.microsoft:producer-epoch-stolen", Reason.PRODUCER_DISCONNECTED, False, Outcome.FAILED),
        ("com.microsoft:out-of-order-sequence", Reason.INVALID_CLIENT_STATE, False, Outcome.FAILED),
    ],
)
async def test_each_refusal_has_a_reason_and_says_what_became_of_the_events(
    hub: Hub, condition: str, reason: Reason, is_transient: bool, outcome: Outcome
) -> None:
    async with IdempotentProducer(hub.broker(), retry=RetryPolicy(retries_max=0)) as one:
        hub.eventhubs.control.fault("refuse", times=1, condition=condition, description="the service says so")
        error = await failed(one.send(events("a"), "0"))
    assert (error.reason, error.is_transient, error.outcome) == (reason, is_transient, outcome)
    assert f"{condition}, the service says so" in str(error)
    assert f"{HUB}', partition '0'" in str(error)


@pytest.mark.parametrize(
    ("do", "condition", "outcome"),
    [
        ("detach", "amqp:link:stolen", Reason.PRODUCER_DISCONNECTED),
        ("detach", "amqp:link:detach-forced", Reason.SERVICE_COMMUNICATION_PROBLEM),
        ("hang", None, Reason.SERVICE_TIMEOUT),
        ("cut", None, Reason.SERVICE_COMMUNICATION_PROBLEM),
    ],
)
async def test_a_link_that_is_lost_with_a_batch_on_it_leaves_its_outcome_unknown(
    hub: Hub, do: str, condition: str | None, outcome: Reason
) -> None:
    timeout_s = 4.0 if do == "hang" else 20.0  # the first send has to end within it as well, on a busy machine too
    async with IdempotentProducer(hub.broker(), retry=RetryPolicy(retries_max=0, try_timeout_s=timeout_s)) as one:
        await one.send(events("a"), "0")
        hub.eventhubs.control.fault(do, times=1, condition=condition)
        error = await failed(one.send(events("b"), "0"))
    assert (error.reason, error.outcome) == (outcome, Outcome.UNKNOWN)


async def test_what_cannot_be_reached_is_told_with_what_to_check(hub: Hub) -> None:
    async with IdempotentProducer(hub.broker(), retry=RetryPolicy(retries_max=0, try_timeout_s=5)) as one:
        missing = await failed(one.send(events("a"), "9"))
        assert "partition '9'" in str(missing)
        assert not missing.is_transient
        hub.eventhubs.control.fault("throttle", of="attach.sender", times=1)
        busy = await failed(one.send(events("a"), "1"))
        assert (busy.outcome, busy.is_transient) == (Outcome.FAILED, True)


async def test_without_idempotence_the_service_routes_by_turn_or_by_key(hub: Hub) -> None:
    async with IdempotentProducer(hub.broker(), idempotent=False) as one:
        batch = await one.create_batch(key="k")
        for event in events("a", "b"):
            assert batch.try_add(event)
        await one.send(batch)
        await one.send(events("c"), key="k")
        await one.send(events("d"))
        made = events("e")
        await one.send(made, "2")
        assert (batch.is_published, batch.starting_sequence_number, made[0].number) == (True, None, None)
    found = [event for name in "0123" for event in hub.eventhubs.control.events(HUB, name)]
    assert sorted((event.body, event.key or "", event.producer) for event in found) == [
        *(("a", "k", None), ("b", "k", None), ("c", "k", None), ("d", "", None), ("e", "", None))
    ]
    assert hub.bodies("2")[-1] == "e"


async def test_a_crash_before_the_answer_is_made_up_for_by_a_snapshot_and_the_same_batch(hub: Hub) -> None:
    hub.eventhubs.control.rules(reply="asked")
    async with IdempotentProducer(hub.broker()) as crashed:
        await crashed.send(events("a"), "0")
        kept = crashed.snapshot()
        await crashed.send(events("b", "c"), "0")
    async with IdempotentProducer(hub.broker(), snapshot=kept) as restored:
        made = events("b", "c")
        await restored.send(made, "0")
        assert [event.number for event in made] == [2, 3]
    assert hub.bodies("0") == ["a", "b", "c"]
