"""Each step of "Client behavior" in the design proposal for idempotent publishing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from connectors.producer.conftest import Place
from connectors.producer.parts import batch_of, cancelled, events, failed, number_of, stored

from leasehold.pipeline.producer import (
    NUMBER_MAX,
    AlreadyPublished,
    AttachRequest,
    BatchLocked,
    IdempotentProducer,
    OutgoingEvent,
    Reason,
)

Make = Callable[..., IdempotentProducer]

# A new client is created


async def test_a_link_s_reply_becomes_the_state_of_its_partition(producer: Make) -> None:
    one, other = producer(), producer()
    told, theirs = await one.publishing_properties("0"), await other.publishing_properties("0")
    assert told.producer_group is not None
    assert told.producer_group != theirs.producer_group
    assert (told.owner_level, told.last_published_number) == (0, 0)


# A batch, an event


async def test_a_new_batch_is_unlocked_and_belongs_to_a_partition(producer: Make) -> None:
    batch = await producer().create_batch("1", bytes_max=1000)
    assert (batch.partition, len(batch), batch.bytes_max, batch.is_published) == ("1", 0, 1000, False)
    assert batch.try_add(OutgoingEvent(body=b"a"))
    assert (len(batch), 0 < batch.size_bytes < 1000) == (1, True)


async def test_a_new_event_is_unpublished_and_can_be_changed(place: Place, producer: Make) -> None:
    event = OutgoingEvent(body=b"a")
    assert event.number is None
    event.body, event.properties = b"b", {"x": "y"}
    await producer().send([event], "0")
    assert place.bodies("0") == ["b"]


async def test_an_event_in_a_batch_has_no_number_yet(producer: Make) -> None:
    event = OutgoingEvent(body=b"a")
    batch = await producer().create_batch("0")
    assert batch.try_add(event)
    assert (event.number, batch.starting_sequence_number) == (None, None)


async def test_what_fits_is_measured_with_the_largest_number(place: Place, producer: Make) -> None:
    """A batch that was filled to its limit is taken with the largest numbers there are. It has so many events that it would be
    too large, were each measured one octet too small."""
    one = producer(partitions={"0": AttachRequest(group=2**63 - 1, level=2**15 - 1, number=NUMBER_MAX - 4000)})
    batch = await one.create_batch("0")
    count = 0
    while batch.try_add(OutgoingEvent(body=b"x" * 300)):
        count += 1
    assert 2000 < count < 4000
    await one.send(batch)
    assert batch.starting_sequence_number == NUMBER_MAX - 3999
    assert len(place.bodies("0")) == count


async def test_an_event_too_large_for_any_batch_does_not_fit_an_empty_one(producer: Make) -> None:
    one = producer()
    batch = await one.create_batch("0")
    assert not batch.try_add(OutgoingEvent(body=b"x" * batch.bytes_max))
    error = await failed(one.send([OutgoingEvent(body=b"x" * batch.bytes_max)], "0"))
    assert (error.reason, error.is_transient) == (Reason.MESSAGE_SIZE_EXCEEDED, False)
    assert "publish fewer events at once, or smaller ones" in str(error)


# A batch is published


async def test_a_second_send_to_a_partition_waits_for_the_first(place: Place, producer: Make) -> None:
    one = producer()
    batches = [await batch_of(one, name) for name in "abc"]
    place.fault("slow")
    await asyncio.gather(*(one.send(batch) for batch in batches))
    assert [batch.starting_sequence_number for batch in batches] == [1, 2, 3]
    assert place.bodies("0") == ["a", "b", "c"]


async def test_a_published_batch_is_refused_as_new(place: Place, producer: Make) -> None:
    one = producer()
    batch = await batch_of(one, "a")
    await one.send(batch)
    with pytest.raises(AlreadyPublished, match="make a new one"):
        await one.send(batch)
    assert (place.bodies("0"), batch.starting_sequence_number) == (["a"], 1)


async def test_a_batch_is_locked_while_it_is_sent_and_once_it_is_published(place: Place, producer: Make) -> None:
    one = producer()
    batch = await batch_of(one, "a")
    place.fault("slow")
    sending = asyncio.create_task(one.send(batch))
    await stored(place, "a")
    for _ in range(2):
        with pytest.raises(BatchLocked, match="make a new one for further events"):
            batch.try_add(OutgoingEvent(body=b"b"))
        await sending
    assert (len(batch), place.bodies("0")) == (1, ["a"])


async def test_a_successful_send_moves_the_producer_s_state(producer: Make) -> None:
    one = producer()
    await one.send(await batch_of(one, "a", "b"))
    assert await number_of(one) == 2
    await one.send(events("c"), "0")
    assert await number_of(one) == 3


@pytest.mark.parametrize("kind", ["batch", "set"])
async def test_what_the_broker_had_before_is_published_and_not_stored_twice(
    place: Place, producer: Make, kind: str
) -> None:
    """A known duplicate is success: here the answer was lost, so the very same is sent, or asked about, again."""
    one, made = producer(), events("a", "b")
    place.fault("after")
    await one.send(await batch_of(one, "a", "b") if kind == "batch" else made, *([] if kind == "batch" else ["0"]))
    assert (place.bodies("0"), await number_of(one)) == (["a", "b"], 2)


@pytest.mark.parametrize("kind", ["batch", "set"])
async def test_a_cancelled_send_leaves_nothing_behind(place: Place, producer: Make, kind: str) -> None:
    one, made = producer(), events("b")
    batch = await batch_of(one, "b")
    place.fault("slow")
    first = asyncio.create_task(one.send(events("a"), "0"))
    await stored(place, "a")
    await cancelled(asyncio.create_task(one.send(batch) if kind == "batch" else one.send(made, "0")))
    await first
    assert (made[0].number, batch.starting_sequence_number, await number_of(one)) == (None, None, 1)
    assert batch.try_add(OutgoingEvent(body=b"c"))
    await one.send(batch)
    await one.send(made, "0")
    assert (batch.starting_sequence_number, made[0].number) == (2, 4)
    assert place.bodies("0") == ["a", "b", "c", "b"]


@pytest.mark.parametrize("kind", ["batch", "set"])
@pytest.mark.parametrize("fault", ["busy", "fatal"])
async def test_a_failed_send_leaves_the_producer_s_state_as_it_was(
    place: Place, producer: Make, kind: str, fault: str
) -> None:
    one, made = producer(), events("b")
    await one.send(events("a"), "0")
    batch = await batch_of(one, "b")
    place.fault(fault, times=3)
    await failed(one.send(batch) if kind == "batch" else one.send(made, "0"))
    assert (await number_of(one), batch.starting_sequence_number, made[0].number) == (1, None, None)
    place.heal()
    await one.send(batch if kind == "batch" else made, *([] if kind == "batch" else ["0"]))
    assert (await number_of(one), place.bodies("0")) == (2, ["a", "b"])


# A set of events is published


async def test_a_set_with_an_event_that_was_published_is_refused_whole(place: Place, producer: Make) -> None:
    one, old, new = producer(), events("a"), events("b")
    await one.send(old, "0")
    with pytest.raises(AlreadyPublished):
        await one.send([*new, *old], "0")
    assert (new[0].number, place.bodies("0")) == (None, ["a"])
    await one.send(new, "0")
    assert (new[0].number, place.bodies("0")) == (2, ["a", "b"])


async def test_nothing_to_publish_is_said(producer: Make) -> None:
    error = await failed(producer().send([], "0"))
    assert "add an event" in str(error)


# A link is made again


async def test_a_broken_link_is_made_again_with_the_client_s_state(place: Place, producer: Make) -> None:
    one = producer(partitions={"0": AttachRequest(group=7, level=2, number=40)})
    await one.send(events("a"), "0")
    place.fault("before")
    made = events("b")
    await one.send(made, "0")
    told = await one.publishing_properties("0")
    assert (told.producer_group, told.owner_level, told.last_published_number, made[0].number) == (7, 2, 42, 42)
    assert place.bodies("0") == ["a", "b"]


async def test_the_reply_to_a_link_overrides_the_client_s_state(place: Place, producer: Make) -> None:
    """Where it lags, the broker knows better: a producer restored from an old snapshot."""
    one = producer()
    await one.send(events("a"), "0")
    old = one.snapshot()
    await one.send(events("b", "c"), "0")
    restored = producer(snapshot=old)
    assert await number_of(restored) == 3
    await restored.send(events("d"), "0")
    assert place.bodies("0") == ["a", "b", "c", "d"]


async def test_a_state_that_the_broker_refuses_ends_the_client(place: Place, producer: Make) -> None:
    one = producer(partitions={"0": AttachRequest(group=7, level=1)})
    await one.send(events("a"), "0")
    wrong = producer(partitions={"0": AttachRequest(group=7, level=1, number=99)})
    for _ in range(2):
        error = await failed(wrong.send(events("x"), "0"))
        assert error.reason is Reason.INVALID_CLIENT_STATE
        assert "make a new one" in str(error)
    await one.send(events("b"), "0")
    assert place.bodies("0") == ["a", "b"]


async def test_another_producer_at_a_higher_level_disconnects_this_one(place: Place, producer: Make) -> None:
    one = producer(partitions={"0": AttachRequest(group=7)})
    await one.send(events("a"), "0")
    higher = producer(partitions={"0": AttachRequest(group=7, level=2)})
    await higher.send(events("b"), "0")
    for _ in range(2):
        error = await failed(one.send(events("x"), "0"))
        assert (error.reason, error.outcome, error.is_transient) == (Reason.PRODUCER_DISCONNECTED, "failed", False)
        assert "Stop publishing" in str(error)
    late = await failed(producer(partitions={"0": AttachRequest(group=7, level=1)}).send(events("y"), "0"))
    assert late.reason is Reason.PRODUCER_DISCONNECTED
    await higher.send(events("c"), "0")
    assert place.bodies("0") == ["a", "b", "c"]


# Recovering after a crash


async def test_after_a_crash_a_producer_may_begin_anew(place: Place, producer: Make) -> None:
    """Reset: what the lost one may have published is sent again, and counts twice."""
    await producer().send(events("a", "b"), "0")
    anew = producer()
    await anew.send(events("b"), "0")
    assert (await number_of(anew), place.bodies("0")) == (1, ["a", "b", "b"])


async def test_after_a_crash_a_producer_may_go_on_from_a_snapshot(place: Place, producer: Make) -> None:
    """Restored: the last batch, which nobody knows about, is sent again, and counts once."""
    crashed = producer()
    await crashed.send(events("a"), "0")
    kept = crashed.snapshot()
    await crashed.send(events("b", "c"), "0")  # and then it was gone
    restored = producer(snapshot=kept)
    assert restored.snapshot() == kept
    made = events("b", "c")
    assert (await number_of(restored)) == 3
    assert place.bodies("0") == ["a", "b", "c"]
    await restored.send(events("d"), "0")
    assert (made[0].number, place.bodies("0")) == (None, ["a", "b", "c", "d"])


async def test_a_snapshot_holds_every_partition_and_survives_being_kept(producer: Make) -> None:
    one = producer(partitions={"1": AttachRequest(group=7, level=3, number=9)})
    await one.send(events("a"), "0")
    kept = one.snapshot()
    restored = producer(snapshot=kept)
    assert restored.snapshot() == kept
    assert '"1":{"group":7,"level":3,"number":9}' in kept
    assert await number_of(restored) == 1


# The hub, and the end


async def test_hub_and_partitions_tell_of_themselves(place: Place, producer: Make) -> None:
    one = producer()
    await one.send(events("a", "b"), "0")
    assert "0" in await one.partition_ids()
    assert (await one.hub_properties()).name
    told = await one.partition_properties("0")
    assert (told.partition, told.first, told.last, told.is_empty) == ("0", 0, 1, False)
    assert one.hub_name == (await one.hub_properties()).name


async def test_a_hub_tells_when_it_was_created_and_what_its_newest_event_is(place: Place, producer: Make) -> None:
    one = producer()
    if one.namespace is None:
        pytest.skip("an embedded log has no namespace, and keeps neither offsets nor times")
    assert re.fullmatch(r"[\w.-]+(:\d+)?", one.namespace)
    created = (await one.hub_properties()).created_on
    new = await one.partition_properties("0")
    assert (new.last, new.last_offset, new.last_enqueued_time) == (-1, None, None)
    await one.send(events("a", "b"), "0")
    told = await one.partition_properties("0")
    assert created is not None
    assert told.last_enqueued_time is not None
    assert created <= told.last_enqueued_time
    assert told.last_offset is not None
    assert int(told.last_offset) > 0


async def test_a_closed_producer_refuses_everything(place: Place, producer: Make) -> None:
    one = producer()
    batch = await batch_of(one, "a")
    place.fault("slow")
    sending = asyncio.create_task(one.send(events("b"), "0"))
    await stored(place, "b")
    await one.close()
    await sending
    assert one.is_closed
    for refused in (one.send(batch), one.create_batch("0"), one.hub_properties(), one.publishing_properties("0")):
        assert (await failed(refused)).reason is Reason.CLIENT_CLOSED
    await one.close()
    assert place.bodies("0") == ["b"]
