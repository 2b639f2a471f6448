"""Leases of children, deleted by hand while their closed parent is still there: it remembers that they had one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from unit.leases.lost_places import SPLIT, Host, Place, Standings

from leasehold.common.standing import Standing
from leasehold.leases.lease import Child, Lease
from leasehold.leases.lineage import Partition

CHILDREN = (Child("1", "120", "0-4"), Child("2", "120", "4-8"))


async def came(place: Place, standings: Standings | None = None) -> Host:
    """A host that has seen nothing of what was before."""
    host = place.host(standings)
    await host.bootstrap.open()
    return host


class Split(Place):
    """Partition 0 ended at "120" and was split; its children have come to "500"."""

    async def begun_split(self, standings: Standings | None = None) -> Host:
        host = await self.begun(standings)
        self.put(replace((await host.leases())["0"], closed=True, children=CHILDREN, owner=None, incarnation=None))
        assert (await host.round(SPLIT)).created == ("1", "2")
        for name in ("1", "2"):
            self.put(replace((await host.leases())[name], continuation="500", generation=3))
        return host


@pytest.mark.virtual
async def test_a_child_that_nobody_saw_being_deleted_begins_again_where_its_parent_ended_and_that_is_told() -> None:
    place = Split()
    await place.begun_split()
    place.delete("1")
    host = await came(place)
    audit = await host.round(SPLIT)
    assert (audit.created, (await host.leases())["1"].continuation) == (("1",), "120")
    [told] = audit.notes
    assert told.startswith("partition '1': its lease was deleted, and its position is unknown")
    assert "it begins once more where '0' ended (120)" in told
    assert "`leasehold leases reset FILE p 1 --to ... --yes`" in told
    assert (await host.round(SPLIT)).notes == ()


@pytest.mark.virtual
async def test_a_child_goes_on_where_its_sink_stands_in_the_sinks_generation() -> None:
    place = Split()
    await place.begun_split({})
    place.delete("1")
    host = await came(place, {"0": Standing(0, "120"), "1": Standing(3, "500")})
    audit = await host.round(SPLIT)
    lease = (await host.leases())["1"]
    assert (lease.continuation, lease.generation, lease.parents) == ("500", 3, ("0",))
    assert "it continues at its sink's position (500)" in audit.notes[0]


@pytest.mark.virtual
async def test_a_child_of_which_its_sink_holds_nothing_begins_again_where_its_parent_ended_and_that_is_told() -> None:
    place = Split()
    await place.begun_split({})
    place.delete("1")
    host = await came(place, {"0": Standing(0, "120")})
    audit = await host.round(SPLIT)
    assert (await host.leases())["1"].continuation == "120"
    assert "its sink holds no position for it: it begins once more where '0' ended" in audit.notes[0]


@pytest.mark.virtual
async def test_a_child_of_which_nothing_was_delivered_begins_where_its_parent_ended_though_its_sink_knows_it() -> None:
    """Its first owner had claimed it, and no more: that the sink stands at the beginning says nothing of the feed's."""
    place = Split()
    await place.begun_split({})
    place.delete("1")
    host = await came(place, {"0": Standing(0, "120"), "1": Standing(0, None)})
    audit = await host.round(SPLIT)
    assert (await host.leases())["1"].continuation == "120"
    assert "its sink holds no position for it: it begins once more where '0' ended" in audit.notes[0]


@pytest.mark.virtual
async def test_a_child_that_was_reset_to_the_beginning_stays_there() -> None:
    place = Split()
    await place.begun_split({})
    place.delete("1")
    host = await came(place, {"0": Standing(0, "120"), "1": Standing(1, None)})
    audit = await host.round(SPLIT)
    lease = (await host.leases())["1"]
    assert (lease.continuation, lease.generation) == (None, 1)
    assert "it continues at its sink's position (None)" in audit.notes[0]


@pytest.mark.virtual
async def test_a_host_that_saw_the_child_puts_it_back_as_it_was() -> None:
    place = Split()
    host = await place.begun_split()
    await host.round(SPLIT)
    place.delete("1")
    audit = await host.round(SPLIT)
    assert (await host.leases())["1"].continuation == "500"
    assert "it is put back where this host saw it last (500)" in audit.notes[0]


@pytest.mark.virtual
async def test_a_child_that_never_had_a_lease_gets_it_without_a_word() -> None:
    """The host that made its sister died in between."""
    place = Place()
    host = await place.begun()
    place.put(replace((await host.leases())["0"], closed=True, children=CHILDREN))
    place.put(Lease(pipeline="p", partition="2", scope="4-8", continuation="120", parents=("0",)))
    audit = await (await came(place)).round(SPLIT)
    assert (audit.created, audit.notes) == (("1",), ())


@pytest.mark.virtual
async def test_a_parent_remembers_its_children_in_one_write_that_leaves_its_tick_alone() -> None:
    place = Split()
    host = await place.begun_split()
    parent = (await host.leases())["0"]
    assert [child.begun for child in parent.children] == [True, True]
    assert parent.tick == 0
    before = place.store._documents.copy()
    await (await came(place)).round(SPLIT)
    assert place.store._documents == before


@pytest.mark.virtual
async def test_a_parent_that_somebody_writes_meanwhile_remembers_in_the_next_round() -> None:
    place = Place()
    host = await place.begun()
    place.put(replace((await host.leases())["0"], closed=True, children=CHILDREN))
    scan = await host.keeper.scan(["p"])
    place.put((await host.leases())["0"])  # another ETag
    assert (await host.round(SPLIT, scan)).created == ("1", "2")
    assert [child.begun for child in (await host.leases())["0"].children] == [False, False]
    await host.round(SPLIT)
    assert [child.begun for child in (await host.leases())["0"].children] == [True, True]


@pytest.mark.virtual
async def test_a_child_of_an_older_version_is_remembered_once_it_is_seen() -> None:
    place = Split()
    host = await place.begun_split()
    place.put(replace((await host.leases())["0"], children=CHILDREN))
    await (await came(place)).round(SPLIT)
    place.delete("2")
    assert "partition '2': its lease was deleted" in (await (await came(place)).round(SPLIT)).notes[0]


@pytest.mark.virtual
async def test_a_child_whose_document_is_unreadable_is_neither_made_nor_forgotten() -> None:
    place = Place()
    host = await place.begun()
    place.put(replace((await host.leases())["0"], closed=True, children=CHILDREN))
    place.store._put("p/leases/1", "{")
    assert (await host.round(SPLIT)).created == ("2",)
    place.delete("1")
    assert "partition '1': its lease was deleted" in (await (await came(place)).round(SPLIT)).notes[0]


@pytest.mark.virtual
async def test_of_partitions_known_by_their_names_alone_the_same_holds() -> None:
    names: Sequence[Partition] = [Partition("b", ("a",)), Partition("c", ("a",))]
    place = Place()
    host = await place.begun(None, [Partition("a")])
    children = (Child("b", "7"), Child("c", None))
    place.put(replace((await host.leases())["a"], closed=True, children=children))
    assert (await host.round(names)).created == ("b", "c")
    place.delete("b", "c")
    audit = await (await came(place)).round(names)
    assert audit.created == ("b", "c")
    assert "where 'a' ended (7)" in audit.notes[0]
    assert "where 'a' ended (the feed's beginning)" in audit.notes[1]
