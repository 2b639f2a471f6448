"""Which leases to take and which to request, so that the hosts' shares differ by at most one. Pure.

Every host plans from the same documents and computes the same shares, so no leader is needed. Shares are equal within
each pipeline and over all pipelines. The remainder goes to the hosts with the fewest leases so far, and among those to
the hosts that already hold it, so a settled group never moves anything.

A lease changes hands on request: the taker writes its name into `handoff_to`, and the owner finishes its work and
releases the lease. All moves after a change in membership are planned in one round.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from zlib import crc32

from leases.lease import Lease, LeaseKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A live host, according to its document. has_session: without one, it can own no lease that sessions judge."""

    name: str
    pipelines: frozenset[str]
    leases_max: int | None = None
    draining: bool = False
    is_new: bool = False
    has_session: bool = False

    def serves(self, pipeline: str) -> bool:
        return pipeline in self.pipelines and not self.draining


@dataclass(frozen=True, slots=True)
class Plan:
    """What a host does in this round."""

    take: tuple[LeaseKey, ...]
    ask: tuple[LeaseKey, ...]
    share: int


def plan(
    leases: Collection[Lease],
    peers: Collection[Peer],
    me: str,
    working: Collection[LeaseKey],
    expired: Collection[LeaseKey],
    overdue: Collection[LeaseKey],
    rng: random.Random,
    last: Collection[LeaseKey] = (),
    paused: Collection[str] = (),
) -> Plan:
    """What `me` should do now.

    - leases: all of the group, including closed ones.
    - peers: the live hosts, including `me`.
    - working: the leases that `me` processes. Any other lease in its name was left by an earlier incarnation or a lost
      answer, and `me` takes it back at once.
    - expired: leases whose owner did not move its tick for a lease duration.
    - overdue: leases that `me` requested a lease duration ago and may now steal.
    - rng: spreads hosts that take from the same set of free leases, so that they do not all start with the same one.
    - last: leases that just failed on `me`, which it prefers to leave to other hosts.
    - paused: pipelines that no host processes; their leases are neither taken nor requested, and count in no share.
    """
    able = {peer.name: peer for peer in peers if not peer.draining}
    if me not in able:
        return Plan((), (), 0)
    seeing = {name: peer for name, peer in able.items() if name == me or not peer.is_new}
    open_leases = [lease for lease in leases if not lease.closed and lease.pipeline not in paused]
    back = [lease.key for lease in open_leases if lease.owner == me and lease.key not in working]
    holders = {
        lease.key: holder(lease, seeing if lease.key in expired else able, lease.key in expired)
        for lease in open_leases
    }
    shares = shares_of_expired = shares_of(open_leases, able, holders)
    if unseeing := able.keys() - seeing.keys():  # they would let what expires lie, and ask for their part of it later
        others = [lease for lease in open_leases if holders[lease.key] not in unseeing]
        shares_of_expired = shares_of(others, seeing, holders)
    take, ask = list(back), []
    for pipeline in sorted(able[me].pipelines):
        here = [lease for lease in open_leases if lease.pipeline == pipeline and lease.key not in back]
        promised = [lease.key for lease in here if lease.handoff_to == me and _is_takeable(lease, expired, overdue)]
        free = [lease for lease in here if holders[lease.key] is None]
        held = sum(holders[lease.key] == me for lease in here) + _count(back, pipeline)
        need = shares[pipeline].get(me, 0) - held
        picked = _picked(free, max(0, need), _assigned(free, here, shares[pipeline], holders, me), rng, last)
        left = [lease for lease in free if lease.key in expired and lease.key not in picked]
        need_of_expired = shares_of_expired[pipeline].get(me, 0) - held - len(picked)
        assigned = _assigned(left, here, shares_of_expired[pipeline], holders, me)
        take += promised
        take += picked + _picked(left, max(0, need_of_expired), assigned, rng, last)
        if need > len(free):
            ask += _asked(here, shares[pipeline], holders, me)[: need - len(free)]
    return Plan(tuple(take), tuple(ask), sum(share.get(me, 0) for share in shares.values()))


def creation_order(partitions: Iterable[str], me: str, hosts: Collection[str]) -> list[tuple[int, str]]:
    """The order in which `me` creates the leases of a new pipeline, as (number of hosts whose turn comes first,
    partition).

    Hosts that start together each come first for different partitions. Hosts that do not know each other yet start at
    different partitions.
    """
    mine, others = _hashed(me), [_hashed(host) for host in {*hosts} - {me}]

    def turn(partition: str) -> tuple[int, int, str]:
        spot = _hashed(partition)
        weight = _mixed(mine ^ spot)
        return sum(_mixed(other ^ spot) > weight for other in others), (spot - mine) % 2**32, partition

    return [(rank, partition) for rank, _, partition in sorted(map(turn, partitions))]


def _hashed(name: str) -> int:
    """The same value in every process."""
    return crc32(name.encode("utf-8", "surrogatepass"))


def _mixed(number: int) -> int:
    """Rendezvous hashing: the host with the highest number comes first, and adding a host changes few of these."""
    return number * 0x9E3779B1 & 0xFFFFFFFF


def holder(lease: Lease, able: Mapping[str, Peer], is_expired: bool) -> str | None:
    """The host that has the lease or is about to get it; None if any host may take it."""
    if lease.handoff_to is not None and lease.handoff_to != lease.owner and _serves(able, lease.handoff_to, lease):
        return lease.handoff_to
    return None if is_expired else lease.owner


def shares_of(
    leases: Iterable[Lease], able: Mapping[str, Peer], holders: Mapping[LeaseKey, str | None]
) -> dict[str, dict[str, int]]:
    """pipeline -> host -> how many of the pipeline's leases that host should hold.

    Hosts without sessions do not see the leases that sessions judge. They share the others with all hosts, and ask for
    their part themselves: nothing is left free for them. What they do not hold is for the hosts that have sessions.
    """
    leases = list(leases)
    with_session = {name: peer for name, peer in able.items() if peer.has_session}
    seen_by_all = [lease for lease in leases if not lease.by_session]
    if len(with_session) == len(able) or len(seen_by_all) == len(leases):
        return _shares_beside(Counter(), leases, able, holders)
    held = Counter((lease.pipeline, holders[lease.key]) for lease in seen_by_all)
    without = {
        pipeline: {name: min(share, held[pipeline, name]) for name, share in shares.items() if name not in with_session}
        for pipeline, shares in _shares_beside(Counter(), seen_by_all, able, holders).items()
    }
    given = Counter({pipeline: sum(shares.values()) for pipeline, shares in without.items()})
    left = _shares_beside(given, leases, with_session, holders)
    return {pipeline: without.get(pipeline, {}) | left.get(pipeline, {}) for pipeline in without.keys() | left.keys()}


def _shares_beside(
    given: Counter[str],
    leases: Collection[Lease],
    able: Mapping[str, Peer],
    holders: Mapping[LeaseKey, str | None],
) -> dict[str, dict[str, int]]:
    """given: how many leases of each pipeline are for other hosts."""
    held = Counter((lease.pipeline, holders[lease.key]) for lease in leases)
    sizes = Counter(lease.pipeline for lease in leases)
    sizes.subtract(given)
    names = sizes.keys() | {name for peer in able.values() for name in peer.pipelines}
    totals = dict.fromkeys(able, 0)
    shares: dict[str, dict[str, int]] = {}
    for pipeline in sorted(names):
        room = {
            name: sizes[pipeline] if peer.leases_max is None else max(0, peer.leases_max - totals[name])
            for name, peer in able.items()
            if pipeline in peer.pipelines
        }
        even = _divided(sizes[pipeline], sorted(room), room)
        each = min((share for name, share in even.items() if share < room[name]), default=0)
        # Only an odd lease counts that a host has already: by what it holds altogether, who takes first would change the order.
        ranked = sorted(room, key=lambda name: (totals[name], min(0, each - held[pipeline, name]), name))
        shares[pipeline] = _divided(sizes[pipeline], ranked, room)
        for name, share in shares[pipeline].items():
            totals[name] += share
    return shares


def _divided(count: int, ranked: Sequence[str], room: Mapping[str, int]) -> dict[str, int]:
    """Divide `count` leases over the hosts as evenly as their room allows; the first in `ranked` get the remainder."""
    shares = dict.fromkeys(ranked, 0)
    while hosts := [name for name in ranked if shares[name] < room[name]]:
        each, odd = divmod(count, len(hosts))
        if each == 0:
            hosts, each = hosts[:odd], 1
        if not hosts:
            break
        each = min(each, min(room[name] - shares[name] for name in hosts))
        for name in hosts:
            shares[name] += each
        count -= each * len(hosts)
    return shares


def _picked(
    free: Sequence[Lease], need: int, assigned: Collection[LeaseKey], rng: random.Random, last: Collection[LeaseKey]
) -> list[LeaseKey]:
    """Those assigned to this host first, then available leases before expired ones, whose owner might still be processing."""
    ordered = rng.sample(free, len(free))
    ordered.sort(key=lambda lease: (lease.key in last, lease.key not in assigned, lease.owner is not None))
    return [lease.key for lease in ordered[:need]]


def _assigned(
    free: Iterable[Lease],
    leases: Iterable[Lease],
    shares: Mapping[str, int],
    holders: Mapping[LeaseKey, str | None],
    me: str,
) -> frozenset[LeaseKey]:
    """The free leases that `me` takes if all hosts see the same: no two of them then try for one lease."""
    held = Counter(holders[lease.key] for lease in leases)
    ordered = sorted(free, key=lambda lease: (lease.owner is not None, lease.partition))
    return frozenset(lease.key for lease, taker in zip(ordered, _lacking(shares, held), strict=False) if taker == me)


def _lacking(shares: Mapping[str, int], held: Mapping[str | None, int]) -> list[str]:
    """The hosts below their shares, each as often as it lacks leases, by turns."""
    lacking = [
        [name] * (share - held.get(name, 0)) for name, share in sorted(shares.items()) if share > held.get(name, 0)
    ]
    return _interleaved(lacking)


def _asked(
    leases: Sequence[Lease], shares: Mapping[str, int], holders: Mapping[LeaseKey, str | None], me: str
) -> list[LeaseKey]:
    """The leases that `me` receives when hosts above their share give to hosts below theirs, in an order all hosts
    agree on.
    """
    held = Counter(holders[lease.key] for lease in leases)
    settled: dict[str, list[LeaseKey]] = {}
    for lease in sorted(leases, key=lambda lease: lease.partition):
        if lease.owner is not None and holders[lease.key] == lease.owner:
            settled.setdefault(lease.owner, []).append(lease.key)
    surplus = [
        keys[: max(0, held[name] - shares.get(name, 0))]
        for name, keys in sorted(settled.items(), key=lambda item: item[0])
    ]
    return [key for key, taker in zip(_interleaved(surplus), _lacking(shares, held), strict=False) if taker == me]


def _interleaved(lists: Iterable[Sequence[object]]) -> list:  # type: ignore[type-arg]  # of what it was given
    return [item for row in zip_longest(*lists) for item in row if item is not None]


def _is_takeable(lease: Lease, expired: Collection[LeaseKey], overdue: Collection[LeaseKey]) -> bool:
    return lease.owner is None or lease.key in expired or lease.key in overdue


def _serves(able: Mapping[str, Peer], name: str, lease: Lease) -> bool:
    peer = able.get(name)
    return peer is not None and lease.pipeline in peer.pipelines and (peer.has_session or not lease.by_session)


def _count(keys: Iterable[LeaseKey], pipeline: str) -> int:
    return sum(key.pipeline == pipeline for key in keys)
