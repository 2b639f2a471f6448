"""Leases that an operator closed: no lease is made beside one, a tombstone outlasts its file, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from unit.leases.import_.test_plan import candidate, lease, only
from unit.leases.test_bootstrap import Host, closed, named, open_lease

from leasehold.leases.document import decode_lease, encode_lease, lease_id
from leasehold.leases.dotnet import decode, encode
from leasehold.leases.import_.plan import Candidate
from leasehold.leases.lease import Child, Lease
from leasehold.leases.lineage import finished, outlived
from leasehold.leases.stores.memory import MemoryStore

TOMBSTONE = open_lease("a").finished("5", tombstone=True)
FORGOTTEN = open_lease("a").finished("5", tombstone=False)


def by_name(*leases: Lease) -> dict[str, Lease]:
    return {each.partition: each for each in leases}


def test_a_tombstone_comes_back_from_its_document_and_other_documents_do_not_mention_it() -> None:
    for each in (TOMBSTONE, FORGOTTEN):
        assert decode_lease(lease_id(*each.key), encode_lease(each)) == each
    assert "tombstone" not in encode_lease(FORGOTTEN)


def test_a_document_of_dotnets_keeps_the_close_and_no_tombstone_so_that_hosts_clear_it_away() -> None:
    document = encode(replace(TOMBSTONE, partition="0"), prefix="p", now=datetime(2026, 1, 31, tzinfo=UTC))
    found = decode(document, pipeline="p")
    assert (found.closed, found.tombstone, found.owner, found.children) == (True, False, None, ())


@pytest.mark.virtual
async def test_no_lease_is_made_for_a_partition_that_an_operator_closed() -> None:
    host = Host(MemoryStore())
    await host.run(named("b"))
    await host.put(TOMBSTONE)
    assert await host.round(named("a", "b")) == ()
    assert (await host.leases())["a"] == TOMBSTONE
    assert host.orphaned == ()


def test_closed_partitions_that_the_feed_lists_are_known_and_ended_ones_are_not_among_them() -> None:
    leases = by_name(TOMBSTONE, open_lease("b"), closed("c", "d"))
    assert finished(named("a", "b", "c", "d"), leases) == ("a",)
    assert finished(named("b"), leases) == ()


def test_a_tombstone_outlasts_its_file_and_what_is_closed_without_one_goes_with_it() -> None:
    assert outlived(named("b"), by_name(TOMBSTONE)) == ()
    assert outlived(named("b"), by_name(FORGOTTEN)) == ("a",)
    assert outlived(named("a", "b"), by_name(FORGOTTEN)) == ()


@pytest.mark.virtual
async def test_a_host_sees_that_a_tombstone_was_given_up() -> None:
    host = Host(MemoryStore())
    await host.run(named("b"))
    await host.put(TOMBSTONE)
    before = await host.keeper.scan(["p"])
    await host.put(FORGOTTEN)
    assert (await host.keeper.scan(["p"])).shape != before.shape


@pytest.mark.virtual
async def test_a_tombstone_that_is_deleted_by_hand_is_put_back_while_its_file_is_there() -> None:
    for listed, is_back in ((named("a", "b"), True), (named("b"), False)):
        host = Host(MemoryStore())
        await host.run(named("b"))
        await host.put(TOMBSTONE)
        await host.round(listed)
        await host.keeper.store.delete(lease_id("p", "a"), (await host.keeper.read("p", "a")).etag)
        await host.round(listed)
        leases = await host.leases()
        assert ("a" in leases) == is_back
        assert not is_back or (leases["a"].closed and leases["a"].tombstone)


# Import


def brought(one: Lease) -> Candidate:
    return replace(candidate(), lease=one)


def test_an_import_leaves_what_an_operator_closed_closed_and_says_how_to_open_it() -> None:
    here = lease().finished("10", tombstone=True)
    change = only(candidate(continuation="20"), here)
    assert (change.kind, change.why) == (
        "unchanged",
        "is closed here, and stays closed: `leasehold leases reset` opens it",
    )
    assert only(brought(here), here).kind == "unchanged"


def test_an_import_brings_a_closed_lease_with_its_tombstone_and_closes_none_that_is_open() -> None:
    there = lease().finished("10", tombstone=True)
    assert only(brought(there)).wanted == there
    refused = only(brought(there), lease())
    assert (refused.kind, "close it here (`leasehold leases close`)" in refused.why) == ("refused", True)


def test_an_ended_parent_in_the_input_does_not_match_one_that_an_operator_closed_here() -> None:
    ended = lease(closed=True, children=(Child("1", "10"),))
    assert only(brought(ended), lease().finished("10", tombstone=True)).kind == "refused"
