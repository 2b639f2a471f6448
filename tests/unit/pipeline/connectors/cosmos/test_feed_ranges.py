"""Ranges of a container: what executors get, and when they have read all of a range. Without an account."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from leasehold.common.azure import cosmos_account_of
from leasehold.pipeline.connectors.cosmos import CosmosChangeFeed, Pauses
from leasehold.pipeline.connectors.cosmos.change_feed_request import FROM_NOW, Ask, FeedAnswer
from leasehold.pipeline.connectors.cosmos.client import CosmosContainer
from leasehold.pipeline.connectors.cosmos.feed import CosmosRanges
from leasehold.pipeline.connectors.cosmos.ranges import KeyRange, PhysicalRange, lsn_of
from leasehold.pipeline.errors import FeedError, FeedUnavailable
from leasehold.pipeline.feed import PartitionEnded
from leasehold.pipeline.ranges import EventRange

KEY = "c2VjcmV0"
VARIABLE = "LEASEHOLD_TEST_KEY"
ENDPOINT = "https://bank.documents.azure.com"
PAUSES = Pauses(first_s=0.001, longest_s=0.002, patience_s=0.02)


def feed(key: str | None = KEY, **options: Any) -> CosmosChangeFeed:
    account = cosmos_account_of(endpoint=ENDPOINT, key=key, identity=None if key else "1f")
    return CosmosChangeFeed(account, "bank", "tx", **{"pauses": PAUSES, "executors_env": VARIABLE} | options)


def reader(**options: Any) -> CosmosRanges:
    found = feed(**options).range_reader()
    assert isinstance(found, CosmosRanges)
    return found


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)


def test_with_a_key_executors_read_by_a_variable_and_with_an_identity_without() -> None:
    assert feed(executors_env=None).range_reader() is None
    assert reader()._own_account() == cosmos_account_of(endpoint=ENDPOINT, key=KEY)
    found = reader(key=None, executors_env=None)
    assert (found.variable, found._own_account().identity) == (None, "1f")


def test_the_key_stays_with_the_host() -> None:
    sent = pickle.dumps(reader())
    assert KEY.encode() not in sent
    assert VARIABLE.encode() in sent


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", f"variable {VARIABLE} of Spark's executors is not set"),
        ("no key", f"variable {VARIABLE} .* must be one of"),
    ],
)
def test_a_variable_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch, value: str, expected: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(FeedError, match=expected) as refused:
        list(reader().read_range("0", EventRange(None, '"1"', 1)))
    assert "no key" not in str(refused.value)


class Service:
    """A container's range `0` with these changes, one at each LSN; it answers from replicas that have come so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lsns: Sequence[int], *replicas: int, page: int = 2) -> None:
        self.lsns, self.replicas, self.page = list(lsns), list(replicas), page
        self.asked: list[str | None] = []
        self.ranges = [PhysicalRange("0", KeyRange("", "FF"))]
        monkeypatch.setattr(CosmosContainer, "read_changes", lambda _, ask: self.read_changes(ask))
        monkeypatch.setattr(CosmosContainer, "list_ranges", lambda _: self.list_ranges())
        monkeypatch.setattr(CosmosContainer, "read_key_paths", lambda _: self.read_key_paths())

    async def list_ranges(self) -> list[PhysicalRange]:
        return self.ranges

    async def read_key_paths(self) -> tuple[str, ...]:
        return ("/account",)

    async def read_changes(self, ask: Ask) -> FeedAnswer:
        self.asked.append(ask.after)
        here = self.replicas.pop(0) if len(self.replicas) > 1 else self.replicas[0]
        headers = {"x-ms-session-token": f"0:0#{here}"}
        if ask.after == FROM_NOW:
            return FeedAnswer(304, headers | {"etag": f'"{here}"'})
        found = [lsn for lsn in self.lsns if lsn_of(ask.after) < lsn <= here][: self.page]
        if not found:
            return FeedAnswer(304, headers | {"etag": ask.after or '"0"'})
        documents = [{"id": str(lsn), "account": "a", "_lsn": lsn, "_ts": 1} for lsn in found]
        return FeedAnswer(200, headers | {"etag": f'"{found[-1]}"'}, json.dumps({"Documents": documents}).encode())


async def read(made: CosmosChangeFeed, start: str | None, to: str) -> list[int]:
    return [int(lsn) async for table in made.read_up_to("0", start, to) for lsn in table["offset"].to_pylist()]


@pytest.mark.parametrize(
    ("start", "to", "expected"),
    [
        (None, '"9"', [1, 2, 5, 6, 8]),
        (None, '"5"', [1, 2, 5]),
        ('"1"', '"6"', [2, 5, 6]),
        ('"2"', '"4"', []),
        ('"8"', '"9"', []),
        ('"9"', '"9"', []),
    ],
)
async def test_what_is_past_the_range_is_dropped(
    monkeypatch: pytest.MonkeyPatch, start: str | None, to: str, expected: list[int]
) -> None:
    Service(monkeypatch, [1, 2, 5, 6, 8, 10, 11, 12], 12)
    assert await read(feed(), start, to) == expected


async def test_a_reader_stops_at_the_first_page_past_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(monkeypatch, range(1, 100), 99)
    assert await read(feed(), '"10"', '"13"') == [11, 12, 13]
    assert service.asked == ['"10"', '"12"']


async def test_a_replica_that_lags_does_not_end_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(monkeypatch, [1, 2, 3, 8], 2, 2, 2, 5, 5, 9)
    patient = feed(pauses=replace(PAUSES, patience_s=60))
    assert await read(patient, None, '"9"') == [1, 2, 3, 8]
    assert len(service.asked) > 5


@pytest.mark.parametrize("mode", ["latest", "all_versions"])
async def test_a_range_that_no_replica_reaches_is_unavailable(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    Service(monkeypatch, [], 7)
    with pytest.raises(FeedUnavailable, match='answers up to "7", and the range ends at "9"'):
        await read(feed(mode=mode), '"1"', '"9"')


async def test_a_range_that_was_split_is_not_read_from_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(monkeypatch, [1, 2], 9)
    made = feed()
    made.remember({"0": "-FF"})
    service.ranges = [PhysicalRange("1", KeyRange("", "7F"), ("0",)), PhysicalRange("2", KeyRange("7F", "FF"), ("0",))]
    with pytest.raises(PartitionEnded):
        await read(made, None, '"2"')
    assert await made.plan_ranges("0", None, 10, 10) == []


async def test_ranges_are_cut_by_lsn_up_to_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    Service(monkeypatch, [], 9)
    made = feed()
    for start, events_max, size, expected in (
        (None, 100, 4, [(None, '"4"', 4), ('"4"', '"8"', 4), ('"8"', '"9"', 1)]),
        ('"2"', 5, 5, [('"2"', '"7"', 5)]),
        ('"9"', 5, 5, []),
        ('"12"', 5, 5, []),
    ):
        assert [each[:3] for each in await made.plan_ranges("0", start, events_max, size)] == expected


async def test_all_versions_have_no_range_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    Service(monkeypatch, [], 9)
    assert await feed(mode="all_versions").plan_ranges("0", None, 10, 10) == []
    assert await feed(mode="all_versions").plan_ranges("0", '"0"', 10, 10) != []


async def test_an_account_that_throttles_is_left_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def throttle(*_: object) -> FeedAnswer:
        return FeedAnswer(429, {"x-ms-retry-after-ms": "1"})

    Service(monkeypatch, [], 9)
    monkeypatch.setattr(CosmosContainer, "read_changes", throttle)
    assert await feed().plan_ranges("0", None, 10, 10) == []


@pytest.mark.parametrize(("mode", "expected"), [("latest", False), ("all_versions", True)])
def test_only_ranges_of_all_versions_are_the_same_whenever_they_are_read(mode: str, expected: bool) -> None:
    assert pickle.loads(pickle.dumps(reader(mode=mode))).is_repeatable is expected


def test_the_events_of_ranges_are_an_estimate() -> None:
    assert not reader().counts_events
