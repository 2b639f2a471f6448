"""What a host did not take in time, any host may take."""

from __future__ import annotations

import random
from dataclasses import replace

from leasehold.leases.balance import Peer, plan
from leasehold.leases.keeper import Scan
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.shares import Shares
from leasehold.leases.tenure import VersionedLease

D = 7.0
PEERS = [Peer(name=name, pipelines=frozenset({"p"}), lasts_s=D) for name in "abc"]


def scan(*leases: Lease) -> Scan:
    return Scan({lease.key: VersionedLease(lease, "1") for lease in leases}, (), 0.0, 0.0)


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


def test_who_let_a_share_pass_gets_no_more_than_it_has_for_a_while_that_doubles() -> None:
    shares, leases = Shares(), [lease("0", "b"), lease("1")]
    shares.bench(["b"], 0.0)
    assert [each.leases_max for each in shares.capped(PEERS, leases, 59.0)] == [None, 1, None]
    assert shares.capped(PEERS, leases, 61.0) == PEERS
    shares.bench(["b"], 61.0)
    assert shares.capped(PEERS, leases, 61.0 + 119.0) != PEERS
    assert shares.capped([replace(PEERS[1], leases_max=0)], leases, 61.0 + 119.0)[0].leases_max == 0


def test_a_plan_takes_all_that_was_let_pass_and_names_who_lacks_leases() -> None:
    leases = [lease("0", "a"), lease("1", "a"), lease("2"), lease("3")]
    keys = [each.key for each in leases]
    peers = PEERS[:2]
    usual = plan(leases, peers, "a", keys[:2], (), (), random.Random(1))
    assert usual.take == ()
    found = plan(leases, peers, "a", keys[:2], (), (), random.Random(1), passed=frozenset(keys[2:]))
    assert set(found.take) == set(keys[2:])
    assert found.lacking == {"b"}
