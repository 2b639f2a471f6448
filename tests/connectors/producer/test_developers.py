"""What developers should be able to do: the use cases of the design proposal for idempotent publishing, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from connectors.producer.conftest import Place
from connectors.producer.parts import batch_of, cancelled, events, failed, number_of, stored

from leasehold.pipeline.producer import (
    AlreadyPublished,
    AttachRequest,
    BatchLocked,
    IdempotentProducer,
    Outcome,
    OutgoingEvent,
    PublishError,
    Reason,
)

Make = Callable[..., IdempotentProducer]


async def test_a_producer_for_idempotent_publishing_can_be_created(producer: Make) -> None:
    one = producer()
    assert one.is_idempotent
    assert not one.is_closed


@pytest.mark.parametrize("is_on", [True, False])
async def test_idempotence_can_be_neither_disabled_nor_enabled_after_creation(producer: Make, is_on: bool) -> None:
    one = producer(idempotent=is_on)
    with pytest.raises(AttributeError):
        one.is_idempotent = not is_on  # type: ignore[misc]
    assert (await one.publishing_properties("0")).is_idempotent is is_on


async def test_only_idempotent_publishing_is_supported_where_it_is_enabled(place: Place, producer: Make) -> None:
    one = producer()
    for sending in (one.send(events("a")), one.send(events("a"), key="k"), one.send(events("a"), "0", key="k")):
        with pytest.raises(ValueError, match="idempotent publishing goes to a partition"):
            await sending
    for creating in (one.create_batch(), one.create_batch(key="k"), one.create_batch("0", key="k")):
        with pytest.raises(ValueError, match="create a producer with idempotent=False"):
            await creating
    assert place.bodies("0") == []


async def test_what_is_asked_for_in_partitions_goes_with_idempotence_alone(place: Place) -> None:
    with pytest.raises(ValueError, match="require idempotent=True"):
        IdempotentProducer(place.broker(), idempotent=False, partitions={"0": AttachRequest()})


async def test_any_partition_can_be_published_to_and_none_influences_another(place: Place, producer: Make) -> None:
    one = producer()
    await one.send(events("a", "b"), "0")
    place.fault("fatal")
    await failed(one.send(events("x"), "1"))
    await asyncio.gather(*(one.send(events(f"c{name}"), name) for name in "0123"))
    assert [place.bodies(name) for name in "0123"] == [["a", "b", "c0"], ["c1"], ["c2"], ["c3"]]
    assert [await number_of(one, name) for name in "0123"] == [3, 1, 1, 1]


async def test_events_and_batches_are_created_without_a_thought_of_numbers(producer: Make) -> None:
    one = producer()
    event = OutgoingEvent(body=b"a", properties={"x": "y"})
    first, second = await batch_of(one, "first"), await batch_of(one, "second")
    assert (event.number, first.starting_sequence_number) == (None, None)
    await one.send(second)
    await one.send(first)
    assert (second.starting_sequence_number, first.starting_sequence_number) == (1, 2)


async def test_a_published_batch_tells_the_numbers_of_all_its_events(place: Place, producer: Make) -> None:
    one = producer()
    await one.send(await batch_of(one, "a", "b"))
    batch = await batch_of(one, "c", "d", "e")
    await one.send(batch)
    assert (batch.starting_sequence_number, len(batch)) == (3, 3)
    assert place.bodies("0") == list("abcde")


async def test_each_event_of_a_published_set_tells_its_number(place: Place, producer: Make) -> None:
    one, made = producer(), events("a", "b", "c")
    await one.send(made, "0")
    assert [event.number for event in made] == [1, 2, 3]
    assert place.bodies("0") == list("abc")


async def test_success_is_told_and_failure_raised(place: Place, producer: Make) -> None:
    one = producer()
    await one.send(events("a"), "0")
    place.fault("fatal")
    error = await failed(one.send(events("b"), "0"))
    assert (error.is_transient, error.outcome) == (False, Outcome.FAILED)
    assert place.bodies("0") == ["a"]


@pytest.mark.parametrize("fault", ["before", "after", "busy"])
async def test_transient_errors_are_retried_under_the_same_numbers(place: Place, producer: Make, fault: str) -> None:
    one, made = producer(), events("b", "c")
    await one.send(events("a"), "0")
    place.fault(fault, times=2)
    await one.send(made, "0")
    await one.send(events("d"), "0")
    assert [event.number for event in made] == [2, 3]
    assert place.bodies("0") == list("abcd")


async def test_a_transient_error_that_outlasts_all_retries_is_told_with_what_to_do(
    place: Place, producer: Make
) -> None:
    one = producer()
    await one.send(events("a"), "0")
    place.fault("busy", times=3)
    error = await failed(one.send(events("b"), "0"))
    assert error.is_transient
    assert (error.outcome, error.reason in (Reason.SERVICE_BUSY, Reason.SERVICE_COMMUNICATION_PROBLEM)) == (
        "failed",
        True,
    )
    assert "try again" in str(error)
    assert "partition" in str(error) or "locked" in str(error)


async def test_a_fatal_error_is_not_retried(place: Place, producer: Make) -> None:
    one = producer()
    place.fault("fatal")
    await failed(one.send(events("a"), "0"))
    await one.send(events("b"), "0")  # the fault was for one try alone
    assert place.bodies("0") == ["b"]


async def test_a_fatal_error_of_numbers_says_that_the_producer_has_to_be_made_anew(
    place: Place, producer: Make
) -> None:
    one = producer()
    await one.send(events("a", "b"), "0")
    twin = producer(snapshot=one.snapshot())  # publishes under our very numbers: what must not be
    await twin.send(events("c", "d", "e"), "0")
    error = await failed(one.send(events("x"), "0"))
    assert (error.reason, error.is_transient) == (Reason.INVALID_CLIENT_STATE, False)
    assert "not safe to continue publishing to this partition" in str(error)
    assert "make a new one" in str(error)
    again = await failed(one.send(events("y"), "0"))
    assert again.reason is Reason.INVALID_CLIENT_STATE
    await one.send(events("z"), "1")
    assert (place.bodies("0"), place.bodies("1")) == (list("abcde"), ["z"])


async def test_a_batch_that_failed_is_as_if_it_had_never_been_sent(place: Place, producer: Make) -> None:
    one = producer()
    batch = await batch_of(one, "a")
    place.fault("fatal")
    await failed(one.send(batch))
    assert batch.starting_sequence_number is None
    await one.send(events("first"), "0")
    assert batch.try_add(OutgoingEvent(body=b"b"))
    await one.send(batch)
    assert (batch.starting_sequence_number, place.bodies("0")) == (2, ["first", "a", "b"])


async def test_events_that_failed_can_be_sent_again_in_other_sets(place: Place, producer: Make) -> None:
    one, made = producer(), events("a", "b", "c")
    place.fault("fatal")
    await failed(one.send(made, "0"))
    assert [event.number for event in made] == [None] * 3
    await one.send(made[2:], "0")
    await one.send(made[:2], "0")
    assert ([event.number for event in made], place.bodies("0")) == ([2, 3, 1], ["c", "a", "b"])


async def test_cancelled_before_acceptance_is_a_failure(place: Place, producer: Make) -> None:
    one = producer()
    await one.send(events("a"), "0")
    place.fault("slow")
    running = asyncio.create_task(one.send(events("b"), "0"))
    made = events("c")
    waiting = asyncio.create_task(one.send(made, "0"))
    await asyncio.sleep(0)
    await cancelled(waiting)
    await running
    assert (made[0].number, place.bodies("0")) == (None, ["a", "b"])
    await one.send(made, "0")
    assert (made[0].number, place.bodies("0")) == (3, ["a", "b", "c"])


async def test_cancelled_after_acceptance_is_a_success(place: Place, producer: Make) -> None:
    """The cancellation goes on all the same (decision 0010): what was published says so itself."""
    one = producer()
    batch = await batch_of(one, "a")
    place.fault("slow")
    task = asyncio.create_task(one.send(batch))
    await stored(place, "a")
    await cancelled(task)
    assert (batch.is_published, batch.starting_sequence_number) == (True, 1)
    await one.send(events("b"), "0")
    assert place.bodies("0") == ["a", "b"]


# Advanced developers


async def test_the_state_of_a_partition_can_be_asked_for(producer: Make) -> None:
    one = producer(partitions={"0": AttachRequest(group=7, level=3)})
    before = await one.publishing_properties("0")
    assert (before.partition, before.is_idempotent) == ("0", True)
    assert (before.producer_group, before.owner_level, before.last_published_number) == (7, 3, 0)
    await one.send(events("a", "b"), "0")
    assert await number_of(one) == 2


async def test_where_numbers_start_can_be_chosen_and_is_the_broker_s_choice_otherwise(
    place: Place, producer: Make
) -> None:
    one = producer(partitions={"1": AttachRequest(group=8675309, level=3, number=121)})
    made, others = events("a"), events("b")
    await one.send(made, "1")
    await one.send(others, "0")
    assert (made[0].number, others[0].number) == (122, 1)
    told = await one.publishing_properties("1")
    assert (told.producer_group, told.owner_level, told.last_published_number) == (8675309, 3, 122)


@pytest.mark.parametrize(
    "asked", [{"group": -1}, {"group": 2**63}, {"level": -1}, {"level": 2**15}, {"number": -2}, {"number": 2**31}]
)
def test_what_no_broker_can_grant_is_refused_at_once(asked: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"has to be a number from (0|-1) to"):
        AttachRequest(**asked)


async def test_a_published_event_is_refused_as_new(place: Place, producer: Make) -> None:
    one, made = producer(), events("a", "b")
    await one.send(made, "0")
    for again in (made, [*events("c"), made[1]]):
        with pytest.raises(AlreadyPublished, match="make a new event"):
            await one.send(again, "1")
    assert (place.bodies("0"), place.bodies("1")) == (["a", "b"], [])
    assert isinstance(AlreadyPublished("x"), PublishError)


async def test_an_event_is_in_one_send_at_a_time_and_once(place: Place, producer: Make) -> None:
    one, made = producer(), events("a")
    place.fault("slow")
    sending = asyncio.create_task(one.send(made, "0"))
    await stored(place, "a")
    with pytest.raises(BatchLocked, match="is being published: make an event for each time"):
        await one.send([*events("b"), *made], "1")
    await sending
    twice = events("c")
    with pytest.raises(BatchLocked, match="is in it twice"):
        await one.send(twice * 2, "0")
    place.fault("fatal")
    await failed(one.send(twice, "0"))
    await one.send(twice, "0")
    assert ([made[0].number, twice[0].number], place.bodies("0"), place.bodies("1")) == ([1, 2], ["a", "c"], [])
