"""Where reading begins: every start there is, and positions that lead nowhere any more."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from connectors.eventhubs.clients import HUB
from connectors.eventhubs.feeds import bodies, feed
from plugins_eventhubs import EventHubs

from leasehold.common.clock import Pauses
from leasehold.pipeline.errors import FeedError, PositionLost


async def test_the_latest_is_behind_the_last_event(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["old"])
    async with feed(eventhubs) as made:
        start = await made.start_of("0", "latest")
        eventhubs.control.append(HUB, "0", ["new"])
        assert await bodies(made, 1, "0", start) == ["new"]


async def test_the_earliest_is_the_first_event_that_retention_has_left(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", list("abcdef"))
    eventhubs.control.trim(HUB, "0", 3)
    async with feed(eventhubs) as made:
        start = await made.start_of("0", "earliest")
        assert start == "2"
        assert await bodies(made, 3, "0", start) == list("def")


async def test_the_earliest_of_a_partition_that_retention_has_emptied_is_its_next_event(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", list("abc"))
    eventhubs.control.trim(HUB, "0", 3)
    async with feed(eventhubs) as made:
        starts = [await made.start_of("0", "earliest"), await made.start_of("0", "latest")]
        eventhubs.control.append(HUB, "0", ["d"])
        for start in starts:
            assert await bodies(made, 1, "0", start) == ["d"]


async def test_a_time_is_the_first_event_at_or_after_it(eventhubs: EventHubs) -> None:
    for body in "abc":
        eventhubs.control.append(HUB, "0", [body])
        eventhubs.control.move_clock(60)
    times = [event.time_ms for event in eventhubs.control.events(HUB, "0")]
    async with feed(eventhubs) as made:
        for first, time_ms in (("abc", times[0]), ("bc", times[0] + 1), ("bc", times[1]), ("c", times[2])):
            start = await made.start_of("0", datetime.fromtimestamp(time_ms / 1000, UTC))
            assert await bodies(made, len(first), "0", start) == list(first)
        assert await made.start_of("0", datetime(2999, 1, 1, tzinfo=UTC)) == await made.latest("0")


async def test_a_partition_may_begin_at_a_position_of_its_own(eventhubs: EventHubs) -> None:
    for partition in "0123":
        eventhubs.control.append(HUB, partition, list("abc"))
    offset = eventhubs.control.events(HUB, "1")[0].offset
    positions = {"0": "0", "1": f"@{offset}", "2": f"0@{offset}"}
    async with feed(eventhubs, start_positions=positions) as made:
        for partition in "012":
            start = await made.start_of(partition, "latest")
            assert await bodies(made, 2, partition, start) == list("bc")
        assert await made.start_of("3", "latest") == await made.latest("3")


@pytest.mark.parametrize("continuation", [None, "1"])
async def test_a_position_that_retention_has_passed_is_told_with_where_to_go_on(
    eventhubs: EventHubs, continuation: str | None
) -> None:
    eventhubs.control.append(HUB, "0", list("abcdef"))
    eventhubs.control.trim(HUB, "0", 3)
    async with feed(eventhubs) as made:
        with pytest.raises(PositionLost, match=r"the first available is 3.*set the lease's position to '2'"):
            await bodies(made, 1, "0", continuation)
        assert await bodies(made, 3, "0", "2") == list("def")


async def test_retention_that_passes_a_reader_while_it_is_away_is_told(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", list("ab"))
    async with feed(eventhubs) as made:
        read = made.open("0", None)
        assert (await anext(read)).events.num_rows == 2
        eventhubs.control.fault("cut", of="attach.receiver", times=2)
        eventhubs.control.cut(role="receiver")
        eventhubs.control.append(HUB, "0", list("cde"))
        eventhubs.control.trim(HUB, "0", 4)
        with pytest.raises(PositionLost, match="deleted the events 2 to 3"):
            await anext(read)


@pytest.mark.parametrize("beyond", ["refused", "waits"])
async def test_a_position_behind_the_end_is_told_with_what_to_do(eventhubs: EventHubs, beyond: str) -> None:
    """The service refuses such a receiver. Where it lets it wait, it is told once it has stayed so."""
    eventhubs.control.rules(beyond=beyond)
    eventhubs.control.append(HUB, "0", list("ab"))
    async with feed(eventhubs, pauses=Pauses(first_s=0.01, patience_s=0.1)) as made:
        with pytest.raises(PositionLost, match="ends at 1, before the position '7'"):
            await bodies(made, 1, "0", "7")
        with pytest.raises(
            PositionLost, match=r"To read all .* PIPELINE 0 --to earliest --yes`. To skip all of them: "
        ):
            await made.lag("0", "7")
        with pytest.raises(PositionLost, match="ends at 1, before the position '7'"):
            await made.lag("0", "7")


async def test_an_offset_that_is_not_of_its_sequence_number_is_told(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", list("abcdef"))
    offset = eventhubs.control.events(HUB, "0")[0].offset
    async with feed(eventhubs) as made:
        with pytest.raises(PositionLost, match="are not of one event"):
            await bodies(made, 1, "0", f"4@{offset}")


async def test_a_position_that_the_service_does_not_take_is_told(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    async with feed(eventhubs) as made:
        with pytest.raises(FeedError):
            await bodies(made, 1, "0", "@not-an-offset")
