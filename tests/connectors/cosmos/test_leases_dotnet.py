"""Leases that .NET (or Java, or a hand) wrote, taken over; what .NET and KEDA find of ours; first rounds and their marker."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from azure.cosmos.aio import ContainerProxy
from plugins_cosmos import Cosmos

from leasehold.common.azure import CosmosAccount
from leasehold.common.clock import BootClock
from leasehold.leases import dotnet
from leasehold.leases.bootstrap import Bootstrap, Identity, decode_info, info_id
from leasehold.leases.document import encode_lease, lease_id
from leasehold.leases.errors import InvalidDocument, OwnershipLost, StoreAmbiguous, StoreConflict, StoreUnavailable
from leasehold.leases.host_record import HostRecord
from leasehold.leases.keeper import Keeper, Scan
from leasehold.leases.lease import Lease
from leasehold.leases.lineage import Partition
from leasehold.leases.session import Session
from leasehold.leases.stores.cosmos import CosmosContainerAddress, CosmosStore, LeaseContainer, container
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import Timing
from leasehold.service.group.copying import Place, copy_group, plan_copy

PREFIX = "ordersappacct.documents.azure.com_q0oIAA==_q0oIALS6YvQ="
IDENTITY = Identity(feed="cosmos bank/transactions", sink="memory")
SCOPES = {"0": "-7F", "1": "7F-FF"}


@dataclass
class Transactions:
    """The container whose changes are read."""

    mode: str = dotnet.INCREMENTAL

    async def read_lease_prefix(self) -> str:
        return PREFIX


def written_by_dotnet(token: str, **changes: Any) -> dict[str, Any]:
    document = {
        "id": f"{PREFIX}..{token}",
        "version": 0,
        "LeaseToken": token,
        "FeedRange": {"Range": {"min": "", "max": "FF"}},
        "Owner": "dotnet-host-1",
        "ContinuationToken": f'"{token}234"',
        "properties": {},
        "timestamp": "2026-03-04T23:55:16.5233511Z",
        "Mode": "Incremental Feed",
        "theirs": {"kept": [1, None]},
    }
    return document | changes


@pytest.fixture(params=["/id", "/partitionKey"])
async def documents(request: pytest.FixtureRequest, cosmos: Cosmos) -> AsyncIterator[ContainerProxy]:
    """The container of leases, as others see it."""
    async with cosmos.client() as client:
        database = await client.create_database("bank")
        yield await database.create_container("leases", {"paths": [request.param], "kind": "Hash"})


async def put(documents: ContainerProxy, *written: dict[str, Any]) -> None:
    """In a container keyed by /partitionKey: under keys that are no ids, as older versions of .NET chose them."""
    for n, document in enumerate(written):
        await documents.create_item({"partitionKey": f"8a0c8bb3-{n}", **document})


async def found(documents: ContainerProxy, id: str) -> dict[str, Any]:
    [document] = [item async for item in documents.read_all_items() if item["id"] == id]
    return document


@pytest.fixture
async def store(cosmos: Cosmos, documents: ContainerProxy) -> AsyncIterator[CosmosStore]:
    store = store_in(cosmos)
    yield store
    await store.close()


def store_in(cosmos: Cosmos, name: str = "leases") -> CosmosStore:
    container = LeaseContainer(
        CosmosAccount(endpoint=cosmos.endpoint, key=cosmos.key),
        CosmosContainerAddress(database="bank", container=name),
    )
    return CosmosStore(container, {"orders": Transactions()})


def keeper_of(store: CosmosStore, host: str = "host-a") -> Keeper:
    clock, timing, me = BootClock(), Timing(), HostRecord(name=host, incarnation=f"{host}-1")
    session = Session(store, me, clock=clock, timing=timing)
    return Keeper(store, host=host, incarnation=me.incarnation, clock=clock, timing=timing, session=session)


async def scan_of(keeper: Keeper) -> Scan:
    return await keeper.scan(["orders"])


def same(sink_state: str) -> str:
    return sink_state


async def test_leases_of_dotnet_are_taken_over_with_their_continuations(
    documents: ContainerProxy, store: CosmosStore
) -> None:
    marker, lock = {"id": f"{PREFIX}.info"}, {"id": f"{PREFIX}.lock", "ttl": 30}
    elsewhere = written_by_dotnet("0", id=f"other{PREFIX}..0")
    await put(documents, written_by_dotnet("0"), written_by_dotnet("1"), marker, lock, elsewhere)
    keeper = keeper_of(store)
    scan = await scan_of(keeper)
    assert {lease.partition: lease.continuation for lease in scan.leases} == {"0": '"0234"', "1": '"1234"'}
    owned = await keeper.take(scan.seen["orders", "0"], same)
    assert owned is not None
    await owned.checkpoint('"900"', "")
    document = await found(documents, f"{PREFIX}..0")
    expected = written_by_dotnet("0", Owner="host-a", ContinuationToken='"900"')
    assert {name: document[name] for name in expected if name != "timestamp"} == {
        name: value for name, value in expected.items() if name != "timestamp"
    }
    age = datetime.now(UTC) - datetime.fromisoformat(document["timestamp"])
    assert timedelta(0) <= age < timedelta(minutes=1)
    assert document["timestamp"].endswith("Z")
    assert document["partitionKey"] == "8a0c8bb3-0"


async def test_a_lease_rewritten_by_dotnet_while_owned_is_lost_and_comes_back_with_a_higher_epoch(
    documents: ContainerProxy, store: CosmosStore, cosmos: Cosmos
) -> None:
    await put(documents, written_by_dotnet("0"))
    keeper = keeper_of(store)
    owned = await keeper.take((await scan_of(keeper)).seen["orders", "0"], same)
    assert owned is not None
    ours = await found(documents, f"{PREFIX}..0")
    theirs = {name: value for name, value in ours.items() if name != "leasehold"} | {"Owner": "dotnet-host-2"}
    cosmos.control.move_clock(1)
    await documents.replace_item(ours["id"], theirs)
    with pytest.raises(OwnershipLost, match="held by 'dotnet-host-2'"):
        await owned.renew()
    again = (await scan_of(keeper)).seen["orders", "0"].lease
    assert again.epoch > owned.lease.epoch


async def test_documents_that_are_no_leases_are_named_and_stop_no_other(
    documents: ContainerProxy, store: CosmosStore
) -> None:
    bad = [
        written_by_dotnet("1", LeaseToken="2"),
        written_by_dotnet("3", leasehold={"version": 1, "epoch": -1, "tick": 0}),
        written_by_dotnet("4", ContinuationToken=7),
        {"id": f"{PREFIX}..5"},
        written_by_dotnet("6", theirs={"large": "x" * 200_000}),
        written_by_dotnet("7", Mode="Full-Fidelity Feed"),
        written_by_dotnet("x" * 400),
    ]
    await put(documents, written_by_dotnet("0"), *bad)
    scan = await scan_of(keeper_of(store))
    assert [lease.partition for lease in scan.leases] == ["0"]
    assert len(scan.unreadable) == len(bad)
    for document in bad:
        assert any(document["id"] in str(error) or "larger than" in str(error) for error in scan.unreadable.values())


@pytest.mark.parametrize(
    ("spoilt", "stays"),
    [
        ({"leasehold": "spoilt"}, True),
        ({"Owner": 7, "ContinuationToken": [], "Mode": {}, "version": 9, "properties": "none", "timestamp": 1}, True),
        ({"theirs": {"large": "x" * 200_000}}, False),
    ],
)
async def test_a_lease_made_anew_over_a_spoilt_document_keeps_its_range_and_what_nobody_knows(
    documents: ContainerProxy, store: CosmosStore, spoilt: dict[str, Any], stays: bool
) -> None:
    """Its range may be gone from the container, and nobody else would know then which part it was."""
    await put(documents, written_by_dotnet("0", FeedRange={"Range": {"min": "", "max": "7F"}}, **spoilt))
    anew = Lease(pipeline="orders", partition="0", continuation='"5"', generation=1, epoch=7)
    etag = (await store.read(lease_id("orders", "0"))).etag
    await store.replace(lease_id("orders", "0"), encode_lease(anew), etag)
    scan = await scan_of(keeper_of(store))
    assert not scan.unreadable
    [lease] = scan.leases
    assert replace(lease, unknown={}) == replace(anew, scope="-7F")
    document = await found(documents, f"{PREFIX}..0")
    assert document["FeedRange"] == {"Range": {"min": "", "max": "7F"}}
    assert (document["Mode"], document["version"], "theirs" in document) == (dotnet.INCREMENTAL, 0, stays)


async def test_a_range_that_is_none_does_not_outlive_a_lease_made_anew(
    documents: ContainerProxy, store: CosmosStore
) -> None:
    await put(documents, written_by_dotnet("0", FeedRange={"Range": {"min": 7}}, Owner=7))
    stored = await store.read(lease_id("orders", "0"))
    await store.replace(stored.id, encode_lease(Lease(pipeline="orders", partition="0")), stored.etag)
    assert "FeedRange" not in await found(documents, f"{PREFIX}..0")


async def test_two_documents_of_one_id_are_left_to_people(documents: ContainerProxy, store: CosmosStore) -> None:
    properties = await documents.read()
    if properties["partitionKey"]["paths"] == ["/id"]:
        return
    await put(documents, written_by_dotnet("0"), written_by_dotnet("0"), written_by_dotnet("1"))
    scan = await scan_of(keeper_of(store))
    assert [lease.partition for lease in scan.leases] == ["1"]
    [error] = scan.unreadable.values()
    assert "8a0c8bb3-0" in str(error)
    assert not await keeper_of(store).create(scan.seen["orders", "1"].lease)


async def test_a_lease_under_a_key_that_is_no_id_is_read_released_and_deleted(
    documents: ContainerProxy, cosmos: Cosmos
) -> None:
    await put(documents, written_by_dotnet("0"))
    for _ in range(2):  # by one who has not listed it
        fresh = store_in(cosmos)
        stored = await fresh.read("orders/leases/0")
        seen = await keeper_of(fresh).read("orders", "0")
        await keeper_of(fresh).rewrite(seen, seen.lease.revoked())
        with pytest.raises(StoreConflict):
            await fresh.delete("orders/leases/0", stored.etag)
        await fresh.close()
    last = store_in(cosmos)
    await last.delete("orders/leases/0", (await store_read(cosmos)).etag)
    assert await last.list("orders/") == []
    await last.close()


async def store_read(cosmos: Cosmos) -> Any:
    store = store_in(cosmos)
    try:
        return await store.read("orders/leases/0")
    finally:
        await store.close()


async def test_one_query_lists_the_leases_of_a_pipeline(
    documents: ContainerProxy, store: CosmosStore, cosmos: Cosmos
) -> None:
    await put(documents, *(written_by_dotnet(str(n)) for n in range(50)))
    keeper = Keeper(store, host="x", incarnation="1", clock=BootClock(), timing=Timing())
    await scan_of(keeper)
    cosmos.control.statistics(clear=True)
    assert len((await scan_of(keeper)).leases) == 50
    assert [(one["kind"], one["requests"]) for one in cosmos.control.statistics()] == [("documents.query", 1)]


async def test_a_listing_of_many_pages_is_whole(
    documents: ContainerProxy, store: CosmosStore, cosmos: Cosmos, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "PAGE_ITEMS_MAX", 3)
    await put(documents, *(written_by_dotnet(str(n)) for n in range(20)))
    assert len((await scan_of(keeper_of(store))).leases) == 20
    assert cosmos.control.requests("documents.query") > 5


# First rounds


def bootstrap_of(keeper: Keeper) -> Bootstrap:
    return Bootstrap(keeper, "orders", IDENTITY)


async def now(partition: str) -> str | None:
    return '"77"'


async def first_round(keeper: Keeper, *names: str) -> None:
    bootstrap = bootstrap_of(keeper)
    await bootstrap.open()
    await bootstrap.reconcile([Partition(name, scope=SCOPES[name]) for name in names], await scan_of(keeper), now)


async def is_marked(documents: ContainerProxy) -> bool:
    return [item["id"] async for item in documents.read_all_items()].count(f"{PREFIX}.info") == 1


async def test_new_leases_are_such_as_dotnet_makes_and_the_marker_comes_after_them(
    documents: ContainerProxy, store: CosmosStore, cosmos: Cosmos
) -> None:
    cosmos.control.fault("throttle", "document.create", after=2, retry_after_ms=120_000)  # `info` and one lease
    with pytest.raises(StoreUnavailable):
        await first_round(keeper_of(store), "0", "1")
    assert not await is_marked(documents)
    cosmos.control.heal()
    await first_round(keeper_of(store), "0", "1")
    assert await is_marked(documents)
    document = await found(documents, f"{PREFIX}..0")
    assert (document["ContinuationToken"], document["Owner"], document["version"]) == ('"77"', None, 0)
    assert document["FeedRange"] == {"Range": {"min": "", "max": "7F"}}


async def test_a_first_round_that_ends_at_any_request_is_finished_by_the_next_host(
    documents: ContainerProxy, store: CosmosStore, cosmos: Cosmos
) -> None:
    for after in range(9):
        for do in ("cut", "lose_reply"):
            await clear(documents)
            cosmos.control.fault(do, "document.*", after=after)
            await ended(first_round(keeper_of(store), "0", "1"))
            was_marked, leases = await is_marked(documents), len((await scan_of(keeper_of(store))).leases)
            assert not was_marked or leases == 2
            cosmos.control.heal()
            await first_round(keeper_of(store, "host-b"), "0", "1")
            scan = await scan_of(keeper_of(store))
            assert {lease.partition: lease.continuation for lease in scan.leases} == {"0": '"77"', "1": '"77"'}
            assert await is_marked(documents)
            stored = await store.read(info_id("orders"))
            assert decode_info(stored.id, stored.body).complete


async def clear(documents: ContainerProxy) -> None:
    key = (await documents.read())["partitionKey"]["paths"][0].removeprefix("/")
    for item in [item async for item in documents.read_all_items()]:
        await documents.delete_item(item["id"], item[key])


async def ended(step: Any) -> None:
    try:
        await step
    except (StoreUnavailable, StoreAmbiguous, StoreConflict):
        return


async def test_hosts_that_start_at_once_make_one_lease_of_each(documents: ContainerProxy, cosmos: Cosmos) -> None:
    stores = [store_in(cosmos) for _ in range(4)]
    await asyncio.gather(
        *(ended(first_round(keeper_of(store, f"host-{n}"), "0", "1")) for n, store in enumerate(stores))
    )
    await first_round(keeper_of(stores[0]), "0", "1")
    ids = sorted([item["id"] async for item in documents.read_all_items()])
    assert ids == sorted([f"leasehold:{PREFIX}:info", f"{PREFIX}..0", f"{PREFIX}..1", f"{PREFIX}.info"])
    await asyncio.gather(*(store.close() for store in stores))


async def test_where_dotnet_has_completed_its_first_round_a_partition_without_a_lease_begins_at_its_beginning(
    documents: ContainerProxy, store: CosmosStore
) -> None:
    await put(documents, written_by_dotnet("0"), {"id": f"{PREFIX}.info"})
    await first_round(keeper_of(store), "0", "1")
    scan = await scan_of(keeper_of(store))
    assert {lease.partition: lease.continuation for lease in scan.leases} == {"0": '"0234"', "1": None}


# What others see


async def test_neither_dotnet_nor_keda_find_what_is_no_lease(documents: ContainerProxy, store: CosmosStore) -> None:
    keeper = keeper_of(store)
    await first_round(keeper, "0", "1")
    await store.create("other/leases/x%2Fy", "{}")
    me = HostRecord(name="ordersappacct.pod", incarnation="1")
    await Session(store, me, clock=BootClock(), timing=Timing()).open()
    for pattern in (f"{PREFIX}..", "ordersappacct."):
        query = "SELECT * FROM c WHERE STARTSWITH(c.id, @prefix)"
        seen = [
            item
            async for item in documents.query_items(query, parameters=[{"name": "@prefix", "value": pattern}])
            if "LeaseToken" in item or pattern.endswith("..")
        ]
        assert [item["LeaseToken"] for item in sorted(seen, key=lambda item: str(item["id"]))] == ["0", "1"]
        for item in seen:
            assert isinstance(item["version"], int)
            assert isinstance(item["ContinuationToken"], str)
            assert set(item["FeedRange"]["Range"]) == {"min", "max"}


async def test_a_document_of_ours_that_was_changed_by_hand_is_refused(
    documents: ContainerProxy, store: CosmosStore
) -> None:
    await first_round(keeper_of(store), "0")
    info = await found(documents, f"leasehold:{PREFIX}:info")
    for body in ({"complete": True}, None, 7, json.dumps({"version": 1})):
        await documents.replace_item(info["id"], {**info, "body": body})
        with pytest.raises(InvalidDocument):
            await bootstrap_of(keeper_of(store)).open()


async def test_leases_of_dotnet_are_copied_into_another_store_and_into_another_container(
    documents: ContainerProxy, store: CosmosStore, cosmos: Cosmos
) -> None:
    await put(documents, written_by_dotnet("0"), written_by_dotnet("1", Owner=None))
    keeper = keeper_of(store)
    await Bootstrap(keeper, "orders", IDENTITY).open()
    seen = (await scan_of(keeper)).seen["orders", "1"]
    await keeper.rewrite(seen, replace(seen.lease, epoch=7, generation=2, closed=True))
    before = {key: seen.lease for key, seen in (await scan_of(keeper)).seen.items()}
    middle, last = MemoryStore(), store_in(cosmos, "moved")
    places = [
        Place(Keeper(each, host="x", incarnation="1", clock=BootClock(), timing=Timing()), name)
        for each, name in ((store, "first"), (middle, "middle"), (last, "last"))
    ]
    try:
        for source, target in pairwise(places):
            said: list[str] = []
            await copy_group(source, target, ["orders"], copy=source.name, at="now", clock=BootClock(), say=said.append)
            again = await plan_copy(source, target, ["orders"], clock=BootClock(), say=said.append)
            assert again.is_done
        after = {key: seen.lease for key, seen in (await scan_of(keeper_of(last))).seen.items()}
    finally:
        await last.close()
    assert after.keys() == before.keys()
    for key, lease in before.items():
        moved = after[key]
        assert (moved.owner, moved.epoch, moved.generation) == (None, lease.epoch, lease.generation)
        assert (moved.continuation, moved.closed, moved.scope) == (lease.continuation, lease.closed, lease.scope)
    async with cosmos.client() as client:
        container = client.get_database_client("bank").get_container_client("moved")
        document = await found(container, f"{PREFIX}..0")
    assert (document["ContinuationToken"], document["theirs"]) == ('"0234"', {"kept": [1, None]})
