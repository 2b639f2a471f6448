"""Leases whose documents cannot be read, or were deleted: what the commands say of them, and that a reset mends them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leasehold.leases.bootstrap import Identity, Info, encode_info, info_id
from leasehold.leases.document import decode_lease, encode_lease, lease_id, lease_prefix
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryOutputSink
from leasehold.pipeline.feed import FeedPartition
from leasehold.service.api.metrics import Metrics
from leasehold.service.cli.main import main

SETTINGS = """
leases: {path: state/leases.db}
api: {enabled: false}
pipelines:
  - name: orders
    feed: {type: "unit.service.cli.test_main_unreadable:Numbers"}
    sink: {type: "unit.service.cli.test_main_unreadable:Holding"}
"""
NAMES = ("a", "b", "c")


class Numbers(MemoryChangeFeed):
    """c came from b."""

    def __init__(self) -> None:
        super().__init__(NAMES)

    async def partitions(self) -> list[FeedPartition]:
        return [FeedPartition(name, ("b",) if name == "c" else ()) for name in NAMES]


class Holding(MemoryOutputSink):
    """Holds a position of b, in generation 3."""

    def __init__(self) -> None:
        super().__init__()
        self.destination._positions["orders", "b", 3] = "7"


class Place:
    """The lease of a can be read, that of b cannot, and c has none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "orders.yaml").write_text(SETTINGS)
        lease = Lease(pipeline="orders", partition="a", continuation="5")
        info = Info(identity=Identity("memory:memory", "memory"), complete=True)

        async def fill(store: SqliteStore) -> None:
            await store.create(lease_id("orders", "a"), encode_lease(lease))
            await store.create(lease_id("orders", "b"), '{"version": 1, "pipeline": "orders", "partition": 7}')
            await store.create(info_id("orders"), encode_info(info))

        self.with_store(fill)

    def __call__(self, *arguments: str) -> Result:
        file = str(self.folder / "orders.yaml")
        result = CliRunner().invoke(main, [each if each != "FILE" else file for each in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def with_store(self, step: Callable[[SqliteStore], Awaitable[None]]) -> None:
        async def run() -> None:
            store = SqliteStore(self.folder / "state/leases.db")
            await step(store)
            await store.close()

        asyncio.run(run())

    @property
    def leases(self) -> dict[str, Lease]:
        found: dict[str, Lease] = {}

        async def read(store: SqliteStore) -> None:
            for stored in await store.list(lease_prefix("orders")):
                lease = decode_lease(stored.id, stored.body)
                found[lease.partition] = lease

        self.with_store(read)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def is_advice(text: str) -> bool:
    return all(
        part in text
        for part in (
            "document 'orders/leases/b': field 'partition' must be a text",
            "the partition and its children are not processed",
            "leasehold leases reset FILE orders b --to",
        )
    )


def test_a_list_names_it_with_what_is_wrong_and_what_to_do(place: Place) -> None:
    told = place("leases", "list", "FILE")
    assert told.exit_code == 0
    assert [line.split()[:5] for line in told.stdout.splitlines()[2:4]] == [
        ["orders", "a", "available,", "feed", "error"],  # its position is beyond what this feed holds
        ["orders", "b", "unreadable"],
    ]
    assert is_advice(told.stdout)
    rows = json.loads(place("leases", "list", "FILE", "--json").stdout)
    assert [(row["partition"], row["state"]) for row in rows] == [("a", "available"), ("b", "unreadable")]
    assert is_advice(rows[1]["error"])


@pytest.mark.parametrize("command", ["show", "release"])
def test_one_that_is_asked_for_is_an_error_with_its_reason(place: Place, command: str) -> None:
    told = place("leases", command, "FILE", "orders", "b")
    assert told.exit_code == 1
    assert is_advice(told.stderr)


def test_a_probe_warns_of_it(place: Place) -> None:
    told = place("check", "--probe", "FILE")
    assert "leases: warning: 2 there, 1 unreadable" in told.stdout
    assert is_advice(told.stdout)


def test_its_lag_and_that_of_what_has_no_lease_are_unknown(place: Place) -> None:
    told = json.loads(place("lag", "FILE", "--json").stdout)
    assert (told["unknown"], told["events"]) == (3, None)  # a's position is beyond what this feed holds
    assert {row["partition"]: row["events"] for row in told["partitions"]} == {"a": None, "b": None, "c": None}
    lines = place("lag", "FILE").stdout.splitlines()
    assert [line.split() for line in lines[2:5]] == [["orders", name, "unknown", "unknown"] for name in NAMES]
    assert any("pipeline 'orders', partition 'b': " in line and is_advice(line) for line in lines)
    assert any(line.split() == ["all", "at", "least", "0", "(3", "unknown)", "unknown"] for line in lines)


def test_where_all_are_unreadable_they_are_listed_all_the_same(place: Place) -> None:
    async def spoil(store: SqliteStore) -> None:
        stored = await store.read(lease_id("orders", "a"))
        await store.replace(stored.id, "{}", stored.etag)

    place.with_store(spoil)
    rows = json.loads(place("leases", "list", "FILE", "--json").stdout)
    assert [(row["partition"], row["state"]) for row in rows] == [("a", "unreadable"), ("b", "unreadable")]


def test_a_reset_makes_it_anew_in_a_generation_that_its_sink_has_not_seen(place: Place) -> None:
    told = place("leases", "reset", "FILE", "orders", "b", "--to", "2", "--yes")
    assert told.stdout == ("lease 'b' of pipeline 'orders' was reset to 2, generation 4; its document is new\n"), (
        told.stderr
    )
    lease = place.leases["b"]
    assert (lease.continuation, lease.generation, lease.owner) == ("2", 4, None)
    assert lease.epoch > 10**12


def test_a_reset_makes_a_lease_for_what_waits_without_one_and_for_nothing_else(place: Place) -> None:
    assert place("leases", "reset", "FILE", "orders", "c", "--to", "earliest", "--yes").exit_code == 0
    assert place("leases", "reset", "FILE", "orders", "b", "--to", "earliest", "--yes").exit_code == 0
    assert {name: each.continuation for name, each in place.leases.items()} == {"a": "5", "b": None, "c": None}
    told = place("leases", "reset", "FILE", "orders", "d", "--to", "earliest", "--yes")
    assert told.exit_code == 1
    assert "nor does its feed have such a partition" in told.stderr


def test_what_came_from_a_partition_that_is_still_read_gets_no_lease_by_a_reset(place: Place) -> None:
    place("leases", "reset", "FILE", "orders", "b", "--to", "earliest", "--yes")
    told = place("leases", "reset", "FILE", "orders", "c", "--to", "earliest", "--yes")
    assert told.exit_code == 1
    assert set(place.leases) == {"a", "b"}


def test_a_reset_to_nowhere_leaves_it_as_it_is(place: Place) -> None:
    assert place("leases", "reset", "FILE", "orders", "b", "--to", "nowhere", "--yes").exit_code == 1
    with pytest.raises(InvalidDocument):
        _ = place.leases


async def test_the_api_and_the_metrics_count_it_as_unknown(start, store: MemoryStore) -> None:  # type: ignore[no-untyped-def]
    running = await start()
    running.feeds["bank"].append("b", [b"{}"] * 4)
    store._put(lease_id("bank", "a"), "{}")
    async with running.client() as client:
        lag = (await client.get("/api/lag?partly=true")).json()
        assert lag["unknown"] == 1
        assert "restore" in lag["pipelines"][0]["partitions"][0]["error"].lower()
        problems = (await client.get("/api/pipelines")).json()["problems"]
        assert any("leases reset FILE bank a --to" in text for text in problems)
        answer = await client.get("/api/leases/bank/a")
        assert (answer.status_code, "cannot be read" in answer.json()["detail"]) == (404, True)
    metrics = Metrics(running.host)
    metrics.lag = await running.view.read_lag(0)
    assert 'leasehold_lag_unknown{pipeline="bank"} 1.0' in metrics.text().decode()


async def test_what_waits_for_it_is_told_by_the_host_that_was_asked(start, store: MemoryStore) -> None:  # type: ignore[no-untyped-def]
    running = await start(runs=False)
    running.host.waiting[LeaseKey("bank", "c")] = "it came from 'b', whose lease is unreadable"
    async with running.client() as client:
        problems = (await client.get("/api/pipelines")).json()["problems"]
    assert problems == ["pipeline 'bank', partition 'c' waits: it came from 'b', whose lease is unreadable"]


def test_until_idle_ends_with_the_reasons_if_a_lease_cannot_be_read_and_another_waits_for_it(place: Place) -> None:
    found = place("run", "--until-idle", "FILE")
    assert found.exit_code == 1
    assert "pipeline 'orders', partition 'b' stopped: document 'orders/leases/b'" in found.output
    assert "pipeline 'orders', partition 'c' stopped: it came from 'b', whose lease is unreadable" in found.output


def test_until_idle_ends_with_the_reason_if_the_info_document_cannot_be_read(tmp_path: Path) -> None:
    place = Place(tmp_path)

    async def damage(store: SqliteStore) -> None:
        stored = await store.read(info_id("orders"))
        await store.replace(stored.id, "{", stored.etag)

    place.with_store(damage)
    found = place("run", "--until-idle", "FILE")
    assert found.exit_code in (1, 2)
    assert "document 'orders/info' is not JSON" in found.output
