"""The bank over Cosmos DB: ranges are split and merged, both accounts throttle, hosts die and sleep, and balances are exact.

Starting a host takes a Spark start, so the day is lived once, and every test looks at one side of what it left.
"""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from lab.scenarios.cosmos_bank import PIPELINES, SILENT_S, TAKEOVER_S, TRANSACTIONS, CosmosBank, Step, spread
from lab.scenarios.cosmos_books import Writing, beginnings, by_partition, lag, silences, writings
from lab.scenarios.host import Host
from patience import until
from plugins_cosmos import Range, running

pytestmark = pytest.mark.timeout(950)

STORM = 0.5
"""How much of what is asked is throttled."""
CHECKPOINT_S = 5
"""How far a lease's position may be behind what its sink holds, by default."""
LATE = 7
"""Transactions that come when no host is there."""
MERGED = ("20000000000000000000000000000000-30000000000000000000000000000000", "30000000000000000000000000000000-FF")
"""The parts of the merged range."""
DOTNET_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}Z")


@dataclass
class Day:
    """What was seen. opened, closed: in Unix time, from when all leases were owned until the hosts were told to stop."""

    bank: CosmosBank
    hosts: dict[str, Host] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    exits: dict[str, int] = field(default_factory=dict)
    opened: float = 0.0
    closed: float = 0.0
    lag: Any = None
    lag_late: Any = None
    documents: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def see(self, what: str, condition: Callable[[], Any], within_s: float = 60) -> None:
        def holds() -> Any:
            self.bank.check()
            return condition()

        self.took[what] = until(holds, what)
        assert self.took[what] <= within_s, what

    def delivers(self, count: int = 50) -> None:
        before = self.bank.counted()
        until(lambda: self.bank.counted() >= before + count, f"{count} more transactions are counted")

    def is_followed(self, leases: int) -> bool:
        """Whether all that goes on after a split or a merge is leased."""
        return all(
            len(found) == leases and all(each["Owner"] for each in found)
            for found in map(self.bank.open_leases, PIPELINES)
        )

    def writings(self, pipeline: str) -> list[Writing]:
        return writings(self.bank.leases.versions("leases"), self.bank.prefix(pipeline))


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory, postgres_of_module: Any) -> Iterator[Day]:
    with running("--ranges", "4") as account, running("--ranges", "1") as leases:
        bank = CosmosBank(tmp_path_factory.mktemp("bank"), postgres_of_module.dsn, account, leases)
        day = Day(bank)
        try:
            _morning(day)
            _noon(day)
            _evening(day)
            yield day
        finally:
            bank.close()


def _morning(day: Day) -> None:
    """a and b open at once; in a storm one range is split, and two are merged."""
    bank = day.bank
    bank.open_counters()
    day.hosts = {name: bank.run(name) for name in "ab"}
    day.see("a and b share", lambda: bank.is_shared_evenly("a", "b"), within_s=120)
    day.opened = time.time()
    day.delivers()
    with bank.storm(STORM):
        bank.bank.split("transactions", "1", completing=2)
        day.see("the split is followed", lambda: day.is_followed(5))
        bank.bank.merge("transactions", "2", "3", completing=2)
        day.see("the merge is followed", lambda: {"2", "3"}.isdisjoint(_tokens(bank.open_leases("balances"))))
        day.delivers()


def _noon(day: Day) -> None:
    """b dies in a storm, and comes back; a sleeps past its leases, and wakes."""
    bank = day.bank
    with bank.storm(STORM):
        day.hosts["b"].send(signal.SIGKILL)
        day.see("a has what b left", lambda: bank.is_shared_evenly("a"))
    day.hosts["b again"] = bank.run("b")
    day.see("b is back", lambda: bank.is_shared_evenly("a", "b"), within_s=120)
    day.hosts["a"].send(signal.SIGSTOP)
    day.see("b has a's leases while a sleeps", lambda: bank.is_shared_evenly("b"))
    day.delivers(20)
    day.hosts["a"].send(signal.SIGCONT)
    day.see("a carries on", lambda: bank.is_shared_evenly("a", "b"))


def _is_level(day: Day) -> bool:
    day.lag = day.bank.told("lag")
    return bool(day.lag["events"] == 0)


def _evening(day: Day) -> None:
    """Everything is booked and counted, the hosts go home, and somebody is late."""
    bank = day.bank
    bank.close_counters()
    day.see("all is delivered", bank.is_delivered, within_s=120)
    day.see("the leases say so too", lambda: _is_level(day), within_s=3 * CHECKPOINT_S)
    day.closed = time.time()
    for name in ("a", "b again"):
        day.hosts[name].send(signal.SIGTERM)
    day.exits = {name: day.hosts[name].ended(60) for name in ("a", "b again")}
    day.documents = {pipeline: bank.documents(pipeline) for pipeline in PIPELINES}
    for number, account in enumerate(spread(LATE)):
        document = {"id": f"late-{number}", "account": account, "kind": "deposit", "amount": 0.01}
        bank.transactions.create_item({**document, "status": "booked", "version": 1})
    day.lag_late = bank.told("lag")


def _tokens(documents: list[dict[str, Any]]) -> set[str]:
    return {document["LeaseToken"] for document in documents}


def _opens(document: dict[str, Any]) -> bool:
    return not document["leasehold"].get("closed")


# What came of it


def test_balances_are_exact_to_the_cent(day: Day) -> None:
    value: Counter[str] = Counter()
    events: Counter[str] = Counter()
    for transaction in day.bank.written.values():
        assert transaction.status == "booked"
        value[transaction.account] += transaction.value  # type: ignore[assignment]
        events[transaction.account] += 1
    assert sum(events.values()) >= TRANSACTIONS
    assert len(events) >= 5
    assert day.bank.balances() == {account: (Decimal(value[account]), events[account]) for account in events}


def test_a_version_is_delivered_once_in_order_and_the_last_one_in_any_case(day: Day) -> None:
    written = {
        (one["id"], one["body"]["version"]): one["lsn"]
        for one in day.bank.bank.versions("transactions")
        if not one["id"].startswith("late")
    }
    delivered = [((name, version), lsn) for _, lsn, name, version in day.bank.versions()]
    assert Counter(key for key, _ in delivered).most_common(1)[0][1] == 1
    assert {key: written.get(key) for key, _ in delivered} == dict(delivered)
    last: dict[str, int] = {}
    for (name, version), _ in delivered:
        assert version > last.get(name, 0)
        last[name] = version
    assert last == {name: transaction.version for name, transaction in day.bank.written.items()}
    assert max(last.values()) > 1


def test_batches_are_contiguous_and_epochs_never_go_back_across_splits_and_merges(day: Day) -> None:
    begin = {pipeline: beginnings(day.writings(pipeline)) for pipeline in PIPELINES}
    parts: dict[tuple[str, str], list[Step]] = {}
    for step in day.bank.steps():
        parts.setdefault((step.pipeline, step.partition), []).append(step)
    for key, steps in parts.items():
        assert steps[0].start == begin[key[0]].get(key[1]), key
        for before, after in pairwise(steps):
            assert after.start == before.to, key
            assert after.epoch >= before.epoch, key
    assert {partition for _, partition in parts} == {*"012345", *MERGED}


def test_every_host_delivered(day: Day) -> None:
    assert {(step.pipeline, step.owner) for step in day.bank.steps()} == {(p, host) for p in PIPELINES for host in "ab"}


# Who owned what


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_no_part_of_the_container_is_without_a_live_owner_for_longer_than_is_promised(day: Day, pipeline: str) -> None:
    found = silences(day.writings(pipeline), day.opened, day.closed)
    assert (found[0].lasted_s, found) <= (SILENT_S, found)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_an_epoch_has_one_owner_and_nothing_goes_back(day: Day, pipeline: str) -> None:
    for partition, history in by_partition(day.writings(pipeline)).items():
        owners: dict[int, set[Any]] = {}
        for each in history:
            if each.owner:
                owners.setdefault(each.epoch, set()).add((each.owner, each.incarnation))
        assert max(map(len, owners.values()), default=0) <= 1, partition
        for before, after in pairwise(history):
            assert (after.epoch, after.tick) >= (before.epoch, before.tick), partition
            assert _lsn(after.continuation) >= _lsn(before.continuation), partition


def test_what_a_dead_or_sleeping_host_owned_is_taken_in_time(day: Day) -> None:
    assert day.took["a has what b left"] <= TAKEOVER_S
    assert day.took["b has a's leases while a sleeps"] <= TAKEOVER_S
    assert day.hosts["a"].said("lease released") > 0


def test_hosts_that_are_told_to_stop_exit_with_0_and_release(day: Day) -> None:
    assert day.exits == {"a": 0, "b again": 0}
    assert {document["Owner"] for documents in day.documents.values() for document in documents} == {None}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("bank", {"feed.latest", "document.create"}), ("leases", {"documents.query", "document.replace"})],
)
def test_both_accounts_throttled(day: Day, name: str, kinds: set[str]) -> None:
    statistics = getattr(day.bank, name).statistics()
    assert kinds <= {one["kind"] for one in statistics if one["statuses"].get("429")}


# How far it got


def test_lag_is_0_when_all_is_delivered(day: Day) -> None:
    assert (day.lag["events"], day.lag["unknown"]) == (0, 0)
    assert {one["pipeline"] for one in day.lag["partitions"]} == set(PIPELINES)


def test_lag_of_what_comes_when_nobody_is_there_is_the_account_s_own_count(day: Day) -> None:
    versions, ranges = day.bank.bank.versions("transactions"), day.bank.bank.ranges("transactions")
    for pipeline in PIPELINES:
        told = {one["partition"]: one["events"] for one in day.lag_late["partitions"] if one["pipeline"] == pipeline}
        expected = {
            document["LeaseToken"]: lag(versions, ranges, *_bounds(document), document["ContinuationToken"])
            for document in day.documents[pipeline]
            if _opens(document)
        }
        assert told == expected
        assert sum(told.values()) >= LATE


# What .NET sees


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_lease_documents_are_as_dotnet_writes_them(day: Day, pipeline: str) -> None:
    ranges = {each.id: each for each in day.bank.bank.ranges("transactions")}
    for document in day.documents[pipeline]:
        token = document["LeaseToken"]
        assert document["id"] == f"{day.bank.prefix(pipeline)}..{token}"
        assert document["version"] == (1 if "-" in token else 0)
        assert document["Mode"] == "Incremental Feed"
        assert document["properties"] == {}
        assert re.fullmatch(r'"\d+"', document["ContinuationToken"])
        assert DOTNET_TIME.fullmatch(document["timestamp"])
        if _opens(document):
            written = datetime.fromisoformat(document["timestamp"])
            assert 0 <= written.timestamp() - day.opened <= time.time() - day.opened
            assert written.tzinfo == UTC
            assert _is_of_a_range(document, ranges)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_open_leases_cover_the_container_once(day: Day, pipeline: str) -> None:
    bounds = sorted(_bounds(document) for document in day.documents[pipeline] if _opens(document))
    assert (bounds[0][0], bounds[-1][1]) == ("", "FF")
    assert all(before[1] == after[0] for before, after in pairwise(bounds))


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_dotnet_s_marker_says_that_all_leases_exist(day: Day, pipeline: str) -> None:
    ids = {version["id"] for version in day.bank.leases.versions("leases")}
    assert f"{day.bank.prefix(pipeline)}.info" in ids


def _bounds(document: dict[str, Any]) -> tuple[str, str]:
    bounds = document["FeedRange"]["Range"]
    return bounds["min"], bounds["max"]


def _is_of_a_range(document: dict[str, Any], ranges: dict[str, Range]) -> bool:
    """A lease of a range bears its id and bounds; one of a part of a merged range its own bounds."""
    token, (low, high) = document["LeaseToken"], _bounds(document)
    if "-" in token:
        return token == f"{low}-{high}" and any(each.min <= low and high <= each.max for each in ranges.values())
    return (ranges[token].min, ranges[token].max) == (low, high)


def _lsn(continuation: str | None) -> int:
    return int(continuation.strip('"')) if continuation else 0
