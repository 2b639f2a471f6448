"""Which leases to take and which to request, so that the hosts' shares differ by at most one. Pure.

Every host plans from the same documents and computes the same shares, so no leader is needed. Shares are equal within
each pipeline and over all pipelines. The remainder goes to the hosts with the fewest leases so far, and among those to
the hosts that already hold it, so a settled group never moves anything.

A lease changes hands on request: the taker writes its name into `handoff_to`, and the owner finishes its work and
releases the lease. All moves after a change in membership are planned in one round.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from zlib import crc32

from leases.lease import Lease, LeaseKey

Held = defaultdict[str, Counter[str | None]]
"""By pipeline and holder, how many leases; None holds those that are free."""


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
    group = standing_of(leases, able, seeing, expired, paused)
    back = [lease for lease in group.owned_by.get(me, ()) if lease.key not in working]
    take, ask = [lease.key for lease in back], list[LeaseKey]()
    asked_for = [lease for lease in group.asked_by.get(me, ()) if _is_takeable(lease, expired, overdue)]
    for pipeline in sorted(able[me].pipelines):
        returning = {lease.key for lease in back if lease.pipeline == pipeline}
        promised = [lease.key for lease in asked_for if lease.pipeline == pipeline and lease.key not in returning]
        free = [lease for lease in group.free.get(pipeline, ()) if lease.key not in returning]
        held = Counter(group.held.get(pipeline, {}))
        held.subtract(group.holders[key] for key in returning)
        mine = held[me] + len(returning)
        shares, shares_of_expired = group.shares[pipeline], group.shares_of_expired[pipeline]
        need = shares.get(me, 0) - mine
        picked = _picked(free, max(0, need), _assigned(free, shares, held, me), rng, last)
        left = [lease for lease in free if lease.key in expired and lease.key not in picked]
        need_of_expired = shares_of_expired.get(me, 0) - mine - len(picked)
        take += promised
        take += picked + _picked(left, max(0, need_of_expired), _assigned(left, shares_of_expired, held, me), rng, last)
        if need > len(free):
            settled = {owner: group.settled(pipeline, owner) for owner in sorted(group.owned_by)}
            settled[me] = [key for key in settled.get(me, ()) if key not in returning]
            ask += _asked(settled, shares, held, me)[: need - len(free)]
    return Plan(tuple(take), tuple(ask), sum(share.get(me, 0) for share in group.shares.values()))


@dataclass(frozen=True, slots=True)
class Standing:
    """What all hosts that see the same conclude alike: who has which lease, and how many each host should have.

    - holders: the host that has a lease or is about to get it.
    - free: by pipeline, the leases without a holder. held: by pipeline, how many leases each holder has.
    - owned_by, asked_by: by host, its leases, and those that it requested.
    - shares, shares_of_expired: by pipeline and host.
    """

    holders: Mapping[LeaseKey, str | None]
    free: Mapping[str, Sequence[Lease]]
    held: Mapping[str, Mapping[str | None, int]]
    owned_by: Mapping[str, Sequence[Lease]]
    asked_by: Mapping[str, Sequence[Lease]]
    shares: Mapping[str, Mapping[str, int]]
    shares_of_expired: Mapping[str, Mapping[str, int]]

    def settled(self, pipeline: str, owner: str) -> list[LeaseKey]:
        """The leases that an owner keeps so far, in an order all hosts agree on."""
        leases = (lease for lease in self.owned_by[owner] if lease.pipeline == pipeline)
        return [
            lease.key for lease in sorted(leases, key=lambda lease: lease.partition) if self.holders[lease.key] == owner
        ]


def standing_of(
    leases: Collection[Lease],
    able: Mapping[str, Peer],
    seeing: Mapping[str, Peer],
    expired: Collection[LeaseKey],
    paused: Collection[str],
) -> Standing:
    """able: the live hosts that may take leases. seeing: those of them that know which leases have expired."""
    holders: dict[LeaseKey, str | None] = {}
    free: defaultdict[str, list[Lease]] = defaultdict(list)
    owned_by: defaultdict[str, list[Lease]] = defaultdict(list)
    asked_by: defaultdict[str, list[Lease]] = defaultdict(list)
    open_leases = [lease for lease in leases if not lease.closed and lease.pipeline not in paused]
    for lease in open_leases:
        key = lease.key
        is_expired = key in expired
        holding = holders[key] = holder(lease, seeing if is_expired else able, is_expired)
        if holding is None:
            free[lease.pipeline].append(lease)
        if lease.owner is not None:
            owned_by[lease.owner].append(lease)
        if lease.handoff_to is not None:
            asked_by[lease.handoff_to].append(lease)
    shares, held = shares_of(open_leases, able, holders)
    shares_of_expired = shares
    unseeing = able.keys() - seeing.keys()
    if expired and unseeing:  # they would let what expires lie, and ask for their part of it later
        others = {key: holding for key, holding in holders.items() if holding not in unseeing}
        shares_of_expired, _ = shares_of(open_leases, seeing, others)
    return Standing(holders, free, held, owned_by, asked_by, shares, shares_of_expired)


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
    leases: Collection[Lease], able: Mapping[str, Peer], holders: Mapping[LeaseKey, str | None]
) -> tuple[dict[str, dict[str, int]], Held]:
    """pipeline -> host -> how many of the pipeline's leases that host should hold; and how many it holds. Leases without an
    entry in `holders` do not count.

    Hosts without sessions do not see the leases that sessions judge. They share the others with all hosts, and ask for
    their part themselves: nothing is left free for them. What they do not hold is for the hosts that have sessions.
    """
    held = _held(holders)
    with_session = {name: peer for name, peer in able.items() if peer.has_session}
    if len(with_session) == len(able):
        return _shares_beside(Counter(), held, able), held
    judged = {lease.key for lease in leases if lease.by_session}
    if not judged:
        return _shares_beside(Counter(), held, able), held
    held_by_all = _held({key: holding for key, holding in holders.items() if key not in judged})
    without = {
        pipeline: {
            name: min(share, held_by_all[pipeline][name]) for name, share in shares.items() if name not in with_session
        }
        for pipeline, shares in _shares_beside(Counter(), held_by_all, able).items()
    }
    given = Counter({pipeline: sum(shares.values()) for pipeline, shares in without.items()})
    left = _shares_beside(given, held, with_session)
    shares = {pipeline: without.get(pipeline, {}) | left.get(pipeline, {}) for pipeline in without.keys() | left.keys()}
    return shares, held


def _held(holders: Mapping[LeaseKey, str | None]) -> Held:
    held: Held = defaultdict(Counter)
    for (pipeline, host), count in Counter((key.pipeline, holding) for key, holding in holders.items()).items():
        held[pipeline][host] = count
    return held


def _shares_beside(given: Counter[str], held: Held, able: Mapping[str, Peer]) -> dict[str, dict[str, int]]:
    """given: how many leases of each pipeline are for other hosts. held: by pipeline and holder, how many leases."""
    sizes = Counter({pipeline: counts.total() for pipeline, counts in held.items()})
    sizes.subtract(given)
    names = sizes.keys() | {name for peer in able.values() for name in peer.pipelines}
    totals = dict.fromkeys(able, 0)
    shares: dict[str, dict[str, int]] = {}
    for pipeline in sorted(names):
        room = {
            name: sizes.get(pipeline, 0) if peer.leases_max is None else max(0, peer.leases_max - totals[name])
            for name, peer in able.items()
            if pipeline in peer.pipelines
        }
        even = _divided(sizes.get(pipeline, 0), sorted(room), room)
        each = min((share for name, share in even.items() if share < room[name]), default=0)
        # Only an odd lease counts that a host has already: by what it holds altogether, who takes first would change the order.
        ranked = sorted(room, key=lambda name: (totals[name], min(0, each - held[pipeline][name]), name))
        shares[pipeline] = _divided(sizes.get(pipeline, 0), ranked, room)
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
    free: Iterable[Lease], shares: Mapping[str, int], held: Mapping[str | None, int], me: str
) -> frozenset[LeaseKey]:
    """The free leases that `me` takes if all hosts see the same: no two of them then try for one lease."""
    ordered = sorted(free, key=lambda lease: (lease.owner is not None, lease.partition))
    return frozenset(lease.key for lease, taker in zip(ordered, _lacking(shares, held), strict=False) if taker == me)


def _lacking(shares: Mapping[str, int], held: Mapping[str | None, int]) -> list[str]:
    """The hosts below their shares, each as often as it lacks leases, by turns."""
    lacking = [
        [name] * (share - held.get(name, 0)) for name, share in sorted(shares.items()) if share > held.get(name, 0)
    ]
    return _interleaved(lacking)


def _asked(
    settled: Mapping[str, Sequence[LeaseKey]], shares: Mapping[str, int], held: Mapping[str | None, int], me: str
) -> list[LeaseKey]:
    """The leases that `me` receives when hosts above their share give to hosts below theirs, in an order all hosts
    agree on. settled: by owner, those that it could give.
    """
    surplus = [keys[: max(0, held.get(name, 0) - shares.get(name, 0))] for name, keys in sorted(settled.items())]
    return [key for key, taker in zip(_interleaved(surplus), _lacking(shares, held), strict=False) if taker == me]


def _interleaved(lists: Iterable[Sequence[object]]) -> list:  # type: ignore[type-arg]  # of what it was given
    return [item for row in zip_longest(*lists) for item in row if item is not None]


def _is_takeable(lease: Lease, expired: Collection[LeaseKey], overdue: Collection[LeaseKey]) -> bool:
    return lease.owner is None or lease.key in expired or lease.key in overdue


def _serves(able: Mapping[str, Peer], name: str, lease: Lease) -> bool:
    peer = able.get(name)
    return peer is not None and lease.pipeline in peer.pipelines and (peer.has_session or not lease.by_session)
