"""Shares, takes and handoffs: what leasehold.leases.balance promises, over all kinds of groups."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases import balance
from leasehold.leases.balance import Peer, Plan, plan
from leasehold.leases.lease import Lease, LeaseKey


def lease(partition: str, owner: str | None = None, pipeline: str = "p", **fields: object) -> Lease:
    incarnation = None if owner is None else f"{owner}-1"
    return Lease(pipeline=pipeline, partition=partition, owner=owner, incarnation=incarnation, **fields)  # type: ignore[arg-type]


def peer(
    name: str,
    *pipelines: str,
    leases_max: int | None = None,
    draining: bool = False,
    new: bool = False,
) -> Peer:
    return Peer(
        name=name,
        pipelines=frozenset(pipelines or ("p",)),
        leases_max=leases_max,
        draining=draining,
        is_new=new,
    )


def planned(
    leases: list[Lease],
    peers: list[Peer],
    me: str,
    *,
    expired: set[LeaseKey] = frozenset(),  # type: ignore[assignment]
    overdue: set[LeaseKey] = frozenset(),  # type: ignore[assignment]
    paused: set[str] = frozenset(),  # type: ignore[assignment]
    last: Collection[LeaseKey] = (),
    seed: int = 1,
) -> Plan:
    working = {one.key for one in leases if one.owner == me}
    return plan(leases, peers, me, working, expired, overdue, random.Random(seed), last=last, paused=paused)


def settle(leases: list[Lease], peers: list[Peer], rounds: int = 6) -> list[Lease]:
    """Let every host plan and act in turn, owners answering every request at once, until nothing moves."""
    state = {one.key: one for one in leases}
    for _ in range(rounds):
        moved = False
        for host in peers:
            seen = [*state.values()]
            wanted = planned(seen, peers, host.name)
            for key in wanted.take:
                state[key] = state[key].acquired(host.name, f"{host.name}-1", "")
            for key in wanted.ask:
                state[key] = state[key].handoff_requested(host.name).released()
            moved |= bool(wanted.take or wanted.ask)
        if not moved:
            return list(state.values())
    raise AssertionError("the group never settles")


@pytest.mark.parametrize("owners", ["aabbccc", "aaabbbdccc"], ids=["", "beside a host with a limit"])
@pytest.mark.parametrize("first", ["a", "b"])
def test_each_host_takes_its_whole_share_of_a_dead_hosts_leases_at_once_whoever_comes_first(
    first: str, owners: str
) -> None:
    leases = [lease(str(n), owner) for n, owner in enumerate(owners)]
    peers = [peer("a"), peer("b"), *([peer("d", leases_max=1)] if "d" in owners else [])]
    expired = {one.key for one in leases if one.owner == "c"}
    state = {one.key: one for one in leases}
    for host in (first, *{"a", "b"} - {first}):
        for key in planned(list(state.values()), peers, host, expired=expired).take:
            state[key] = state[key].acquired(host, f"{host}-1", "")
            expired -= {key}
    assert expired == set()


def test_a_single_host_takes_everything() -> None:
    assert sorted(planned([lease("0"), lease("1")], [peer("a")], "a").take) == [("p", "0"), ("p", "1")]


def test_a_host_without_leases_counts_and_asks_for_its_whole_share_in_one_round() -> None:
    leases = [lease(str(i), "a") for i in range(10)]
    wanted = planned(leases, [peer("a"), peer("b")], "b")
    assert (len(wanted.ask), wanted.take) == (5, ())


def test_two_newcomers_ask_for_different_leases() -> None:
    leases = [lease(str(i), "a") for i in range(9)]
    peers = [peer("a"), peer("b"), peer("c")]
    b, c = planned(leases, peers, "b").ask, planned(leases, peers, "c").ask
    assert len(b) == len(c) == 3
    assert not set(b) & set(c)


def test_available_leases_are_taken_before_expired_ones() -> None:
    leases = [lease("0", "dead"), lease("1"), lease("2", "dead"), lease("3")]
    wanted = planned(leases, [peer("a", leases_max=2)], "a", expired={("p", "0"), ("p", "2")})
    assert sorted(wanted.take) == [("p", "1"), ("p", "3")]


@given(st.integers(1, 40), st.integers(1, 8), st.data())
def test_hosts_that_see_the_same_try_for_different_leases(count: int, hosts: int, data: st.DataObject) -> None:
    owners = data.draw(st.lists(st.sampled_from([None, "dead"]), min_size=count, max_size=count))
    leases = [lease(str(n), owner) for n, owner in enumerate(owners)]
    expired = {one.key for one in leases if one.owner == "dead"}
    peers = [peer(name) for name in "abcdefgh"[:hosts]]
    takes = [planned(leases, peers, each.name, expired=expired, seed=n).take for n, each in enumerate(peers)]
    taken = [key for take in takes for key in take]
    assert len(taken) == len(set(taken))
    assert set(taken) == {one.key for one in leases}


def test_a_host_that_just_failed_at_its_leases_takes_those_of_others() -> None:
    leases = [lease(str(n)) for n in range(4)]
    peers = [peer("a"), peer("b")]
    assigned = planned(leases, peers, "a").take
    instead = planned(leases, peers, "a", last=assigned).take
    assert len(instead) == 2
    assert not set(instead) & set(assigned)


def test_nothing_is_asked_for_while_free_leases_fill_the_share() -> None:
    leases = [*(lease(str(i), "b") for i in range(4)), lease("4"), lease("5")]
    wanted = planned(leases, [peer("a"), peer("b")], "a")
    assert len(wanted.take) == 2
    assert len(wanted.ask) == 1


def test_a_lease_of_an_earlier_incarnation_is_taken_back_at_once() -> None:
    leases = [lease("0", "a"), lease("1", "b")]
    wanted = plan(leases, [peer("a"), peer("b")], "a", working=(), expired=(), overdue=(), rng=random.Random(1))
    assert wanted.take == (("p", "0"),)


def test_a_released_lease_goes_to_the_host_that_asked_for_it_and_to_nobody_else() -> None:
    leases = [lease("0", handoff_to="b"), lease("1", "a")]
    peers = [peer("a"), peer("b")]
    assert planned(leases, peers, "b").take == (("p", "0"),)
    assert planned(leases, peers, "a").take == ()


def test_a_lease_kept_for_a_host_that_died_is_anybodys() -> None:
    leases = [lease("0", handoff_to="dead"), lease("1", "a")]
    assert planned(leases, [peer("a")], "a").take == (("p", "0"),)


def test_an_owner_that_does_not_answer_is_stolen_from_once_the_request_is_overdue() -> None:
    leases = [lease("0", "a", handoff_to="b"), lease("1", "a")]
    peers = [peer("a"), peer("b")]
    assert planned(leases, peers, "b").take == ()
    assert planned(leases, peers, "b", overdue={("p", "0")}).take == (("p", "0"),)


def test_a_draining_host_takes_nothing_and_all_it_has_is_asked_for() -> None:
    leases = [lease(str(i), "a") for i in range(4)]
    peers = [peer("a", draining=True), peer("b")]
    assert planned(leases, peers, "a") == Plan((), (), 0)
    assert len(planned(leases, peers, "b").ask) == 4


def test_a_blind_host_keeps_what_it_has_and_the_others_share_the_rest() -> None:
    leases = [lease(p, "a") for p in "123"] + [lease(p, "b") for p in "45678"]
    blind = replace(peer("a"), is_blind=True)
    assert planned(leases, [blind, peer("b"), peer("c")], me="c").ask == (("p", "4"), ("p", "5"))
    assert planned([*leases, lease("9")], [blind, peer("b")], me="b").take == (("p", "9"),)
    blind_and_sick = replace(blind, pipelines=frozenset())
    assert len(planned(leases, [blind_and_sick, peer("b"), peer("c")], me="c").ask) == 4, "they are in the shares"


def test_a_host_never_wants_more_than_its_limit() -> None:
    leases = [lease(str(i)) for i in range(10)]
    peers = [peer("a", leases_max=2), peer("b", leases_max=100)]
    assert len(planned(leases, peers, "a").take) == 2
    assert len(planned(leases, peers, "b").take) == 8


def test_a_newcomer_that_cannot_know_yet_who_is_dead_is_left_no_expired_lease() -> None:
    leases = [lease(str(i), "dead", handoff_to="new" if i < 2 else None) for i in range(4)]
    expired = {one.key for one in leases}
    assert set(planned(leases, [peer("a"), peer("new", new=True)], "a", expired=expired).take) == expired
    assert len(planned(leases, [peer("a"), peer("new")], "a", expired=expired).take) == 2
    a, b = [planned(leases, [peer("a"), peer("b"), peer("new", new=True)], me, expired=expired).take for me in "ab"]
    assert (len(a), len(b)) == (2, 2)
    leases += [lease(str(i), "new") for i in range(4, 6)]
    assert len(planned(leases, [peer("a"), peer("b"), peer("new", new=True)], "a", expired=expired).take) == 2


def test_a_newcomer_has_its_share_of_what_is_available_and_may_be_asked_to_keep_a_lease_for() -> None:
    leases = [*(lease(str(i)) for i in range(4)), lease("4", "a", handoff_to="new"), lease("5", handoff_to="new")]
    peers = [peer("a"), peer("new", new=True)]
    assert len(planned(leases, peers, "a").take) == 3
    assert ("p", "5") not in planned(leases, peers, "a").take
    assert ("p", "5") in planned(leases, peers, "new").take


def test_a_host_is_never_new_to_itself() -> None:
    leases = [lease(str(i), "dead") for i in range(4)]
    expired = {one.key for one in leases}
    assert set(planned(leases, [peer("a", new=True)], "a", expired=expired).take) == expired


def test_closed_leases_are_nobodys() -> None:
    assert planned([lease("0", closed=True)], [peer("a")], "a").take == ()


def test_leases_of_a_paused_pipeline_are_nobodys_whatever_they_look_like() -> None:
    """Available, expired, promised, overdue, and left by an earlier incarnation: all are left alone."""
    left = lease("back", "a")
    leases = [
        lease("free"),
        lease("dead", "z"),
        lease("mine", handoff_to="a"),
        lease("asked", "b", handoff_to="a"),
        left,
    ]
    working: set[LeaseKey] = set()
    peers = [peer("a"), peer("b")]
    expired, overdue = {("p", "dead")}, {("p", "asked")}
    wanted = plan(leases, peers, "a", working, expired, overdue, random.Random(1), paused={"p"})
    assert wanted == Plan((), (), 0)
    assert plan(leases, peers, "a", working, expired, overdue, random.Random(1)).take  # or this test could not fail


def test_hosts_share_the_other_pipelines_as_if_the_paused_one_were_not_there() -> None:
    leases = [lease(str(n), pipeline=name) for name in "pq" for n in range(4)]
    peers = [peer("a", "p", "q"), peer("b", "p", "q")]
    for host in ("a", "b"):
        wanted = planned(leases, peers, host, paused={"p"})
        assert {pipeline for pipeline, _ in wanted.take} == {"q"}
        assert wanted.share == 2


def test_a_paused_pipeline_uses_no_room_of_hosts_with_a_limit() -> None:
    leases = [lease("0", "a", pipeline="p"), lease("1", pipeline="q")]
    limited = [peer("a", "p", "q", leases_max=1)]
    assert planned(leases, limited, "a").take == ()
    assert planned(leases, limited, "a", paused={"p"}).take == (("q", "1"),)


def test_pipelines_that_do_not_divide_are_made_up_for_by_one_another() -> None:
    pipelines = ("p", "q", "r", "s")
    leases = [lease("0", pipeline=name) for name in pipelines]
    settled = settle(leases, [peer("a", *pipelines), peer("b", *pipelines)])
    assert Counter(one.owner for one in settled) == {"a": 2, "b": 2}


def test_a_pipeline_that_only_one_host_runs_stays_with_it() -> None:
    leases = [lease(str(i), pipeline=name) for name in "pq" for i in range(4)]
    settled = settle(leases, [peer("a", "p"), peer("b", "p", "q")])
    assert {one.owner for one in settled if one.pipeline == "q"} == {"b"}


GROUPS = st.tuples(
    st.lists(st.integers(0, 12), min_size=1, max_size=4),  # leases of each pipeline
    st.integers(1, 6),  # hosts
    st.integers(0, 2**32),
)


@given(GROUPS)
def test_shares_differ_by_at_most_one_in_each_pipeline_and_in_all(group: tuple[list[int], int, int]) -> None:
    sizes, count, seed = group
    pipelines = [f"p{i}" for i in range(len(sizes))]
    peers = [peer(f"h{i}", *pipelines) for i in range(count)]
    rng = random.Random(seed)
    leases = [
        lease(str(i), rng.choice([None, *(one.name for one in peers)]), pipeline=name)
        for name, size in zip(pipelines, sizes, strict=True)
        for i in range(size)
    ]
    settled = settle(leases, peers)
    for part in ([one for one in settled if one.pipeline == name] for name in pipelines):
        _assert_even(part, peers)
    _assert_even(settled, peers)


@given(GROUPS)
def test_a_settled_group_never_moves_anything(group: tuple[list[int], int, int]) -> None:
    sizes, count, _ = group
    pipelines = [f"p{i}" for i in range(len(sizes))]
    peers = [peer(f"h{i}", *pipelines) for i in range(count)]
    leases = [lease(str(i), pipeline=name) for name, size in zip(pipelines, sizes, strict=True) for i in range(size)]
    settled = settle(leases, peers)
    for host in peers:
        wanted = planned(settled, peers, host.name)
        assert (wanted.take, wanted.ask) == ((), ())


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32))
def test_a_newcomer_costs_no_more_moves_than_its_share(leases_count: int, hosts: int, seed: int) -> None:
    peers = [peer(f"h{i}") for i in range(hosts)]
    settled = settle([lease(str(i)) for i in range(leases_count)], peers)
    more = [*peers, peer("new")]
    after = {one.key: one.owner for one in settle(settled, more)}
    moved = [one for one in settled if after[one.key] != one.owner]
    assert all(after[one.key] == "new" for one in moved)
    assert len(moved) <= -(-leases_count // (hosts + 1))


@given(st.lists(st.one_of(st.none(), st.integers(0, 6)), min_size=1, max_size=5), st.integers(0, 20))
def test_limits_are_respected_and_room_is_used(limits: list[int | None], count: int) -> None:
    peers = [peer(f"h{i}", leases_max=limit) for i, limit in enumerate(limits)]
    settled = settle([lease(str(i)) for i in range(count)], peers)
    owned = Counter(one.owner for one in settled)
    room = sum(count if limit is None else limit for limit in limits)
    assert all(limit is None or owned[f"h{i}"] <= limit for i, limit in enumerate(limits))
    assert sum(owned[one.name] for one in peers) == min(count, room)


def test_an_unreachable_expired_owner_is_planned_around() -> None:
    leases = [replace(lease(str(i), "dead"), handoff_to=None) for i in range(4)]
    expired = {one.key for one in leases}
    takes = [planned(leases, [peer("a"), peer("b")], host, expired=expired).take for host in ("a", "b")]
    assert [len(take) for take in takes] == [2, 2]


@pytest.mark.parametrize("me", ["a", "b"])
def test_a_request_that_is_on_its_way_is_not_made_again(me: str) -> None:
    leases = [lease("0", "a", handoff_to="b"), lease("1", "a", handoff_to="b"), lease("2", "a"), lease("3", "a")]
    assert planned(leases, [peer("a"), peer("b")], me).ask == ()


@given(GROUPS, st.sampled_from(["settled", "a host has joined", "a host is dead"]))
def test_a_plan_in_small_steps_is_the_plan(group: tuple[list[int], int, int], situation: str) -> None:
    sizes, count, seed = group
    pipelines = [f"p{i}" for i in range(len(sizes))]
    peers = [peer(f"h{i}", *pipelines) for i in range(count)]
    owners = [None, "gone", *(one.name for one in peers[situation == "a host has joined" :])]
    rng = random.Random(seed)
    leases = [
        lease(str(i), rng.choice(owners), pipeline=name)
        for name, n in zip(pipelines, sizes, strict=True)
        for i in range(n)
    ]
    expired = {one.key for one in leases if one.owner == "gone"} if situation == "a host is dead" else set()
    whole = planned(leases, peers, "h0", expired=expired)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balance, "STEP_MAX", 3)
        assert planned(leases, peers, "h0", expired=expired) == whole


def test_no_step_of_a_plan_considers_many_leases_or_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "STEP_MAX", 20)
    pipelines = [f"p{i}" for i in range(10)]
    peers = [peer(f"h{i}", *pipelines) for i in range(10)]
    leases = [lease(str(i), f"h{i % 9}", pipeline=name) for name in pipelines for i in range(10)]
    working = frozenset[LeaseKey]()
    steps = list(balance.plan_in_steps(leases, peers, "h9", working, (), (), random.Random(1)))
    assert len(steps) >= 4 * (100 // 20 - 1)  # 100 leases, and three times 100 pairs of a pipeline and a host


def _assert_even(leases: list[Lease], peers: list[Peer]) -> None:
    owned = Counter(one.owner for one in leases)
    shares = [owned[one.name] for one in peers]
    assert max(shares) - min(shares) <= 1
    assert sum(shares) == len(leases)
