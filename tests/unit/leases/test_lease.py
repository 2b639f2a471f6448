from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases.lease import SINK_STATE_BYTES_MAX, Child, Lease

AVAILABLE = Lease(pipeline="balances", partition="0", continuation="5", sink_state="level 3")
OWNED = AVAILABLE.acquired("host-a", "1", "level 4")


def changed(before: Lease, after: Lease) -> set[str]:
    return {field.name for field in fields(Lease) if getattr(before, field.name) != getattr(after, field.name)}


def test_taking_a_lease_raises_its_epoch_and_the_sinks_state_in_one_change() -> None:
    assert (OWNED.owner, OWNED.incarnation) == ("host-a", "1")
    assert (OWNED.epoch, OWNED.sink_state) == (AVAILABLE.epoch + 1, "level 4")
    assert changed(AVAILABLE, OWNED) == {"owner", "incarnation", "epoch", "tick", "sink_state"}


def test_taking_a_lease_from_its_owner_starts_another_tenure() -> None:
    stolen = OWNED.acquired("host-b", "1", "level 5")
    again = OWNED.acquired("host-a", "2", "level 5")
    assert stolen.epoch == again.epoch == OWNED.epoch + 1
    assert not stolen.is_same_tenure(OWNED)
    assert not again.is_same_tenure(OWNED)
    assert again.incarnation != OWNED.incarnation


def test_taking_a_lease_that_was_asked_for_settles_the_request() -> None:
    assert OWNED.handoff_requested("host-b").released().acquired("host-b", "1", "").handoff_to is None


def test_a_renewal_moves_the_tick_alone() -> None:
    assert changed(OWNED, OWNED.renewed()) == {"tick"}


def test_a_checkpoint_renews_too() -> None:
    after = OWNED.checkpointed("6", "level 4, number 9")
    assert (after.tick, after.continuation, after.sink_state) == (OWNED.tick + 1, "6", "level 4, number 9")
    assert changed(OWNED, after) == {"tick", "continuation", "sink_state"}


def test_a_sink_state_that_outgrows_the_document_is_our_mistake() -> None:
    OWNED.checkpointed("6", "é" * (SINK_STATE_BYTES_MAX // 2))
    with pytest.raises(AssertionError):
        OWNED.checkpointed("6", "é" * (SINK_STATE_BYTES_MAX // 2) + "x")


@pytest.mark.parametrize(("above", "epoch"), [(0, 2), (1, 2), (7, 8)])
def test_a_raised_epoch_is_above_ones_own_and_the_sinks(above: int, epoch: int) -> None:
    after = OWNED.epoch_raised(above, "level 5")
    assert (OWNED.epoch, after.epoch, after.sink_state) == (1, epoch, "level 5")
    assert not after.is_same_tenure(OWNED)
    assert changed(OWNED, after) == {"epoch", "tick", "sink_state"}


def test_a_handoff_request_changes_nothing_else() -> None:
    asked = OWNED.handoff_requested("host-b")
    assert changed(OWNED, asked) == {"handoff_to"}
    assert asked.is_same_tenure(OWNED)


def test_a_released_lease_keeps_its_continuation_and_is_reserved_for_who_asked() -> None:
    released = OWNED.checkpointed("6", "level 4").handoff_requested("host-b").released()
    assert (released.owner, released.incarnation) == (None, None)
    assert (released.continuation, released.sink_state, released.handoff_to) == ("6", "level 4", "host-b")
    assert released.epoch == OWNED.epoch


def test_a_reset_starts_a_generation_and_ends_the_tenure() -> None:
    after = OWNED.handoff_requested("host-b").reset(None)
    assert (after.generation, after.continuation, after.owner, after.handoff_to) == (1, None, None, None)
    assert (after.epoch, after.sink_state) == (OWNED.epoch, OWNED.sink_state)
    assert not after.is_same_tenure(OWNED)


def test_a_closed_lease_keeps_its_final_position_and_is_never_taken_again() -> None:
    children = (Child("0-a", "6"), Child("0-b", None))
    ended = OWNED.ended("6", children)
    assert (ended.closed, ended.continuation, ended.children, ended.owner) == (True, "6", children, None)
    with pytest.raises(AssertionError):
        ended.acquired("host-b", "1", "")


def test_a_close_by_an_operator_moves_neither_epoch_nor_tick_and_ends_the_tenure() -> None:
    closed = OWNED.handoff_requested("host-b").finished("6", tombstone=True)
    assert changed(OWNED, closed) == {"owner", "incarnation", "continuation", "closed", "tombstone"}
    assert not closed.is_same_tenure(OWNED)
    with pytest.raises(AssertionError):
        closed.acquired("host-b", "1", "")


def test_a_reset_opens_what_an_operator_closed_and_not_what_has_ended() -> None:
    opened = OWNED.finished("6", tombstone=True).reset(None)
    assert (opened.closed, opened.tombstone, opened.generation, opened.continuation) == (False, False, 1, None)
    assert opened.acquired("host-b", "1", "").owner == "host-b"
    assert OWNED.ended("6", (Child("0-a", "6"),)).reset(None).closed


names = st.sampled_from(["host-a", "host-b", "host-c"])
positions = st.none() | st.integers(0, 9).map(str)
Change = tuple[str, Callable[[Lease], Lease]]


def change(name: str, *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[Change]:
    return st.tuples(*arguments).map(lambda values: (name, lambda lease: getattr(lease, name)(*values)))


changes = st.lists(
    st.one_of(
        change("acquired", names, names, names),
        change("renewed"),
        change("checkpointed", positions, names),
        change("epoch_raised", st.integers(0, 20), names),
        change("handoff_requested", names),
        change("released"),
        change("reset", positions),
        change("ended", positions, st.just((Child("c", None),))),
    ),
    max_size=30,
)


def history(changes: list[Change]) -> list[tuple[str, Lease]]:
    """Each change's name and what it led to; a closed lease is not acquired."""
    states = [("", replace(AVAILABLE, epoch=3, generation=2, tick=5))]
    for name, act in changes:
        if not (name == "acquired" and states[-1][1].closed):
            states.append((name, act(states[-1][1])))
    return states


@given(changes)
def test_epoch_generation_and_tick_never_go_down(changes: list[Change]) -> None:
    for (_, before), (name, after) in pairwise(history(changes)):
        assert after.epoch >= before.epoch
        assert after.generation >= before.generation
        assert after.tick >= before.tick
        assert (after.generation > before.generation) == (name == "reset")
        assert (after.epoch > before.epoch) == (name in ("acquired", "epoch_raised"))


@given(changes)
def test_a_request_for_handoff_and_a_reset_never_move_the_tick(changes: list[Change]) -> None:
    for (_, before), (name, after) in pairwise(history(changes)):
        assert (after.tick == before.tick) == (name in ("handoff_requested", "reset"))


@given(changes)
def test_one_epoch_has_one_owner(changes: list[Change]) -> None:
    owners: dict[int, tuple[str | None, str | None]] = {}
    for _, lease in history(changes):
        if lease.owner is not None:
            tenant = lease.owner, lease.incarnation
            assert owners.setdefault(lease.epoch, tenant) == tenant


@given(changes)
def test_a_lease_that_has_ended_is_never_open_again(changes: list[Change]) -> None:
    for (_, before), (_, after) in pairwise(history(changes)):
        assert after.closed >= before.closed
        assert not (after.closed and after.owner)


@given(changes)
def test_what_a_lease_is_about_never_changes(changes: list[Change]) -> None:
    for _, lease in history(changes):
        assert (lease.key, lease.parents, lease.unknown) == (AVAILABLE.key, (), AVAILABLE.unknown)


def test_a_lease_that_is_put_back_gives_out_no_epoch_that_its_owner_may_have_raised_to() -> None:
    """Its owner fences itself without being seen, and the next one must be above that."""
    raised = OWNED
    for _ in range(100):
        raised = raised.epoch_raised(0, "")
    assert OWNED.put_back().acquired("b", "b-1", "").epoch > raised.epoch
