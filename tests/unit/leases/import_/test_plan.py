"""What an import would change: nothing back, nothing under an owner who lives, and nothing twice."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases.document import INTEGER_MAX, UNKNOWN_DEPTH_MAX
from leasehold.leases.errors import Incomparable
from leasehold.leases.import_.plan import Candidate, PlannedChange, Rules, planned
from leasehold.leases.lease import Child, Lease
from leasehold.leases.tenure import VersionedLease


def compare(a: str | None, b: str | None) -> int:
    def number(text: str | None) -> int:
        if text is not None and not text.isdecimal():
            raise Incomparable(f"{text!r} is no position")
        return int(text or 0)

    return number(a) - number(b)


RULES = Rules(compare=compare)


def lease(partition: str = "0", continuation: str | None = "10", **fields: Any) -> Lease:
    return Lease(pipeline="orders", partition=partition, continuation=continuation, **fields)


def candidate(partition: str = "0", continuation: str | None = "10", **fields: Any) -> Candidate:
    options = {name: fields.pop(name) for name in ("owner", "packed", "parts", "restores") if name in fields}
    made = lease(partition, continuation, **fields)
    return Candidate(document=f"prefix..{partition}", partition=partition, lease=made, **options)


def here(*leases: Lease) -> dict[str, VersionedLease]:
    return {each.partition: VersionedLease(each, f"etag-{each.partition}") for each in leases}


def only(brought: Candidate, *leases: Lease, **rules: Any) -> PlannedChange:
    [change] = planned([brought], here(*leases), replace(RULES, **rules))
    return change


def after(changes: list[PlannedChange], seen: dict[str, VersionedLease]) -> dict[str, VersionedLease]:
    written = {change.wanted.partition: VersionedLease(change.wanted, "new") for change in changes if change.wanted}
    return {**seen, **written}


def test_a_lease_that_is_not_here_is_created_as_it_is() -> None:
    change = only(candidate(epoch=7, generation=3, sink_state="s", unknown={"x": 1}, owner="gone"))
    assert (change.kind, change.document, change.seen) == ("created", "prefix..0", None)
    assert change.wanted == lease(epoch=7, generation=3, sink_state="s", unknown={"x": 1})
    assert change.why == "was gone's"


def test_a_lease_without_a_continuation_is_told_to_begin_at_the_beginning() -> None:
    assert only(candidate(continuation=None)).why == "has no continuation: begins at the feed's beginning"


def test_a_lease_that_is_here_is_moved_by_a_reset() -> None:
    before = lease(epoch=5, generation=2, tick=9, sink_state="s", owner="gone", incarnation="1", unknown={"x": 1})
    change = only(candidate(continuation="20", sink_state="theirs"), before)
    assert change.kind == "moved"
    assert change.wanted == before.reset("20")
    assert change.wanted.generation == 3
    assert change.wanted.unknown == {"x": 1}
    assert "a reset: generation 2 -> 3, whatever position the sink holds; was gone's" in change.why


def test_a_lease_that_is_not_here_begins_a_generation_that_the_sink_has_no_position_of() -> None:
    """Or the sink would continue from its own position, and the import would do nothing."""
    change = only(candidate(continuation="20"), standings={"0": (0, "10")})
    assert change.wanted == lease(continuation="20", generation=1)
    assert change.why == "a reset: generation 0 -> 1, as the sink holds a position"
    assert only(candidate(generation=5), standings={"0": (4, "99")}).wanted == lease(generation=5)
    assert only(candidate(continuation="20"), standings={"0": (3, "20")}).wanted == lease(
        continuation="20", generation=3
    )


def test_nothing_moves_back_behind_the_sink_unless_forced() -> None:
    for here in ([], [lease(continuation="8")]):
        change = only(candidate(continuation="9"), *here, standings={"0": (0, "10")})
        assert (change.kind, change.why.split(",")[0]) == ("refused", "it would move back (the sink is at 10)")
        forced = only(candidate(continuation="9"), *here, standings={"0": (0, "10")}, force=True)
        assert forced.wanted == lease(continuation="9", generation=1)


def test_what_was_exported_here_goes_on_from_the_sinks_own_position() -> None:
    """Its continuation may lag, and to begin anew at it would tell again what the sink has."""
    brought = candidate(generation=2, restores=True)
    assert only(brought, standings={"0": (2, "99")}).wanted == lease(generation=2)
    assert only(brought, standings={"0": (3, "99")}).kind == "refused"


def test_a_move_begins_a_generation_above_all_that_the_sink_knows() -> None:
    change = only(candidate(continuation="20"), lease(generation=2), standings={"0": (7, "99")})
    assert change.wanted is not None
    assert change.wanted.generation == 8


@pytest.mark.parametrize("owned", [{}, {"owner": "host-a", "incarnation": "1"}])
def test_a_lease_at_the_same_position_is_left_alone_whoever_has_it(owned: dict[str, str]) -> None:
    change = only(candidate(continuation="010", generation=9), lease(**owned), owners={"0": "host-a"})
    assert (change.kind, change.wanted) == ("unchanged", None)


def test_nothing_moves_back_unless_forced() -> None:
    change = only(candidate(continuation="9"), lease())
    assert (change.kind, change.wanted) == ("refused", None)
    assert change.why.startswith("it would move back")
    assert only(candidate(continuation=None), lease()).kind == "refused"
    forced = only(candidate(continuation="9"), lease(), force=True)
    assert (forced.kind, forced.wanted) == ("moved", lease().reset("9"))
    assert "moves back, as forced" in forced.why


def test_where_the_feed_cannot_tell_it_says_so_and_wants_to_be_forced() -> None:
    change = only(candidate(), lease(continuation="foreign"))
    assert change.kind == "refused"
    assert change.why.startswith("the feed does not know whether it moves back ('foreign' is no position)")
    assert only(candidate(), lease(continuation="foreign"), force=True).wanted == lease(continuation="foreign").reset(
        "10"
    )


def test_what_is_no_position_of_the_feed_is_refused_even_if_forced() -> None:
    for brought in (candidate(continuation="foreign"), candidate(closed=True, children=(Child("1", "foreign"),))):
        change = only(brought, force=True)
        assert (change.kind, change.why) == ("refused", "document 'prefix..0': 'foreign' is no position")


def test_nothing_moves_under_an_owner_who_lives_even_if_forced() -> None:
    owned = lease(owner="host-a", incarnation="1")
    change = only(candidate(continuation="20"), owned, owners={"0": "host-a"}, force=True)
    assert change.kind == "refused"
    assert change.why == "'host-a' owns it and is alive: stop it and wait for its release, or until the lease expires"


def test_a_document_whose_writer_lives_is_refused() -> None:
    change = only(candidate(), writers={"prefix..0": "dotnet-1"}, force=True)
    assert (change.kind, change.why.split(":")[0]) == ("refused", "'dotnet-1' is processing document 'prefix..0'")


def test_two_documents_for_one_lease_are_both_refused() -> None:
    changes = planned([candidate(), candidate(continuation="20"), candidate("1")], {}, RULES)
    assert [(c.partition, c.kind) for c in changes] == [("0", "refused"), ("0", "refused"), ("1", "created")]
    assert "2 documents describe this lease" in changes[0].why


def test_a_document_that_could_not_be_read_is_refused_with_its_reason() -> None:
    change = only(Candidate(document="x", partition="0", refused="document 'x': field 'Owner' is odd"))
    assert (change.kind, change.why) == ("refused", "document 'x': field 'Owner' is odd")


def test_a_lease_that_could_not_be_read_back_is_refused() -> None:
    assert only(candidate(continuation="20"), lease(generation=INTEGER_MAX)).kind == "refused"
    deep: dict[str, Any] = {}
    for _ in range(UNKNOWN_DEPTH_MAX):
        deep = {"x": deep}
    assert "nested" in only(candidate(unknown={"x": deep})).why


def test_what_covers_the_same_as_another_lease_is_refused() -> None:
    def overlapping(one: Lease, others: Any) -> list[str]:
        return [other.partition for other in others if other.scope == one.scope]

    change = only(candidate("-FF", scope="all"), lease("0", scope="all"), overlapping=overlapping)
    assert change.kind == "refused"
    assert change.why.startswith("it covers what '0' covers")
    assert (
        only(candidate("-FF", scope="all"), lease("0", scope="all", closed=True), overlapping=overlapping).kind
        == "created"
    )
    twins = planned(
        [candidate("a", scope="all"), candidate("b", scope="all")], {}, replace(RULES, overlapping=overlapping)
    )
    assert [change.kind for change in twins] == ["refused", "refused"]


def test_a_closed_lease_stays_closed() -> None:
    children = (Child("1", "10"), Child("2", "10"))
    closed = lease(closed=True, children=children)
    assert only(candidate(closed=True, children=children), closed).kind == "unchanged"
    assert (
        only(candidate(continuation="20"), closed, force=True).why == "it has ended here, and '1', '2' continue from it"
    )
    assert (
        "has ended in the input and is open here"
        in only(candidate(closed=True, children=children), lease(), force=True).why
    )


def test_children_are_written_before_the_parent_that_names_them() -> None:
    """Or a host that sees the parent would make them at its end, behind where they are in the input."""
    brought = [candidate("0", closed=True, children=(Child("1", "10"),)), candidate("1", "50")]
    assert [change.partition for change in planned(brought, {}, RULES)] == ["1", "0"]


def test_a_child_that_a_host_is_about_to_make_is_not_created_elsewhere() -> None:
    change = only(candidate("1", "50"), lease(closed=True, children=(Child("1", "10"),)))
    assert change.why == "lease '0' lists it as a child: wait until a host creates its lease, then import again"


PARTS = (Child("-7F", "5", "-7F"), Child("7F-FF", "9", "7F-FF"))


def test_a_lease_of_several_positions_becomes_one_for_each_where_it_is_not_here() -> None:
    changes = planned([candidate("-FF", None, packed="eyJ", parts=PARTS)], {}, RULES)
    assert [(c.kind, c.wanted and (c.wanted.partition, c.wanted.continuation, c.wanted.scope)) for c in changes] == [
        ("created", ("-7F", "5", "-7F")),
        ("created", ("7F-FF", "9", "7F-FF")),
    ]


def test_in_its_own_document_it_is_closed_for_them() -> None:
    before = lease("-FF", "eyJ")
    change = only(candidate("-FF", None, packed="eyJ", parts=PARTS), before)
    assert change.wanted is not None
    assert (change.kind, change.wanted.closed, change.wanted.children) == ("moved", True, PARTS)
    assert only(candidate("-FF", None, packed="eyJ", parts=PARTS), change.wanted).kind == "unchanged"
    assert "holds 2 positions" in only(candidate("-FF", None, packed="eyJ", parts=PARTS), lease("-FF", "7")).why


def test_javas_continuation_is_unpacked_in_its_own_document() -> None:
    before = lease("-FF", "eyJ", epoch=3, owner="java", incarnation="foreign")
    change = only(candidate("-FF", "500", packed="eyJ"), before)
    assert (change.kind, change.wanted) == ("moved", before.reset("500"))
    assert "unpacked" in change.why
    assert only(candidate("-FF", "500", packed="eyJ"), before, owners={"-FF": "java"}).kind == "refused"


places = st.none() | st.integers(0, 30).map(str)
partitions = st.sampled_from("0123456")


@given(st.dictionaries(partitions, places, max_size=6), st.dictionaries(partitions, places, max_size=6), st.booleans())
def test_what_was_carried_out_is_unchanged_the_next_time_and_nothing_went_back(
    brought: dict[str, str | None], held: dict[str, str | None], force: bool
) -> None:
    seen = here(*(lease(name, place) for name, place in held.items()))
    rules = replace(RULES, force=force)
    found = [candidate(name, place) for name, place in brought.items()]
    changes = planned(found, seen, rules)
    again = planned(found, after(changes, seen), rules)
    assert {c.partition for c in again if c.kind not in ("unchanged", "refused")} == set()
    assert {c.partition for c in again if c.kind == "refused"} == {c.partition for c in changes if c.kind == "refused"}
    for change in changes:
        if change.wanted and change.seen:
            assert change.wanted.generation == change.seen.lease.generation + 1
            assert force or compare(change.wanted.continuation, change.seen.lease.continuation) > 0
