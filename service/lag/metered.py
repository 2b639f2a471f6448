"""What a group knows of the lag of feeds whose source allows few requests (`ChangeFeed.known_lag`).

Owners know from what they read where their partitions end. Each host writes the lags that it knows into its host document, and
the others read them there. Only unknown lags are requested, by one host, at its share of the group's pace.

    group_lag = GroupLag({"orders": feed}, clock)
    await group_lag.run(sight)                              for ever: ask for unknown lags
    group_lag.first_hand(own)                               what the host document reports to the others
    group_lag.answers(leases, own, reports)                 what leasehold.service.lag.measurement counts
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple

from leasehold.common.clock import Clock, Turnstile
from leasehold.leases.document import NAME_BYTES_MAX, Fields
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.expiry import Mark
from leasehold.leases.host_record import HostRecord, host_id
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.pipeline.feed import ChangeFeed, KnownLag
from leasehold.service.lag.age import FirstEvents
from leasehold.service.lag.asking import LAG_TIMEOUTS, LagTimeouts, ask_all, await_answer, known_lag_of
from leasehold.service.lag.measurement import PartitionLag

QUESTIONS_PER_S = 4.0
"""The pace of all hosts together, for one source."""
LISTINGS_PER_S = 1.0
"""The pace of all hosts and pipelines together, for each feed."""
ALONE_PER_S = 20.0
"""The pace of a command that finds no running host."""
STALE_S = 30.0
"""An older answer is requested again, because even an error may be over."""
KEPT_S = 300.0
"""An older answer counts as unknown. The time is enough to ask about 1,200 partitions without a reader."""
LOOK_S = 1.0
PARTITIONS_MAX = 64
"""The most partitions in one entry of a host document."""
ENTRIES_MAX = 1024
SHORT_S = 10.0
"""Shorter waits are reported in tenths of a second."""
NOT_YET = "no host has reported its lag yet"

Lags = Mapping[LeaseKey, KnownLag]


class GroupSnapshot(NamedTuple):
    """What a host sees. own: its own version of the leases that it works on. live: the documents of live hosts, also its own."""

    me: str
    own: Mapping[LeaseKey, Lease]
    leases: Collection[Lease]
    live: Collection[HostRecord]


@dataclass(frozen=True, slots=True)
class _LagAnswer:
    """An answer of a feed at the time `at`. waited_s: for how long the first event had waited then."""

    events: int | None
    error: str | None
    at: float
    waited_s: float | None


class GroupLag:
    """The group's lag, as one process knows it. hosts: how many are alive, this process included; they share the pace."""

    def __init__(
        self,
        feeds: Mapping[str, ChangeFeed],
        clock: Clock,
        first: FirstEvents | None = None,
        waited_s: Callable[[LeaseKey], float | None] = lambda key: None,
    ) -> None:
        """first: what feeds have answered about times. waited_s: how long the oldest event read by this host has waited."""
        self._first = FirstEvents(clock, None) if first is None else first
        self._waited_s = waited_s
        self.feeds = {name: feed for name, feed in feeds.items() if feed.is_metered}
        self.hosts = 1
        self._clock = clock
        self._answers: dict[LeaseKey, _LagAnswer] = {}
        self._first_seen: dict[tuple[str, Mark], float] = {}
        paces = {feed.identity: Turnstile(clock.monotonic, clock.sleep) for feed in self.feeds.values()}
        self._paces = {name: paces[feed.identity] for name, feed in self.feeds.items()}

    def first_hand(self, own: Mapping[LeaseKey, Lease]) -> dict[LeaseKey, KnownLag]:
        """The lags of partitions that this process reads or has asked about."""
        now = self._clock.monotonic()
        asked = {
            key: KnownLag(answer.events, now - answer.at, answer.waited_s)
            for key, answer in self._answers.items()
            if answer.events is not None and now - answer.at <= KEPT_S
        }
        return _youngest([asked, dict(self._read(own))])

    def answers(
        self, leases: Iterable[Lease], own: Mapping[LeaseKey, Lease], reports: Iterable[Lags]
    ) -> dict[LeaseKey, PartitionLag]:
        """The lag of every open lease of these feeds, without a request. reports: other hosts' lags, from `reported`."""
        known = _youngest([*reports, self.first_hand(own)])
        return {lease.key: self._lag_of(lease.key, known.get(lease.key)) for lease in self._open(leases)}

    def reported(self, host: str, mark: Mark, lags: Lags) -> Lags:
        """The lags in a host document, older by the time for which this version of it has been known. No clocks are compared."""
        now = self._clock.monotonic()
        self._first_seen = {which: at for which, at in self._first_seen.items() if now - at <= KEPT_S}
        age_s = now - self._first_seen.setdefault((host, mark), now)
        aged = {key: lag._replace(age_s=lag.age_s + age_s) for key, lag in lags.items()}
        return {key: lag for key, lag in aged.items() if lag.age_s <= KEPT_S}

    async def run(self, sight: Callable[[], GroupSnapshot | None]) -> None:
        """Ask for unknown and outdated lags, for ever."""
        while True:
            seen = sight()
            lease = None if seen is None else self.due(seen)
            if lease is None:
                await self._clock.sleep(LOOK_S)
            else:
                await self.ask(lease)

    def due(self, sight: GroupSnapshot) -> Lease | None:
        """The lease to ask about next: one of this host's, or of its share of those whose owner does not report; None if none."""
        names = sorted(record.name for record in sight.live)
        reports = [self.reported(each.name, each.mark, _lags_in(each)) for each in sight.live if each.name != sight.me]
        first, second = self.first_hand(sight.own), _youngest(reports)
        found: list[tuple[float, Lease]] = []
        for n, lease in enumerate(sorted(self._open(sight.leases), key=lambda lease: lease.key)):
            if lease.key in sight.own:
                age_s = _age(first, lease.key)
            elif names and names[n % len(names)] == sight.me:
                age_s = min(_age(first, lease.key), _age(second, lease.key))
                age_s = 0.0 if lease.owner in names and age_s <= KEPT_S else age_s
            else:
                continue
            if age_s > STALE_S and self._may_ask_again(lease.key):
                found.append((age_s, sight.own.get(lease.key, lease)))
        return max(found, key=lambda each: each[0])[1] if found else None

    async def ask_all(self, leases: Iterable[Lease], known: Collection[LeaseKey], within_s: float) -> None:
        """Ask about all open leases but the known ones, for a process without a host."""
        unknown = [lease for lease in self._open(leases) if lease.key not in known]
        patience = LagTimeouts(call_s=within_s, total_s=within_s)
        await ask_all({lease.key: partial(self.ask, lease) for lease in unknown}, patience=patience)

    async def ask(self, lease: Lease) -> PartitionLag:
        """Ask about a lease once it is our turn. Raises nothing: an error is part of the answer."""
        feed = self.feeds[lease.pipeline]
        await self._take_turn(lease.pipeline)
        at = self._clock.monotonic()
        events, error = await await_answer(lambda: feed.lag(lease.partition, lease.continuation), LAG_TIMEOUTS.call_s)
        waited_s = await self._find_wait(lease) if events else None
        self._answers = {key: each for key, each in self._answers.items() if at - each.at <= KEPT_S}
        self._answers[lease.key] = _LagAnswer(events, error, at, waited_s)
        self._first.keep(self._answers.keys())
        return PartitionLag(
            pipeline=lease.pipeline, partition=lease.partition, events=events, error=error, waited_s=waited_s
        )

    async def _find_wait(self, lease: Lease) -> float | None:
        """How long the first event has waited. It takes another question, which waits for its turn."""
        self._first.note(lease)
        if not self._first.is_found(lease):
            await self._take_turn(lease.pipeline)
        return await self._first.find(self.feeds[lease.pipeline], lease)

    async def _take_turn(self, pipeline: str) -> None:
        await self._paces[pipeline].wait(ALONE_PER_S if self.hosts == 0 else QUESTIONS_PER_S / self.hosts)

    def _read(self, own: Mapping[LeaseKey, Lease]) -> Iterator[tuple[LeaseKey, KnownLag]]:
        for key, lease in own.items():
            known = known_lag_of(self.feeds[key.pipeline], lease) if key.pipeline in self.feeds else None
            if known is not None and known.age_s <= KEPT_S:
                yield key, known._replace(waited_s=self._waited_s(key)) if known.events else known

    def _open(self, leases: Iterable[Lease]) -> list[Lease]:
        return [lease for lease in leases if lease.pipeline in self.feeds and not lease.closed]

    def _may_ask_again(self, key: LeaseKey) -> bool:
        answer = self._answers.get(key)
        return answer is None or self._clock.monotonic() - answer.at > STALE_S

    def _lag_of(self, key: LeaseKey, known: KnownLag | None) -> PartitionLag:
        answer = self._answers.get(key)
        error = None if answer is None else answer.error
        pipeline, partition = key
        if known is None:
            return PartitionLag(pipeline=pipeline, partition=partition, events=None, error=error or NOT_YET)
        return PartitionLag(
            pipeline=pipeline, partition=partition, events=known.events, age_s=known.age_s, waited_s=known.waited_s
        )


def encoded_lags(lags: Lags) -> Iterator[dict[str, object]]:
    """Entries of a host document, some partitions each: the number of events, or that and its age in seconds.

    waits: how long the oldest event of each partition has waited, in the order of names. Earlier versions do not read it.
    """
    for pipeline in sorted({key.pipeline for key in lags}):
        mine = sorted((key.partition, lag) for key, lag in lags.items() if key.pipeline == pipeline)
        for first in range(0, len(mine), PARTITIONS_MAX):
            part = mine[first : first + PARTITIONS_MAX]
            waits = [_rounded(lag.waited_s) for _, lag in part]
            yield {
                "pipeline": pipeline,
                "lags": {name: _encoded(lag) for name, lag in part},
                **({"waits": waits} if any(wait is not None for wait in waits) else {}),
            }


def decoded_lags(fields: Fields, name: str) -> dict[LeaseKey, KnownLag]:
    """Raises InvalidDocument."""
    found: dict[LeaseKey, KnownLag] = {}
    for entry in fields.objects(name, ENTRIES_MAX):
        pipeline = entry.text("pipeline", NAME_BYTES_MAX)
        lags = entry.mapping("lags")
        waits = _waits_in(entry, sorted(lags))
        for partition, value in lags.items():
            events, age_s = value if isinstance(value, list) and len(value) == 2 else (value, 0)
            lag = Fields(fields.id, {"events": events, "ageS": age_s})
            known = KnownLag(lag.integer("events"), lag.number("ageS"), waits.get(partition))
            found[LeaseKey(pipeline, partition)] = known
    return found


def _waits_in(entry: Fields, partitions: list[str]) -> Mapping[str, float | None]:
    """Raises InvalidDocument."""
    if not entry.has("waits"):
        return {}
    waits = entry.optional_numbers("waits", PARTITIONS_MAX)
    if len(waits) != len(partitions):
        entry.refuse("waits", "must have an element for each partition")
    return dict(zip(partitions, waits, strict=True))


def _rounded(seconds: float | None) -> float | None:
    """Short, because a document may have a thousand."""
    if seconds is None:
        return None
    return round(seconds, 1) if seconds < SHORT_S else round(seconds)


def _lags_in(record: HostRecord) -> Lags:
    """Empty for documents that cannot be trusted, which are reported elsewhere."""
    fields = Fields(host_id(record.name), record.activity)
    try:
        return decoded_lags(fields, "lags") if fields.has("lags") else {}
    except InvalidDocument:
        return {}


def _encoded(lag: KnownLag) -> object:
    age_s = round(lag.age_s)
    return lag.events if age_s == 0 else [lag.events, age_s]


def _youngest(several: Iterable[Lags]) -> dict[LeaseKey, KnownLag]:
    found: dict[LeaseKey, KnownLag] = {}
    for lags in several:
        for key, lag in lags.items():
            if lag.age_s <= _age(found, key):
                found[key] = lag
    return found


def _age(lags: Lags, key: LeaseKey) -> float:
    return lags[key].age_s if key in lags else inf
