"""Ranges of a hub: what executors get, whose events they take, and what they refuse. Without a service."""

from __future__ import annotations

import pickle
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from leasehold.leases.stores.blob.checkpoints import Checkpoint, checkpoint_of
from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.amqp.management import PartitionExtent
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed, EventHubsRanges
from leasehold.pipeline.errors import FeedError, FeedUnavailable
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.ranges import EventRange, RangeReads, range_events_for

SECRET = "c2VjcmV0"
VARIABLE = "LEASEHOLD_TEST_HUB"


def string(host: str = "bank.servicebus.windows.net", end: str = "") -> str:
    return f"Endpoint=sb://{host}/;SharedAccessKeyName=reader;SharedAccessKey={SECRET}{end}"


def feed(**options: Any) -> EventHubsChangeFeed:
    usual = {"executors_group": "executors", "executors_env": VARIABLE}
    return EventHubsChangeFeed(account_of(connection_string=string(), event_hub="raw"), **usual | options)


def reader(**options: Any) -> EventHubsRanges:
    found = feed(**options).range_reader()
    assert isinstance(found, EventHubsRanges)
    return found


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, string())


@pytest.mark.parametrize(
    ("options", "is_there"),
    [({}, True), ({"executors_group": None}, False), ({"executors_env": None}, False)],
)
def test_executors_read_with_a_group_and_a_variable(options: dict[str, Any], is_there: bool) -> None:
    assert (feed(**options).range_reader() is not None) == is_there


def test_with_an_identity_executors_need_no_variable() -> None:
    account = account_of(namespace="bank.servicebus.windows.net", event_hub="raw", identity="1f")
    found = EventHubsChangeFeed(account, executors_group="executors").range_reader()
    assert isinstance(found, EventHubsRanges)
    assert (found.variable, found.account.identity) == (None, "1f")
    assert found._own_account() == account


def test_the_connection_string_stays_with_the_host() -> None:
    sent = pickle.dumps(reader())
    assert SECRET.encode() not in sent
    assert b"Endpoint" not in sent
    assert VARIABLE.encode() in sent


@pytest.mark.parametrize("value", [string(), string(end=";EntityPath=raw"), string("BANK.servicebus.windows.net")])
def test_executors_use_the_connection_string_of_their_variable(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert reader()._own_account().connection_string == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", f"variable {VARIABLE} of Spark's executors is not set"),
        ("nonsense", f"variable {VARIABLE} of Spark's executors: `connection_string` must look like"),
        (
            string("other.servicebus.windows.net"),
            "is for event hub other.servicebus.windows.net/raw, and the feed reads bank",
        ),
        (string(end=";EntityPath=other"), "name two hubs"),
    ],
)
def test_a_variable_that_leads_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch, value: str, expected: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(FeedError, match=expected) as refused:
        list(reader().read_range("0", EventRange(None, "0", 1)))
    assert SECRET not in str(refused.value)


def extent(monkeypatch: pytest.MonkeyPatch, first: int, last: int, *, is_empty: bool = False) -> None:
    found = PartitionExtent(first=first, last=last, offset="x", time_ms=0, is_empty=is_empty)

    async def read_extent(*_: object) -> PartitionExtent:
        return found

    monkeypatch.setattr("leasehold.pipeline.connectors.eventhubs.amqp.management.Management.read_extent", read_extent)


@pytest.mark.parametrize(
    ("start", "events_max", "range_events", "expected"),
    [
        (None, 100, 50, [(None, "49", 50), ("49", "99", 50)]),
        ("9@x", 1000, 70, [("9@x", "79", 70), ("79", "149", 70), ("149", "199@x", 50)]),
        (
            "99",
            1000,
            1,
            [("99", "119", 20), *((str(n), str(n + 20), 20) for n in range(119, 179, 20)), ("179", "199@x", 20)],
        ),
        ("198", 1000, 10, [("198", "199@x", 1)]),
        ("199", 1000, 10, []),
        ("200", 1000, 10, []),
        ("@x", 1000, 10, []),
    ],
)
async def test_ranges_are_cut_by_sequence_number_into_five_at_most(
    monkeypatch: pytest.MonkeyPatch,
    start: str | None,
    events_max: int,
    range_events: int,
    expected: list[tuple[str | None, str, int]],
) -> None:
    extent(monkeypatch, 0, 199)
    found = await feed().plan_ranges("0", start, events_max, range_events)
    assert [each[:3] for each in found] == expected


async def test_checkpoint_blobs_follow_when_executors_have_read_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    extent(monkeypatch, 0, 199)
    (found,) = await feed().plan_ranges("0", "9@y", 1000, 1000)
    assert checkpoint_of(found.to, 0) == Checkpoint(generation=0, sequence=199, offset="x")


async def test_what_retention_passed_is_left_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    extent(monkeypatch, 50, 199)
    assert await feed().plan_ranges("0", "48", 1000, 10) == []
    assert await feed().plan_ranges("0", "49", 1000, 10) != []
    extent(monkeypatch, 50, 199, is_empty=True)
    assert await feed().plan_ranges("0", "49", 1000, 10) == []


async def test_a_service_that_does_not_answer_is_left_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> PartitionExtent:
        raise FeedUnavailable("busy")

    monkeypatch.setattr("leasehold.pipeline.connectors.eventhubs.amqp.management.Management.read_extent", refuse)
    assert await feed().plan_ranges("0", None, 1000, 10) == []


def delivers(monkeypatch: pytest.MonkeyPatch, *pages: Sequence[int]) -> None:
    """The feed on an executor yields these sequence numbers."""

    async def read(self: EventHubsChangeFeed, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        for numbers in pages:
            events = EVENT_SCHEMA.empty_table().to_pydict() | {
                "sequence": numbers,
                "partition": [partition] * len(numbers),
            }
            columns = [pa.array(events[field.name] or [None] * len(numbers), field.type) for field in EVENT_SCHEMA]
            yield Page(pa.Table.from_arrays(columns, schema=EVENT_SCHEMA), str(numbers[-1]))
        raise AssertionError("it reads on")

    monkeypatch.setattr(EventHubsChangeFeed, "open", read)


@pytest.mark.parametrize("pages", [[[4, 5], [6, 7]], [[4, 5], [6, 7, 8, 9]], [[4, 5, 6, 7, 9]]])
def test_what_follows_the_range_is_not_yielded(monkeypatch: pytest.MonkeyPatch, pages: list[list[int]]) -> None:
    delivers(monkeypatch, *pages)
    tables = list(reader().read_range("0", EventRange("3", "7", 4)))
    assert [number for table in tables for number in table["sequence"].to_pylist()] == [4, 5, 6, 7]


@pytest.mark.parametrize(
    "pages", [[[5, 6, 7]], [[4, 6, 7]], [[4, 5], [7]], [[4, 5, 6, 8]], [[8, 9]], [[4, 5, 5, 6, 7]]]
)
def test_a_gap_is_not_read_over(monkeypatch: pytest.MonkeyPatch, pages: list[list[int]]) -> None:
    delivers(monkeypatch, *pages, [8])
    with pytest.raises(FeedUnavailable, match="lacks events after"):
        list(reader().read_range("0", EventRange("3", "7", 4)))


@pytest.mark.parametrize(("start", "to"), [("@x", "7"), ("3", "@x")])
def test_a_range_has_sequence_numbers(start: str, to: str) -> None:
    with pytest.raises(FeedError, match="needs sequence numbers"):
        list(reader().read_range("0", EventRange(start, to, 4)))


async def test_a_job_that_reads_ranges_twice_has_no_more_than_five_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    extent(monkeypatch, 0, 999)
    events = range_events_for(reader(), RangeReads(2), events_max=500, range_events=1)
    assert len(await feed().plan_ranges("0", "0", 500, events)) == 2
