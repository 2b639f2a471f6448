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
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import ParamSpec, TypeVar
from zlib import crc32

from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.timing import LASTS_S

P = ParamSpec("P")
T = TypeVar("T")
Steps = Generator[None, None, T]
"""A computation that yields after each of its steps, so that its caller can do something else in between."""
STEP_MAX = 5000
"""How many leases, or pairs of a pipeline and a host, one step considers. This takes a few milliseconds."""
Held = Mapping[str, Counter[str | None]]
"""pipeline -> holder -> how many leases; those of the holder None are free."""
Kept = tuple[str, str]
"""A host and a pipeline whose leases it keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A live host, according to its document. pipelines: those for which it may take leases.

    is_blind: it cannot read the leases. It sees no request either, so it keeps the leases of `pipelines`, and gets no others.
    """

    name: str
    pipelines: frozenset[str]
    leases_max: int | None = None
    draining: bool = False
    is_blind: bool = False
    is_new: bool = False
    lasts_s: float = LASTS_S

    def serves(self, pipeline: str) -> bool:
        return pipeline in self.pipelines and not self.draining

    def gets(self, pipeline: str) -> bool:
        """Whether it may take more leases of the pipeline."""
        return self.serves(pipeline) and not self.is_blind

    @property
    def keeps(self) -> frozenset[Kept]:
        """What it keeps while it is blind: no other host requests these leases, because it would not see the request."""
        return frozenset((self.name, pipeline) for pipeline in self.pipelines) if self.is_blind else frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a host does in this round. lacking: other hosts that have less than their share."""

    take: tuple[LeaseKey, ...]
    ask: tuple[LeaseKey, ...]
    share: int
    lacking: frozenset[str] = frozenset()


def plan_in_steps(
    leases: Collection[Lease],
    peers: Collection[Peer],
    me: str,
    working: Collection[LeaseKey],
    expired: Collection[LeaseKey],
    overdue: Collection[LeaseKey],
    rng: random.Random,
    last: Collection[LeaseKey] = (),
    paused: Collection[str] = (),
    passed: Collection[LeaseKey] = (),
    benched: Collection[str] = (),
) -> Steps[Plan]:
    """What `me` should do now. For 100,000 leases and 100 hosts, this takes a tenth of a second.

    - leases: all of the group, including closed ones.
    - peers: the live hosts, including `me`.
    - working: the leases that `me` processes. Any other lease in its name was left by an earlier incarnation or a lost
      answer, and `me` takes it back at once.
    - expired: leases whose owner is dead, or has renounced them.
    - overdue: leases that `me` requested long ago and may now steal.
    - rng: spreads hosts that take from the same set of free leases, so that they do not all start with the same one.
    - last: leases that just failed on `me`, which it prefers to leave to other hosts.
    - passed: leases that the intended hosts did not take in time, so any host may take them.
    - benched: hosts to which this plan assigns no more leases that can be taken, because they let leases pass. Requests do
      not depend on this: hosts differ in whom they saw let leases pass, and two would request leases of each other for ever.
    - paused: pipelines that no host processes; their leases are neither taken nor requested, and count in no share.
    """
    able = {peer.name: peer for peer in peers if not peer.draining and (peer.name == me or not peer.is_blind)}
    if me not in able:
        return Plan((), (), 0)
    seeing = {name: peer for name, peer in able.items() if name == me or not peer.is_new}
    keepers = frozenset(each for peer in peers if peer.name != me and not peer.draining for each in peer.keeps)
    group = yield from distribution_of(leases, able, seeing, expired, paused, {*benched} - {me}, keepers)
    ours = [
        lease
        for lease in leases
        if me in (lease.owner, lease.handoff_to) and not lease.closed and lease.pipeline not in paused
    ]
    if len(leases) > STEP_MAX:
        yield
    mine_to_process = able[me].pipelines
    back = [
        lease for lease in ours if lease.owner == me and lease.key not in working and lease.pipeline in mine_to_process
    ]
    returning, returning_of = {lease.key for lease in back}, _by_pipeline(back)
    promised = _by_pipeline(
        lease
        for lease in ours
        if lease.handoff_to == me and lease.key not in returning and _is_takeable(lease, expired, overdue)
    )
    take, ask, lacking, turn = [lease.key for lease in back], list[LeaseKey](), set[str](), _Turn()
    for pipeline in sorted(able[me].pipelines):
        if turn.is_over(len(able)):
            yield
        free = [lease for lease in group.free.get(pipeline, ()) if lease.key not in returning]
        held = group.held.get(pipeline, Counter())
        if pipeline in returning_of:
            held = held - Counter(map(group.holder_of, returning_of[pipeline]))
        mine = held[me] + len(returning_of.get(pipeline, ()))
        shares, shares_of_free = group.shares[pipeline], group.shares_of_free[pipeline]
        shares_of_expired = group.shares_of_expired[pipeline]
        need, need_of_free = shares.get(me, 0) - mine, shares_of_free.get(me, 0) - mine
        take += [lease.key for lease in promised.get(pipeline, ())]
        if free:
            picked = _picked(free, max(0, need_of_free), _assigned(free, shares_of_free, held, me), rng, last)
            left = [lease for lease in free if lease.key in expired and lease.key not in picked]
            need_of_expired = max(0, shares_of_expired.get(me, 0) - mine - len(picked))
            take += picked + _picked(left, need_of_expired, _assigned(left, shares_of_expired, held, me), rng, last)
        if need > len(free):
            ask += _asked(group.surplus(pipeline, held, returning), shares, held, me)[: need - len(free)]
    if passed:
        served = {lease.key for pipeline in mine_to_process for lease in group.leases.get(pipeline, ())}
        untaken = sorted(served.intersection(passed).difference(take))
        kept = sum(lease.owner == me for lease in ours) - len(back)
        most = able[me].leases_max
        room = len(untaken) if most is None else most - kept - len(take)
        take += rng.sample(untaken, max(0, min(room, len(untaken))))
        lacking = {
            name
            for pipeline in mine_to_process
            for name, share in group.shares.get(pipeline, {}).items()
            if name != me and share > group.held.get(pipeline, Counter())[name]
        }
    share = sum(each.get(me, 0) for each in group.shares.values())
    return Plan(tuple(take), tuple(ask), share, frozenset(lacking))


def _at_once(computation: Callable[P, Steps[T]]) -> Callable[P, T]:
    def compute(*args: P.args, **kwargs: P.kwargs) -> T:
        steps = computation(*args, **kwargs)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result

    return compute


plan = _at_once(plan_in_steps)


class _Turn:
    """How much a computation has considered since its last step."""

    def __init__(self) -> None:
        self._considered = 0

    def is_over(self, count: int) -> bool:
        """Whether the next step begins now, before `count` more are considered."""
        self._considered += count
        if self._considered <= STEP_MAX:
            return False
        self._considered = count
        return True


@dataclass(frozen=True, slots=True)
class Distribution:
    """What all hosts conclude from the same documents: who has which lease, and how many each host should have.

    - leases: by pipeline, the open ones. free: those without a holder. held: how many leases each holder has.
    - moving: the leases whose `holder` is not their owner, and that holder.
    - shares: by pipeline and host. shares_of_free, shares_of_expired: the same among the hosts that may take such leases.
    - kept: the hosts and pipelines whose leases are in no share.
    """

    leases: Mapping[str, Sequence[Lease]]
    free: Mapping[str, Sequence[Lease]]
    held: Held
    moving: Mapping[LeaseKey, str | None]
    shares: Mapping[str, Mapping[str, int]]
    shares_of_free: Mapping[str, Mapping[str, int]]
    shares_of_expired: Mapping[str, Mapping[str, int]]
    kept: frozenset[Kept]

    def holder_of(self, lease: Lease) -> str | None:
        return self.moving.get(lease.key, lease.owner)

    def surplus(
        self, pipeline: str, held: Mapping[str | None, int], but: Collection[LeaseKey]
    ) -> list[Sequence[LeaseKey]]:
        """By owner, the leases that it has above its share, in an order all hosts agree on. but: leases that do not count."""
        shares = self.shares[pipeline]
        above = {
            name: count - shares.get(name, 0)
            for name, count in held.items()
            if name is not None and (name, pipeline) not in self.kept and count > shares.get(name, 0)
        }
        settled: dict[str, list[Lease]] = {name: [] for name in sorted(above)}
        for lease in sorted(self.leases.get(pipeline, ()), key=lambda lease: lease.partition):
            if lease.owner in settled and lease.key not in but and self.holder_of(lease) == lease.owner:
                settled[lease.owner].append(lease)
        return [[lease.key for lease in leases[: above[name]]] for name, leases in settled.items()]


def distribution_of(
    leases: Collection[Lease],
    able: Mapping[str, Peer],
    seeing: Mapping[str, Peer],
    expired: Collection[LeaseKey],
    paused: Collection[str],
    benched: Collection[str],
    kept: frozenset[Kept],
) -> Steps[Distribution]:
    """able: the live hosts that may take leases. seeing: those of them that know which leases have expired.

    benched: those to which no more free or expired leases are assigned. kept: see Distribution.
    """
    by_pipeline = _by_pipeline(lease for lease in leases if not lease.closed and lease.pipeline not in paused)
    if len(leases) > STEP_MAX:
        yield
    moving: dict[LeaseKey, str | None] = {}
    free: dict[str, list[Lease]] = {}
    held: dict[str, Counter[str | None]] = {}
    turn = _Turn()
    for pipeline, found in by_pipeline.items():
        if turn.is_over(len(found)):
            yield
        moved = _moving(found, able, seeing, expired)
        holders = [moved.get(lease.key, lease.owner) for lease in found] if moved else [lease.owner for lease in found]
        moving |= moved
        held[pipeline] = Counter(holders)
        if None in held[pipeline]:
            free[pipeline] = [lease for lease, holding in zip(found, holders, strict=True) if holding is None]
    pooled = _held_by_others(held, lambda name, pipeline: (name, pipeline) in kept) if kept else held
    shares = shares_of_free = shares_of_expired = yield from shares_of(able, pooled)
    if free and not able.keys().isdisjoint(benched):
        able, seeing = _capped(able, held, benched), _capped(seeing, held, benched)
        shares_of_free = shares_of_expired = yield from shares_of(able, pooled)
    unseeing = able.keys() - seeing.keys()
    if expired and unseeing:  # they would leave expired leases alone, and request their part of them later
        shares_of_expired = yield from shares_of(seeing, _held_by_others(pooled, lambda name, _: name in unseeing))
    return Distribution(by_pipeline, free, held, moving, shares, shares_of_free, shares_of_expired, kept)


def _capped(peers: Mapping[str, Peer], held: Held, names: Collection[str]) -> Mapping[str, Peer]:
    """The peers, but those with these names may hold no more than they have."""
    most = {name: sum(counts[name] for counts in held.values()) for name in names}
    return {
        name: replace(peer, leases_max=min(most[name], most[name] if peer.leases_max is None else peer.leases_max))
        if name in most
        else peer
        for name, peer in peers.items()
    }


def _moving(
    leases: Iterable[Lease], able: Mapping[str, Peer], seeing: Mapping[str, Peer], expired: Collection[LeaseKey]
) -> dict[LeaseKey, str | None]:
    """The leases whose holder is not their owner, and that holder."""
    moving: dict[LeaseKey, str | None] = {}
    for lease in [each for each in leases if each.handoff_to is not None or (expired and each.key in expired)]:
        is_expired = lease.key in expired
        holding = holder(lease, seeing if is_expired else able, is_expired)
        if holding != lease.owner:
            moving[lease.key] = holding
    return moving


def _by_pipeline(leases: Iterable[Lease]) -> dict[str, list[Lease]]:
    found: dict[str, list[Lease]] = {}
    for lease in leases:
        found.setdefault(lease.pipeline, []).append(lease)
    return found


def _held_by_others(held: Held, is_out: Callable[[str | None, str], bool]) -> Held:
    """is_out: whether leases of a host and a pipeline do not count."""
    return {
        pipeline: Counter({name: count for name, count in counts.items() if not is_out(name, pipeline)})
        for pipeline, counts in held.items()
    }


def creation_order(partitions: Iterable[str], me: str, hosts: Collection[str]) -> list[tuple[int, str]]:
    """The order in which `me` creates the leases of a new pipeline, as (number of hosts whose turn comes first,
    partition).

    Among hosts that know each other, each has the first turn for different partitions. Hosts that do not know each other yet
    start at different partitions.
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


def shares_of(able: Mapping[str, Peer], held: Held) -> Steps[dict[str, dict[str, int]]]:
    """pipeline -> host -> how many of the pipeline's leases that host should hold."""
    turn, hosts_of = _Turn(), defaultdict[str, list[str]](list)
    for name, peer in sorted(able.items()):
        if turn.is_over(len(peer.pipelines)):
            yield
        for pipeline in peer.pipelines:
            hosts_of[pipeline].append(name)
    limits = {name: peer.leases_max for name, peer in able.items() if peer.leases_max is not None}
    totals = dict.fromkeys(able, 0)
    shares: dict[str, dict[str, int]] = {}
    for pipeline in sorted(held.keys() | hosts_of.keys()):
        hosts, counts = hosts_of.get(pipeline, []), held.get(pipeline, Counter())
        if turn.is_over(len(hosts)):
            yield
        room = {name: max(0, limits[name] - totals[name]) for name in hosts if name in limits} if limits else {}
        shares[pipeline] = _shared(counts.total(), hosts, room, totals, counts)
        for name, share in shares[pipeline].items():
            totals[name] += share
    return shares


def _shared(
    size: int,
    hosts: Sequence[str],
    room: Mapping[str, int],
    totals: Mapping[str, int],
    held: Mapping[str | None, int],
) -> dict[str, int]:
    """By host, its share of `size` leases. hosts: in name order. room: how many more each host with a limit may get. totals:
    each host's shares so far.
    """
    each, odd = divmod(size, max(1, len(hosts)))
    full: dict[str, int] = {}
    if min(room.values(), default=size) < each + bool(odd):
        full = {name: room.get(name, size) for name in hosts}
        even = _divided(size, hosts, full)
        each = min((share for name, share in even.items() if share < full[name]), default=0)
    elif not odd:
        return dict.fromkeys(hosts, each)
    # Only what a host has above `each` counts. If all its leases counted, the order would depend on who takes leases first.
    most = max(held.values(), default=0)
    rank = {name: totals[name] * (most + 1) + min(0, each - held.get(name, 0)) for name in hosts}
    ranked = sorted(hosts, key=rank.__getitem__)
    if full:
        return _divided(size, ranked, full)
    return {name: each + (n < odd) for n, name in enumerate(ranked)}


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
    """The leases assigned to this host first, and available ones before expired ones, whose owner may still process them."""
    ordered = rng.sample(free, len(free))
    ordered.sort(key=lambda lease: (lease.key in last, lease.key not in assigned, lease.owner is not None))
    return [lease.key for lease in ordered[:need]]


def _assigned(
    free: Iterable[Lease], shares: Mapping[str, int], held: Mapping[str | None, int], me: str
) -> frozenset[LeaseKey]:
    """The free leases that are for `me`. If all hosts see the same leases, no two of them try to take the same one."""
    ordered = sorted(free, key=lambda lease: (lease.owner is not None, lease.partition))
    return frozenset(lease.key for lease, taker in zip(ordered, _lacking(shares, held), strict=False) if taker == me)


def _lacking(shares: Mapping[str, int], held: Mapping[str | None, int]) -> list[str]:
    """The hosts below their shares, each as often as it lacks leases, by turns."""
    lacking = sorted((name, share - held.get(name, 0)) for name, share in shares.items() if share > held.get(name, 0))
    return _interleaved([name] * count for name, count in lacking)


def _asked(
    surplus: Iterable[Sequence[LeaseKey]], shares: Mapping[str, int], held: Mapping[str | None, int], me: str
) -> list[LeaseKey]:
    """The leases that `me` receives when hosts above their share give to hosts below theirs, in an order all hosts
    agree on. surplus: by owner, the leases that it gives.
    """
    return [key for key, taker in zip(_interleaved(surplus), _lacking(shares, held), strict=False) if taker == me]


def _interleaved(lists: Iterable[Sequence[object]]) -> list:  # type: ignore[type-arg]  # a list of the same items
    return [item for row in zip_longest(*lists) for item in row if item is not None]


def _is_takeable(lease: Lease, expired: Collection[LeaseKey], overdue: Collection[LeaseKey]) -> bool:
    return lease.owner is None or lease.key in expired or lease.key in overdue


def _serves(able: Mapping[str, Peer], name: str, lease: Lease) -> bool:
    peer = able.get(name)
    return peer is not None and lease.pipeline in peer.pipelines
