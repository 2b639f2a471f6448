"""A partition of the wire server of Event Hubs: its numbers, what it forgets, where a position lies."""

from __future__ import annotations

import pytest

from leasehold_emulators.eventhubs.messages import Event, Numbered, data_event
from leasehold_emulators.eventhubs.namespace import Hub
from leasehold_emulators.eventhubs.partition import Partition
from leasehold_emulators.eventhubs.producers import Producer
from leasehold_emulators.eventhubs.selector import LATEST, Position, position

SELECTOR = "amqp.annotation.x-opt-"


def filled(count: int, events_max: int | None = None) -> Partition:
    partition = Partition(hub="hub", id="0", events_max=events_max)
    for number in range(count):
        partition.append([data_event(b"%d" % number)], 1000 + number)
    return partition


def numbered(first: int, count: int) -> list[Event]:
    return [Event(b"\x00\x53\x75\xa0\x00", numbered=Numbered(7, 0, first + i)) for i in range(count)]


def test_what_a_partition_forgets_keeps_the_numbers_and_offsets_of_the_rest() -> None:
    whole, short = filled(10), filled(10, events_max=3)
    assert (short.first, short.end) == (7, 10)
    assert short.messages == whole.messages[7:]
    assert short.offsets == whole.offsets[7:]
    assert (short.last_offset, short.size_bytes) == (whole.last_offset, whole.size_bytes)


def test_partitions_that_a_hub_grows_by_forget_as_the_others_do() -> None:
    hub = Hub(name="hub", created_ms=0, groups=set(), events_max=2)
    hub.grow(1)
    hub.grow(3)
    hub.grow(2)
    assert [(each.id, each.events_max) for each in hub.partitions] == [("0", 2), ("1", 2), ("2", 2)]


@pytest.mark.parametrize(
    ("where", "number"),
    [
        (Position(by="number", value=7), 8),
        (Position(by="number", value=7, is_inclusive=True), 7),
        (Position(by="number", value=2), 5),  # forgotten
        (Position(by="number", value=100), 101),  # to come
        (Position(by="time", value=1006), 7),
        (Position(by="time", value=1006, is_inclusive=True), 6),
        (Position(by="time", value=0), 5),
        (Position(by="offset", value=-1), 5),
        (LATEST, 10),
    ],
)
def test_a_position_is_the_first_event_that_it_lets_through(where: Position, number: int) -> None:
    partition = filled(10)
    partition.trim(5)
    assert partition.number_at(where) == number


def test_an_offset_is_where_the_event_behind_it_begins() -> None:
    partition = filled(10)
    for number, offset in enumerate(partition.offsets):
        assert partition.number_at(Position(by="offset", value=offset)) == number + 1
        assert partition.number_at(Position(by="offset", value=offset, is_inclusive=True)) == number


def test_time_in_a_partition_never_goes_back() -> None:
    partition = filled(1)
    partition.append([data_event(b"x")], 5)
    assert list(partition.times_ms) == [1000, 1000]


def test_the_numbers_of_idempotent_events_are_known_until_they_are_forgotten() -> None:
    partition = filled(2)
    partition.producers[7] = Producer(id=7, level=0, last=0x7FFFFFFE)
    batch = [*numbered(0x7FFFFFFF, 1), *numbered(0, 2)]
    assert partition.publish(batch, 7, 2000) is None
    partition.append([data_event(b"x")], 2000)
    assert [partition.numbered(number) for number in range(6)] == [
        *(None, None, Numbered(7, 0, 0x7FFFFFFF), Numbered(7, 0, 0), Numbered(7, 0, 1), None)
    ]
    partition.trim(5)
    assert partition.runs == []


def test_selectors_are_read_as_the_sdks_write_them() -> None:
    assert position(f"{SELECTOR}offset > '-1'") == Position(by="offset", value=-1)
    assert position(f"{SELECTOR}sequence-number >= '7'") == Position(by="number", value=7, is_inclusive=True)
    assert position(f"{SELECTOR}enqueued-time > '1700'") == Position(by="time", value=1700)
    assert position(f"{SELECTOR}offset > '@latest'") == LATEST
    for wrong in ("", f"{SELECTOR}offset < '1'", f"{SELECTOR}offset > 'x'", "offset > '1'"):
        with pytest.raises(ValueError, match=r"filter|invalid literal"):
            position(wrong)
