"""What a host did not take in time, any host may take."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases.balance import Peer, plan
from leasehold.leases.keeper import Scan
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.shares import Shares
from leasehold.leases.tenure import VersionedLease

D = 7.0
PEERS = [Peer(name=name, pipelines=frozenset({"p"}), lasts_s=D) for name in "abc"]


def scan(*leases: Lease) -> Scan:
    return Scan({lease.key: VersionedLease(lease, "1") for lease in leases}, 0.0, 0.0)


def lease(partition: str, owner: str | None = None, **fields: object) -> Lease:
    incarnation = owner and f"{owner}-1"
    return Lease(pipeline="p", partition=partition, owner=owner, incarnation=incarnation, **fields)  # type: ignore[arg-type]


def passed(shares: Shares, at: float, *leases: Lease, expired: tuple[LeaseKey, ...] = ()) -> set[str]:
    return {key.partition for key in shares.passed(scan(*leases), PEERS, expired, "a", at)}


def test_what_is_free_for_longer_than_whoever_is_meant_may_be_silent_is_anybodys() -> None:
    shares = Shares()
    assert passed(shares, 0.0, lease("0"), lease("1", "b")) == set()
    assert passed(shares, D, lease("0"), lease("1", "b")) == set()
    assert passed(shares, D + 0.1, lease("0"), lease("1", "b")) == {"0"}


def test_what_has_expired_or_is_promised_is_no_different() -> None:
    shares, gone, promised = Shares(), lease("0", "gone"), lease("1", handoff_to="b")
    assert passed(shares, 0.0, gone, promised, expired=(gone.key,)) == set()
    assert passed(shares, D + 0.1, gone, promised, expired=(gone.key,)) == {"0", "1"}


def test_a_slow_newcomer_that_takes_one_lease_after_another_is_not_robbed() -> None:
    shares, free = Shares(), [lease(str(n)) for n in range(4)]
    passed(shares, 0.0, *free)
    for n in range(4):
        free[n] = lease(str(n), "c")
        assert passed(shares, (n + 1) * 5.0, *free) == set()
    assert passed(shares, 40.0, *free, lease("9")) == set()
    assert passed(shares, 40.0 + D + 0.1, *free, lease("9")) == {"9"}


def test_while_a_pipeline_is_paused_its_leases_are_not_let_pass() -> None:
    shares, free = Shares(), lease("0")
    for at in (0.0, D + 0.1, 100.0):
        assert shares.passed(scan(free), PEERS, (), "a", at, paused=("p",)) == set()
    assert passed(shares, 101.0, free) == set(), "it could be taken since then"
    assert passed(shares, 101.0 + D + 0.1, free) == {"0"}


def test_who_let_a_share_pass_gets_no_more_than_it_has_for_a_while_that_doubles() -> None:
    shares = Shares()
    shares.bench(["b"], 0.0)
    assert shares.benched(59.0) == {"b"}
    assert shares.benched(61.0) == frozenset()
    shares.bench(["b"], 61.0)
    shares.bench(["b"], 70.0)
    assert shares.benched(61.0 + 119.0) == {"b"}
    assert shares.benched(61.0 + 121.0) == frozenset()


def test_what_is_free_is_not_left_to_who_let_leases_pass() -> None:
    leases = [lease("0", "a"), lease("1", "b"), lease("2"), lease("3")]
    for benched, taken in (((), 1), (("b",), 2), (("a", "b"), 2)):
        found = plan(leases, PEERS[:2], "a", [leases[0].key], (), (), random.Random(1), benched=benched)
        assert (len(found.take), found.ask) == (taken, ())


@given(st.lists(st.sampled_from("abc"), max_size=9), st.frozensets(st.sampled_from("abc")))
def test_hosts_request_the_same_whomever_they_have_seen_let_leases_pass(owners: list[str], benched: set[str]) -> None:
    """Otherwise two hosts that saw different ones request the leases of each other, without end."""
    leases = [lease(str(n), owner) for n, owner in enumerate(owners)]
    for me in "abc":
        mine = [each.key for each in leases if each.owner == me]
        usual = plan(leases, PEERS, me, mine, (), (), random.Random(1))
        assert plan(leases, PEERS, me, mine, (), (), random.Random(1), benched=benched) == usual


def test_a_plan_takes_all_that_was_let_pass_and_names_who_lacks_leases() -> None:
    leases = [lease("0", "a"), lease("1", "a"), lease("2"), lease("3")]
    keys = [each.key for each in leases]
    peers = PEERS[:2]
    usual = plan(leases, peers, "a", keys[:2], (), (), random.Random(1))
    assert usual.take == ()
    found = plan(leases, peers, "a", keys[:2], (), (), random.Random(1), passed=frozenset(keys[2:]))
    assert set(found.take) == set(keys[2:])
    assert found.lacking == {"b"}
