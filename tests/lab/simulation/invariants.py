"""What must hold at every step of a simulation: the invariants of docs/protocol.md, checked by an onlooker who sees everything.

The onlooker sees every write that the lease store carries out, every send at the moment of sending, and all that
arrives at a destination. It keeps its own books and believes nobody's.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf

from leasehold.leases.host_record import RENOUNCED, HostRecord
from leasehold.leases.lease import Lease
from leasehold.leases.timing import Timing

Place = tuple[str, int]
"""(partition, generation)"""
LATE_S = 1e-6
MISLED_S = 70.0
"""What a host's document that was put back may do: the host writes it again when it beats, and somebody has taken by then."""
SLOWEST, FASTEST = 0.97, 1.03
"""The rates of clocks (simulation.setup)."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What could be seen of a host since then."""

    at: float
    record: HostRecord


@dataclass(slots=True)
class Arrived:
    """What a destination has of one place. start: where the generation begins; to: up to where nothing is missing."""

    start: int
    to: int
    ahead: set[int] = field(default_factory=set)
    repeated: int = 0


@dataclass(slots=True)
class Onlooker:
    """passes: whether the transform lets an event through, by its number. ends: the number of events a partition has.
    parents, start: what a partition came from, and with which event it has to begin then.

    found: the violations; first: set by the first one. exactly_once: whether the sink promises that. rates: how fast
    each host's clock runs, by incarnation. history: of each place, its lease as it was written. moves: when a lease got another
    owner, and which. is_calm: whether nothing that was sent before all became well is under way any more.
    """

    timing: Timing
    now: Callable[[], float]
    passes: Callable[[int], bool]
    ends: Callable[[str], int]
    parents: Callable[[str], Iterable[str]]
    start: Callable[[str], int]
    exactly_once: bool
    batch_events_max: int
    ranged_events_max: int = 0
    found: list[str] = field(default_factory=list)
    first: asyncio.Event = field(default_factory=asyncio.Event)
    rates: dict[str, float] = field(default_factory=dict)
    arrived: dict[Place, Arrived] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    is_calm: bool = False
    moves: list[tuple[float, str]] = field(default_factory=list)
    history: dict[Place, list[Lease]] = field(default_factory=dict)
    # since when the mark of a lease stands still, in true time; what has been unreadable for all until then
    _moved: dict[str, tuple[float, float]] = field(default_factory=dict)
    _asked: dict[tuple[str, str], float] = field(default_factory=dict)
    _owners: dict[tuple[str, int, int], tuple[str, str]] = field(default_factory=dict)
    _cleared: set[str] = field(default_factory=set)
    _misled: dict[str, float] = field(default_factory=dict)
    _last_owner: dict[str, str] = field(default_factory=dict)
    _eras: Counter[str] = field(default_factory=Counter)
    _generations: Counter[str] = field(default_factory=Counter)
    _reset_at: dict[str, float] = field(default_factory=dict)
    _fences: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _unsettled: dict[tuple[str, str, tuple[int, ...]], object] = field(default_factory=dict)
    _tries: Counter[str] = field(default_factory=Counter)
    # by partition: incarnation, generation and position of its last owner that stopped with all handled; that gave the lease up
    _finished: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    _releases: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    _starts: dict[Place, int] = field(default_factory=dict)
    # by incarnation: what could be seen of it, and since when; when its last beat was sent, and how long that lasts
    _hosts: dict[str, list[Shown]] = field(default_factory=dict)
    _beaten: dict[str, tuple[float, float]] = field(default_factory=dict)
    # the tenures that ended because others took their leases as expired
    _expired: set[tuple[str, str]] = field(default_factory=set)
    # how many outages there are in which no host can write its document; from when to when there was one, infinity for now
    _outages_open: int = 0
    _outages: list[tuple[float, float]] = field(default_factory=list)
    # what the sink holds was put back since, and whether it has been claimed after that
    _restored: dict[str, bool] = field(default_factory=dict)
    _dark: list[tuple[float, float]] = field(default_factory=list)
    _dark_since: float | None = None

    def violated(self, invariant: str, what: str) -> None:
        self.found.append(f"{invariant} at {self.now():.3f}: {what}")
        self.first.set()

    def check(self, holds: bool, invariant: str, what: Callable[[], str]) -> None:
        if not holds:
            self.violated(invariant, what())

    def batched(self, partition: str, start: str | None, to: str, events: int) -> None:
        """A batch is about to be transformed."""
        most = self.batch_events_max
        self.check(
            events <= most, "bound", lambda: f"a batch of '{partition}' holds {events} events, and may hold {most}"
        )
        is_forward = number(start) < number(to) or not events
        self.check(is_forward, "forward", lambda: f"a batch of '{partition}' leads from {start} to {to}")

    def ranged(self, partition: str, start: str | None, to: str, events: int) -> None:
        """Executors are about to be given a batch."""
        self.check(
            events <= self.ranged_events_max,
            "bound",
            lambda: f"executors are given {events} events of '{partition}', and may get {self.ranged_events_max}",
        )
        self.check(number(start) < number(to), "forward", lambda: f"ranges of '{partition}' lead from {start} to {to}")

    # Leases

    def dark(self, is_dark: bool) -> None:
        """Nobody can read the container, from now on or up to now."""
        if is_dark and self._dark_since is None:
            self._dark_since = self.now()
        elif not is_dark and self._dark_since is not None:
            self._dark.append((self._dark_since, self.now()))
            self._dark_since = None

    def created(self, by: str, lease: Lease, started: float) -> None:
        """started: when the request was sent; a parent that was reset since then was closed before."""
        name, before = lease.partition, self.leases.get(lease.partition)
        self.check(
            name not in self._cleared, "I7", lambda: f"{by} began '{name}' once more, which had been cleared away"
        )
        for parent in self.parents(name):
            kept = self.leases.get(parent)
            if (kept is None or not kept.closed) and self._reset_at.get(parent, -inf) < started:
                self.violated("I7", f"'{name}' began before '{parent}' closed")
        if before is None:
            self._starts[name, lease.generation] = number(lease.continuation)
            self._check_start(lease)
        self._keep(lease)

    def cleared(self, by: str, lease: Lease) -> None:
        """The document of a closed lease was removed by a host."""
        name = lease.partition
        self.counts["leases cleared away"] += 1
        self._cleared.add(name)
        self.check(lease.closed, "I7", lambda: f"'{name}' was cleared away, and is not closed")
        lost = [child.partition for child in lease.children if child.partition not in self.leases]
        self.check(not lost, "I7", lambda: f"'{name}' was cleared away before {lost} began")

    def _check_start(self, lease: Lease) -> None:
        """Nothing twice and nothing left out, unless an operator did away with what the parents' leases knew."""
        name, parents = lease.partition, list(self.parents(lease.partition))
        self.check(
            not parents
            or any(self._eras[parent] or self._generations[parent] for parent in parents)
            or number(lease.continuation) == self.start(name),
            "I7",
            lambda: f"'{name}' begins at {lease.continuation}, and {parents} ended at {self.start(name)}",
        )

    def host_moved(self, incarnation: str, now: HostRecord | None) -> None:
        """What others can see of a host changes. None: it has no document any more, and the last one counts."""
        shown = self._hosts.setdefault(incarnation, [])
        if now is None:
            now = shown[-1].record if shown else HostRecord(name="", incarnation=incarnation)
        shown.append(Shown(self.now(), now))

    def writes_fail(self, is_so: bool) -> None:
        """An outage for all begins or ends: while there is one, no host can write its document."""
        if is_so and self._outages_open == 0:
            self._outages.append((self.now(), inf))
        self._outages_open += 1 if is_so else -1
        if not is_so and self._outages_open == 0:
            self._outages[-1] = (self._outages[-1][0], self.now())

    def calm(self) -> None:
        """Faults stop: all outages are over."""
        while self._outages_open:
            self.writes_fail(False)

    def misled(self, incarnation: str) -> None:
        """An editor puts back that a host may be silent for another time, or has renounced: others believe it for a while."""
        self._misled[incarnation] = self.now()

    def beaten(self, incarnation: str, started: float, lasts_s: float) -> None:
        """A beat that was sent at `started` is carried out."""
        self._beaten[incarnation] = started, lasts_s

    def wrote(self, by: str, old: Lease, new: Lease, started: float) -> None:
        """A write of the incarnation `by`, sent at `started`, was carried out."""
        name = new.partition
        born = {child.partition for child in new.children if child.begun}
        remembers = old.closed and new == old.followed_by(born) and born <= self.leases.keys()
        self.check(not old.closed or remembers, "I7", lambda: f"closed lease '{name}' was written by {by}")
        self.check(new.epoch >= old.epoch, "I2", lambda: f"epoch of '{name}' went from {old.epoch} to {new.epoch}")
        self.check(
            new.generation == old.generation, "I2", lambda: f"{by} moved the generation of '{name}' to {new.generation}"
        )
        is_restored = name in self._restored
        self.check(
            number(new.continuation) >= number(old.continuation) or is_restored,
            "I2",
            lambda: f"the position of '{name}' went from {old.continuation} to {new.continuation}",
        )
        self.check(
            rank(new.sink_state) >= rank(old.sink_state) or is_restored,
            "I2",
            lambda: f"the level of '{name}' went from {old.sink_state} to {new.sink_state}",
        )
        self._check_owner(by, old, new)
        if self.is_calm and by == old.incarnation and new.owner is None and not new.closed:
            self._check_release(new)
        if by == old.incarnation and new.owner is None:
            self._releases[name] = by, new.generation, number(new.continuation)
        if self._eras[name] and (old.owner is None or new.epoch != old.epoch):
            # After an edit an epoch may be given out twice. The second claim has read the result of the first one's last send.
            # Where sends bear a producer's level, no level is given out twice.
            self._unsettled.pop((name, new.incarnation or "", (new.epoch,)), None)
        self._check_position(new)
        if new.closed:
            self.check(
                number(new.continuation) == self.ends(name),
                "I7",
                lambda: f"'{name}' closed at {new.continuation} and has {self.ends(name)} events",
            )
        self._keep(new, was=old)

    def edited(self, lease: Lease | None, partition: str) -> None:
        """An operator wrote or removed a document: what was known of its past no longer binds."""
        self._eras[partition] += 1
        self._releases.pop(partition, None)
        if lease is not None:
            self._keep(lease)
            self._moved[partition] = self.now(), self._darkness(self.now())

    def reset(self, lease: Lease, to: int) -> None:
        """An operator's new position is to count from now on."""
        self._generations[lease.partition] += 1
        self._reset_at[lease.partition] = self.now()
        self._restored.pop(lease.partition, None)
        self._starts[lease.partition, self._generations[lease.partition]] = to
        self._keep(lease)

    def _check_owner(self, by: str, old: Lease, new: Lease) -> None:
        name, tenure = new.partition, (new.owner or "", new.incarnation or "")
        if new.owner is not None:
            known = self._owners.setdefault((name, self._eras[name], new.epoch), tenure)
            self.check(known == tenure, "I3", lambda: f"epoch {new.epoch} of '{name}' is {known}'s and {tenure}'s")
        if new.tick != old.tick:
            self.check(
                by in (old.incarnation, new.incarnation) and (new.owner is None or by == new.incarnation),
                "I3",
                lambda: f"{by} moved the tick of '{name}', which is {tenure}'s",
            )
        if new.incarnation is not None:
            self._expired.discard((name, new.incarnation))
        if new.owner is not None and self._last_owner.get(name, new.owner) != new.owner:
            self.moves.append((self.now(), name))
        if new.owner is not None:
            self._last_owner[name] = new.owner
        if old.owner is not None and new.owner is not None and old.owner != new.owner:
            self.counts["takeovers"] += 1
            self._check_takeover(by, old, new)

    def _check_takeover(self, by: str, old: Lease, new: Lease) -> None:
        """Nobody takes what its owner has written within the duration that its document names, nor what that document shows to
        be alive, but for a request that was left unanswered for long, or a lease that its owner has renounced."""
        name, now, rate = new.partition, self.now(), self.rates[by]
        assert old.incarnation is not None
        written, _ = self._moved[name]
        asked = self._asked.get((name, new.owner or ""))
        waited = (now - asked) * rate if asked is not None and old.handoff_to == new.owner else 0.0
        if waited >= self.timing.patience_s - LATE_S:
            return
        if now - self._misled.get(old.incarnation, -inf) <= MISLED_S:
            return
        shown = self._hosts.get(old.incarnation) or [Shown(0.0, HostRecord(name="", incarnation=""))]
        if any(old.pipeline in each.record.which_are(RENOUNCED) for each in shown[-2:]):
            self.counts["takeovers of what was renounced"] += 1
            self._expired.add((name, old.incarnation))
            return
        ends = [*(each.at for each in shown[1:]), now]
        left = max(
            (min((end - each.at) * rate, self.counted_s(each.at, end) * rate) - each.record.lasts_s)
            for each, end in zip(shown, ends, strict=True)
            if end > written
        )
        termless = self._termless_s(shown, now) * rate - 2 * shown[-1].record.lasts_s
        self.check(
            max(left, termless) >= -LATE_S,
            "expiry",
            lambda: f"{by} took '{name}' from {old.incarnation}, {max(left, termless):.2f} s after it was dead",
        )
        self.counts["takeovers from the dead"] += 1
        self.counts["takeovers from hosts without a term"] += left < -LATE_S
        self._expired.add((name, old.incarnation))

    def _termless_s(self, shown: list[Shown], now: float) -> float:
        """For how long the documents have named no term. The last one may have been written during the take."""
        begins = now
        for each in reversed(shown):
            if each.record.term and each is not shown[-1]:
                break
            begins = each.at
        return now - begins

    def counted_s(self, since: float, until: float) -> float:
        """How much of a host's silence may count for one that judges it once in the meantime, in true seconds.

        In an outage of all writes, hosts judge for as long as their own last heartbeats are young enough. They notice one that
        is longer. No time of it counts then, and no host judges until the grace after it is over.
        """
        named = (each.record.lasts_s for found in self._hosts.values() for each in found)
        longest = self.timing.lasting(max(named, default=self.timing.duration_s))
        judging_s = (
            longest.duration_s - longest.beat_s - longest.margin_s
        ) / SLOWEST  # not what the code makes of them
        grace_s = (self.timing.beat_s + 2 * self.timing.beat_timeout_s) / FASTEST
        noticed = [
            (began, ended)
            for began, ended in self._outages
            if ended - began > judging_s and ended > since and began < until
        ]
        found, unread_s, judges_from = 0.0, 0.0, since
        for began, ended in noticed:
            last = min(until, began + judging_s)
            if last > judges_from:
                found = max(found, last - since - unread_s)
            unread_s += ended - max(began, since)
            judges_from = ended + grace_s
        return max(found, until - since - unread_s) if until >= judges_from else found

    def _darkness(self, until: float) -> float:
        """Seconds of outages for all that were long enough to be noticed by everybody."""
        open_ = [] if self._dark_since is None else [(self._dark_since, until)]
        least = 2 * self.timing.balance_s
        return sum(end - start - least for start, end in [*self._dark, *open_] if end - start > least)

    def _keep(self, lease: Lease, was: Lease | None = None) -> None:
        name = lease.partition
        if was is None or mark(was) != mark(lease):
            self._moved[name] = self.now(), self._darkness(self.now())
        if lease.handoff_to is not None and (was is None or was.handoff_to != lease.handoff_to):
            self._asked[name, lease.handoff_to] = self.now()
        if was is not None and was.epoch != lease.epoch and lease.handoff_to is not None:
            self._asked[name, lease.handoff_to] = self.now()
        self.leases[name] = lease
        self.history.setdefault((name, lease.generation), []).append(lease)

    # Sends

    def sends(self, by: str, partition: str, fence: tuple[int, ...], batch: object) -> None:
        """The moment of sending. fence: the epoch or level it bears; batch: what identifies its bytes.

        After an operator's close no renewal is carried out, so that whatever is sent after the trust window is found here.
        """
        self.counts["sends"] += 1
        closed = self.leases.get(partition)
        self.counts["sends of what was closed"] += closed is not None and closed.tombstone
        self.check(
            (partition, by) not in self._expired,
            "I10",
            lambda: f"{by} sends for '{partition}', which another host has taken as expired",
        )
        began, lasts_s = self._beaten.get(by, (-inf, 0.0))
        late = (self.now() - began) * self.rates[by] - lasts_s * 13 / 14  # not what the code under test makes of them
        self.check(
            late <= LATE_S,
            "trust",
            lambda: f"{by} sends for '{partition}', whose lease it should have trusted until {late:.2f} s ago",
        )
        unsettled = self._unsettled.get((partition, by, fence))
        self.check(
            unsettled in (None, batch),
            "I8",
            lambda: f"{by} sends {batch} for '{partition}' while {unsettled} is unsettled",
        )
        self._unsettled[partition, by, fence] = batch

    def goes_on(self, partition: str, generation: int, position: str | None) -> None:
        """For a sink that holds no position: what it has acknowledged stands in the lease before anything else is sent."""
        lease = self.leases.get(partition)
        self.check(
            lease is None or lease.generation != generation or number(lease.continuation) >= number(position),
            "I9",
            lambda: (
                f"'{partition}' goes on behind {position}, and its lease says {lease.continuation if lease else None}"
            ),
        )

    def is_unsettled(self, by: str, partition: str, fence: tuple[int, ...]) -> bool:
        """Whether nobody knows yet what became of its last send."""
        return (partition, by, fence) in self._unsettled

    def settled(self, by: str, partition: str, fence: tuple[int, ...]) -> None:
        self._unsettled.pop((partition, by, fence), None)

    def backup(self) -> Mapping[Place, Arrived]:
        """What has arrived, for `restored`."""
        return {place: replace(arrived, ahead=set(arrived.ahead)) for place, arrived in self.arrived.items()}

    def restored(self, backup: Mapping[Place, Arrived]) -> None:
        """The destination has what it had then: the rest is to arrive once more, or leases are refused until they are reset."""
        self.arrived = dict(backup)
        self._fences.clear()
        self._restored = dict.fromkeys(self.leases, False)

    def tried(self, partition: str, events: int | None = None) -> None:
        """Something happened after which so many events may come once more; without a number, those of a batch."""
        self._tries[partition] += max(self.batch_events_max, self.ranged_events_max) if events is None else events

    def finishes(self, by: str, partition: str, generation: int, position: str | None) -> None:
        """An owner was stopped, and everything that it took is behind that position."""
        self._finished[partition] = by, generation, number(position)

    def is_handed_over(self, partition: str) -> bool:
        """For a sink that is opened: whether its last owner finished, and gave the lease up at that position."""
        finished, released = self._finished.pop(partition, None), self._releases.pop(partition, None)
        return finished is not None and finished == released

    # Arrivals

    def fenced(self, partition: str, fence: tuple[int, ...]) -> None:
        """A destination let a claim in, or an effect of one."""
        known = self._fences.get(partition, ())
        self.check(fence >= known, "I5", lambda: f"{fence} had an effect on '{partition}' after {known}")
        self._fences[partition] = max(known, fence)
        if partition in self._restored:
            self._restored[partition] = True

    def arrives(self, partition: str, generation: int, numbers: list[int]) -> None:
        """Events that a destination has now taken."""
        self.counts["batches"] += 1
        self.counts["events"] += len(numbers)
        place = self._place(partition, generation)
        lease = self.leases.get(partition)
        if (
            self.exactly_once and lease is not None and lease.closed and not lease.tombstone
        ):  # an operator's: see `sends`
            self.violated("I7", f"{numbers[:1]}... arrived for '{partition}' after it closed")
        for n in numbers:
            if n < place.to or n in place.ahead:
                place.repeated += 1
                if self.exactly_once:
                    self.violated("I1", f"event {n} of '{partition}' arrived twice")
                continue
            place.ahead.add(n)
            self._advance(place)
            if self.exactly_once and n >= place.to:
                self.violated("I4", f"event {n} of '{partition}' arrived, and {place.to} did not")

    def _place(self, partition: str, generation: int) -> Arrived:
        if (partition, generation) not in self.arrived:
            start = self._starts.get((partition, generation), 0)
            place = self.arrived[partition, generation] = Arrived(start, start)
            self._advance(place)
        return self.arrived[partition, generation]

    def _advance(self, place: Arrived) -> None:
        while place.to in place.ahead or not self.passes(place.to):
            place.ahead.discard(place.to)
            place.to += 1

    def _check_position(self, lease: Lease) -> None:
        """I6, and I9's first half: the lease's position lies at or before what has arrived without a gap.

        Where the sink was put back to an earlier state, from the next claim's first write on.
        """
        place = self._place(lease.partition, lease.generation)
        position = number(lease.continuation)
        if (is_claimed := self._restored.get(lease.partition)) is not None and position > place.to:
            return
        if is_claimed:
            del self._restored[lease.partition]
        self.check(
            position <= place.to,
            "I6",
            lambda: (
                f"the lease of '{lease.partition}' says {position}, and only what lies below {place.to} has arrived"
            ),
        )

    # The end

    def is_delivered(self) -> bool:
        return all(self._place(name, self._generations[name]).to >= self.ends(name) for name in sorted(self.leases))

    def _check_release(self, lease: Lease) -> None:
        """R4: who is asked for a lease, or stops, writes down all that has arrived before it gives the lease up."""
        self.counts["leases given up in calm"] += 1
        position, place = number(lease.continuation), self._place(lease.partition, lease.generation)
        left = [n for n in range(position, place.to) if self.passes(n)]
        self.check(
            not left,
            "R4",
            lambda: (
                f"the lease of '{lease.partition}' is given up at {position}, and what lies below {place.to} has arrived"
            ),
        )

    def check_scans(self, listed_at: Mapping[str, float], hosts: Iterable[str], within_s: float) -> None:
        """A container that has enough to give again is not kept busy by refusals: each host has read its leases lately."""
        late = [host for host in hosts if self.now() - listed_at.get(host, -within_s) >= within_s]
        self.check(not late, "overload", lambda: f"{late} could read no leases for {within_s:.1f} s")

    def check_idle(self, leases: Iterable[Lease]) -> None:
        """R4: where all was delivered and nothing is left to do, leases say so, whatever the sink holds."""
        for lease in leases:
            position, end = number(lease.continuation), self.ends(lease.partition)
            if position != end and not lease.closed:
                self.violated(
                    "R4", f"all {end} events of '{lease.partition}' are delivered, and its idle lease says {position}"
                )

    def check_end(self) -> None:
        for name in sorted(self.leases):
            to, end = self._place(name, self._generations[name]).to, self.ends(name)
            if to < end:
                self.violated("I1", f"'{name}' has {end} events, {to} arrived")
        if not self.exactly_once:
            self._check_repeated()

    def _check_repeated(self) -> None:
        repeated = Counter[str]()
        for (name, _), place in self.arrived.items():
            repeated[name] += place.repeated
        for name, count in sorted(repeated.items()):
            most = self._tries[name]
            if count > most:
                self.violated("I9", f"'{name}': {count} > {most} twice")


def mark(lease: Lease) -> tuple[object, ...]:
    return lease.owner, lease.incarnation, lease.epoch, lease.tick


def number(position: str | None) -> int:
    return 0 if position is None else int(position)


@lru_cache(1000)
def rank(sink_state: str) -> tuple[int, int]:
    """Series and level, where the sink keeps such; generation and newest entry of a manifest."""
    if not sink_state.startswith("{"):
        generation, _, version = sink_state.partition(":")
        return (int(generation), int(version)) if generation.isdecimal() else (0, 0)
    state = json.loads(sink_state)
    return state["series"], state["level"]
