"""Leases that were deleted by hand: put back where a host saw them, found by their sink, or left for people to place."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from unit.leases.lost_places import MERGED, SPLIT, WHOLE, Place, Standings

from leasehold.common.standing import Standing
from leasehold.leases.bootstrap import INFO_LOOKED_AT_S, decode_info, info_id
from leasehold.leases.document import lease_id
from leasehold.leases.lease import RESTORED_ABOVE, Child, Lease
from leasehold.leases.lineage import Partition


@pytest.mark.virtual
async def test_a_host_puts_back_what_it_saw_under_an_epoch_that_was_never_used() -> None:
    place = Place()
    host = await place.begun()
    place.delete("0")
    audit = await host.round(WHOLE)
    lease = (await host.leases())["0"]
    assert audit.created == ("0",)
    assert "was deleted: it is put back where this host saw it last (100)" in audit.notes[0]
    assert (lease.continuation, lease.generation, lease.owner) == ("100", 1, None)
    assert lease.epoch == 4 + RESTORED_ABOVE
    assert (await host.round(WHOLE)).notes == ()


@pytest.mark.virtual
async def test_a_lease_that_was_deleted_before_a_split_is_put_back_and_its_children_wait_for_its_end() -> None:
    place = Place()
    host = await place.begun()
    place.delete("0")
    assert (await host.round(SPLIT)).created == ("0",)
    assert (await host.leases())["0"].continuation == "100"
    children = (Child("1", "120", "0-4"), Child("2", "120", "4-8"))
    place.put(replace((await host.leases())["0"], closed=True, children=children))
    assert (await host.round(SPLIT)).created == ("1", "2")
    assert {each.continuation for each in (await host.leases()).values() if each.parents} == {"120"}


@pytest.mark.virtual
async def test_one_that_became_unreadable_is_put_back_as_it_was_once_somebody_deletes_it() -> None:
    place = Place()
    host = await place.begun()
    place.store._put(lease_id("p", "0"), "{")
    assert (await host.round(WHOLE)).created == ()
    place.delete("0")
    assert (await host.round(WHOLE)).created == ("0",)
    assert (await host.leases())["0"].continuation == "100"


@pytest.mark.virtual
async def test_what_a_host_saw_long_ago_is_not_put_back() -> None:
    """It may have ended and been cleared away meanwhile."""
    place = Place()
    host = await place.begun()
    place.delete("0")
    await place.clock.sleep(301)
    assert (await host.round(SPLIT)).created == ()
    assert await host.leases() == {}


@pytest.mark.virtual
@pytest.mark.parametrize(("listed_s_ago", "is_put_back"), [(290.0, True), (310.0, False)])
async def test_changes_that_are_read_after_a_listing_do_not_show_that_a_lease_was_still_there(
    listed_s_ago: float, is_put_back: bool
) -> None:
    """It may have been deleted right after the listing, and cleared away for a good reason."""
    place = Place()
    host = await place.begun()
    scan = await host.keeper.scan(["p"])
    await asyncio.sleep(listed_s_ago - 1)
    host_sees = scan.changed({}, place.clock.monotonic(), place.clock.monotonic(), "token")
    await host.round(WHOLE, host_sees)
    place.delete("0")
    await asyncio.sleep(1)
    audit = await host.round(WHOLE)
    assert any("put back" in note for note in audit.notes) is is_put_back


@pytest.mark.virtual
async def test_an_orphan_that_somebody_deletes_stays_away() -> None:
    place = Place()
    host = await place.begun()
    place.put(Lease(pipeline="p", partition="gone", scope="20-30"))
    assert (await host.round(WHOLE)).orphaned == ("gone",)
    place.delete("gone")
    assert (await host.round(WHOLE)).created == ()


@pytest.mark.virtual
async def test_a_closed_lease_is_put_back_only_where_a_child_has_yet_to_be_made() -> None:
    for is_made in (False, True):
        place = Place()
        host = await place.begun()
        children = (Child("1", "120", "0-4"), Child("2", "120", "4-8"))
        place.put(replace((await host.leases())["0"], closed=True, children=children, owner=None, incarnation=None))
        if is_made:
            await host.round(SPLIT)
        else:
            await host.round(WHOLE)
            place.delete("1", "2")
        place.delete("0")
        created = (await host.round(SPLIT)).created
        assert ("0" in created) != is_made


@pytest.mark.virtual
async def test_without_anybody_who_saw_it_a_lease_goes_on_where_its_sink_stands_in_the_sinks_generation() -> None:
    place = Place()
    await place.begun({})
    place.delete("0")
    host = place.host({"0": Standing(2, "150")})
    await host.bootstrap.open()
    audit = await host.round(WHOLE)
    lease = (await host.leases())["0"]
    assert (lease.continuation, lease.generation) == ("150", 2)
    assert "it continues at its sink's position (150)" in audit.notes[0]


@pytest.mark.virtual
async def test_what_became_of_a_deleted_lease_is_told_by_the_host_that_made_it_and_by_no_other() -> None:
    place = Place()
    await place.begun({})
    place.delete("0")
    hosts = [place.host({"0": Standing(2, "150")}) for _ in range(2)]
    for host in hosts:
        await host.bootstrap.open()
    scan = await hosts[0].keeper.scan(["p"])
    audits = [await host.round(WHOLE, scan) for host in hosts]
    assert [(each.created, len(each.notes)) for each in audits] == [(("0",), 1), ((), 0)]


@pytest.mark.virtual
@pytest.mark.parametrize("claimed", [{}, {"1": Standing(0, None)}])
async def test_the_children_of_a_deleted_lease_go_on_where_its_sink_stood_with_it(claimed: Standings) -> None:
    """Also one that somebody had, and delivered nothing of."""
    place = Place()
    await place.begun({})
    place.delete("0")
    host = place.host({"0": Standing(2, "150"), **claimed})
    await host.bootstrap.open()
    audit = await host.round(SPLIT)
    leases = await host.leases()
    assert {name: (each.continuation, each.generation) for name, each in leases.items()} == {
        "1": ("150", 0),
        "2": ("150", 0),
    }
    assert len(audit.notes) == 2


@pytest.mark.virtual
async def test_where_a_sink_holds_no_positions_the_children_of_a_deleted_lease_wait_for_a_person() -> None:
    place = Place()
    await place.begun()
    place.delete("0")
    host = place.host()
    await host.bootstrap.open()
    audit = await host.round(SPLIT)
    assert audit.created == ()
    assert list(audit.waiting) == ["1", "2"]
    assert all("leases reset FILE p" in why for why in audit.waiting.values())
    place.put(Lease(pipeline="p", partition="1", scope="0-4"))
    assert list((await host.round(SPLIT)).waiting) == ["2"]


@pytest.mark.virtual
async def test_one_that_came_from_nothing_begins_at_the_beginning_where_nobody_knows_better_and_that_is_told() -> None:
    place = Place()
    await place.begun()
    place.delete("0")
    host = place.host()
    await host.bootstrap.open()
    audit = await host.round(WHOLE)
    assert audit.created == ("0",)
    assert "its position is unknown: it begins at the feed's beginning" in audit.notes[0]


@pytest.mark.virtual
async def test_where_the_parents_of_a_merged_part_stood_apart_nobody_guesses() -> None:
    place = Place()
    await place.begun({}, SPLIT)
    place.delete("1", "2")
    host = place.host({"1": Standing(0, "100"), "2": Standing(0, "200")})
    await host.bootstrap.open()
    assert list((await host.round(MERGED)).waiting) == ["3"]
    place.put(Lease(pipeline="p", partition="1", scope="0-4", closed=True, children=(Child("0-4", "100", "0-4"),)))
    assert (await host.round(MERGED)).created == ("0-4", "4-8")
    leases = await host.leases()
    assert {name: leases[name].continuation for name in ("0-4", "4-8")} == {"0-4": "100", "4-8": "200"}


@pytest.mark.virtual
async def test_a_partition_known_by_its_name_alone_may_be_new_and_begins_at_its_beginning() -> None:
    place = Place()
    host = await place.begun(None, [Partition("a")])
    assert (await host.round([Partition("a"), Partition("b")])).created == ("b",)
    assert (await host.leases())["b"].continuation is None


@pytest.mark.virtual
async def test_what_waits_for_an_unreadable_parent_is_told_with_its_reason() -> None:
    place = Place()
    host = await place.begun()
    place.store._put(lease_id("p", "0"), "{")
    audit = await host.round(SPLIT)
    assert audit.created == ()
    assert sorted(audit.waiting) == ["1", "2"]
    assert "it came from '0', whose lease is unreadable" in audit.waiting["1"]


@pytest.mark.virtual
async def test_an_info_document_that_is_deleted_is_made_again_by_a_running_host() -> None:
    place = Place()
    host = await place.begun()
    del place.store._documents[info_id("p")]
    assert (await host.round(WHOLE)).notes == ()
    await place.clock.sleep(INFO_LOOKED_AT_S)
    assert "'p/info' was deleted" in (await host.round(WHOLE)).notes[0]
    stored = await place.store.read(info_id("p"))
    assert decode_info(stored.id, stored.body).complete
    assert (await host.round(WHOLE)).notes == ()


@pytest.mark.virtual
async def test_where_all_documents_were_deleted_the_info_document_is_made_again_at_once() -> None:
    place = Place()
    host = await place.begun()
    await host.round(WHOLE)
    place.delete("0")
    del place.store._documents[info_id("p")]
    assert (await host.round(WHOLE)).created == ("0",)
    assert "'p/info' was deleted" in (await host.round(WHOLE)).notes[0]
