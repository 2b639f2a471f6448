"""Reads the lease store for people: the API, `leasehold leases` and `leasehold lag` answer from these readings.

    view = View(keeper, processor.pipelines, clock=clock, now=lambda: datetime.now(UTC), host=processor.host)
    group = await view.read_group()         status.GroupStatus: leases, hosts, pipelines, recent batches, problems
    lag = await view.read_lag()             leasehold.service.lag.measurement.Lag; lag.of("transform") for one pipeline
    look = await view.read_backlog()        leasehold.service.lag.backlog.Backlog, never from memory
    health = view.health()

Any process answers for the whole group, also one without workers (`host=None`), which does not know whether hosts are alive.
Answers are shared for a moment, so that many clients cost the container no more than one. Clients that poll get older answers
about a large group. A container that refuses a reading gets no other until it permits one. All but `health` and
`read_backlog` raise StoreUnavailable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Generic, TypeVar

from leasehold.common.clock import Backoff, Clock, retry_after_s
from leasehold.leases.errors import InvalidDocument, StoreError, StoreUnavailable
from leasehold.leases.host_record import HOSTS_PREFIX, HostRecord, decode_host
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.pause_orders import GROUP_PREFIX, controls_in
from leasehold.leases.store import Stored
from leasehold.pipeline.feed import ChangeFeed
from leasehold.pipeline.pump.progress import WaitingEvents
from leasehold.service.group.activity import activity_of
from leasehold.service.group.status import (
    NOTHING,
    GroupStatus,
    Standstill,
    failures_of,
    group_of,
    standstills,
    unrenewed_of,
)
from leasehold.service.host import Host
from leasehold.service.lag.age import FirstEvents, aged, own_seconds, owned_wait_s
from leasehold.service.lag.asking import LAG_TIMEOUTS, LagTimeouts, ask_all, known_lag_of
from leasehold.service.lag.backlog import Backlog, read_backlog
from leasehold.service.lag.measurement import Lag, PartitionLag, filled, measure_lag
from leasehold.service.lag.metered import GroupLag
from leasehold.service.lag.reports import OwnerReport, OwnerReports
from leasehold.service.pipeline import PipelineParts
from leasehold.service.worker import Worker

T = TypeVar("T")
ASKING_S = 60.0
"""How long a command asks a metered feed, at its pace."""
CONTINUES = "the feed does not have the lease's position, but the sink holds another: a host continues there by itself"
WATCHED_LEASES_PER_S = 250
"""How many leases a second are read for clients that poll the group. It is read at least as often as a host scans it."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the host takes part in the work. reasons: why not; empty if it does."""

    reasons: tuple[str, ...]

    @property
    def is_ready(self) -> bool:
        return not self.reasons


class SharedReading(Generic[T]):
    """One reading for all callers within a moment. Each further failure in a row is shared for longer: a container that is
    down does not need an attempt by every client, and each attempt takes a whole timeout."""

    def __init__(self, read: Callable[[], Awaitable[T]], clock: Clock, backoff: Backoff) -> None:
        self._read = read
        self._clock = clock
        self._backoff = backoff
        self._failures = 0
        self._lock = asyncio.Lock()
        self._last: tuple[float, T | StoreError] | None = None
        self._forgotten = 0

    async def get(self, age_max_s: float) -> T:
        """The last reading, or a new one if that is older than `age_max_s`. Raises StoreUnavailable."""
        async with self._lock:
            if self._last is None or self._clock.monotonic() - self._last[0] >= self._age_max_s(
                self._last[1], age_max_s
            ):
                forgotten = self._forgotten
                last = await self._attempt()
                self._last = last if forgotten == self._forgotten else None
            else:
                last = self._last
        answer = last[1]
        if isinstance(answer, StoreError):
            raise StoreUnavailable(str(answer), retry_after_s=retry_after_s(answer) or None)
        return answer

    def forget(self) -> None:
        """Requests from now on read again, even if a reading is under way."""
        self._forgotten += 1
        self._last = None

    def _age_max_s(self, last: T | StoreError, wanted_s: float) -> float:
        if not isinstance(last, StoreError):
            return wanted_s
        return max(wanted_s, self._backoff.pause_s(self._failures, 0.0, retry_after_s(last)))

    async def _attempt(self) -> tuple[float, T | StoreError]:
        try:
            answer: T | StoreError = await self._read()
            self._failures = 0
        except StoreError as error:
            answer = error
            self._failures += 1
        return self._clock.monotonic(), answer


@dataclass(frozen=True, slots=True)
class _Measured:
    """lag: without `seconds`. leases: those that were measured. at: when that ended (Clock). slack_s: from `View._slack_s`.

    stalled: partitions whose owner does not read the events that the feed has.
    """

    lag: Lag
    leases: Sequence[Lease]
    at: float
    slack_s: Mapping[LeaseKey, float]
    stalled: Collection[LeaseKey]


class View:
    """The group as seen from this process."""

    def __init__(
        self,
        keeper: Keeper,
        pipelines: Iterable[PipelineParts],
        *,
        clock: Clock,
        now: Callable[[], datetime],
        host: Host | None = None,
        patience: LagTimeouts = LAG_TIMEOUTS,
        shared_s: float = 1.0,
    ) -> None:
        """clock: the host's own. now: wall clock, aware. patience: how long feeds may take to report their lag.

        shared_s: how old an answer that several clients share may be.
        """
        self.pipelines = {pipeline.name: pipeline for pipeline in pipelines}
        self._keeper = keeper
        self.clock = clock
        self.now = now
        self.host = host
        self._patience = patience
        self._shared_s = shared_s
        self._feeds = {name: pipeline.feed for name, pipeline in self.pipelines.items()}
        self._group = SharedReading(self._read_group, clock, keeper.timing.backoff)
        self._lag = SharedReading(self._measure_lag, clock, keeper.timing.backoff)
        self._first = FirstEvents(clock, now)
        self._owner_reports = OwnerReports(clock)
        self._leases = 0
        self._before: tuple[Lag, float] | None = None
        """The last measurement, and when it ended (Clock)."""
        self._group_lag = GroupLag(self._feeds, clock, FirstEvents(clock, now)) if host is None else host.group_lag

    @property
    def keeper(self) -> Keeper:
        return self._keeper

    def forget(self) -> None:
        """Discard earlier readings, also the host's, because this process has just changed something."""
        self._group.forget()
        if self.host is not None:
            self.host.wake()

    async def read_group(self) -> GroupStatus:
        return await self._group.get(self._shared_s)

    async def poll_group(self) -> GroupStatus:
        """For clients that poll. A large group is read as often as a host scans it, and a small one each second."""
        return await self._group.get(max(self._pace_s, self._shared_s))

    @property
    def _pace_s(self) -> float:
        return min(self._leases / WATCHED_LEASES_PER_S, self._keeper.timing.balance_s)

    async def read_lag(self, age_max_s: float | None = None) -> Lag:
        """The lag of all pipelines. age_max_s: how old the counts may be; ages are as of now."""
        return self._aged(await self._lag.get(self._shared_s if age_max_s is None else age_max_s))

    async def read_backlog(self) -> Backlog:
        """Every call reads again: two looks at one cached reading would always find that nothing moved. Never raises
        StoreError: if the container does not answer, the backlog is unknown."""
        try:
            group = await self._group.get(0.0)
            scan = await self._keeper.scan(self.pipelines)
        except StoreError as error:
            return Backlog(ends={}, behind=frozenset(), missing=frozenset(), failed={}, unknown=(str(error),))
        return await read_backlog(
            scan.leases,
            self._feeds,
            {**group.failures, **group.resting},
            waiting=self._waiting(group),
            stuck={
                **{key: str(error) for key, error in scan.unreadable.items()},
                **(self.host.stuck if self.host else {}),
            },
            listings={} if self.host is None else self.host.listings,
            ask=self._group_lag.ask,
            patience=self._patience,
        )

    async def read_standstills(self) -> tuple[GroupStatus, dict[LeaseKey, tuple[Standstill, ...]]]:
        """Query the feeds only if no host reports what it finds there: a feed may take seconds. Raises StoreUnavailable."""
        group = await self.read_group()
        has_hosts = any(host.is_heard for host in group.hosts.values())
        return group, standstills(group, NOTHING if has_hosts else await self._find_feed_errors(group))

    async def _find_feed_errors(self, group: GroupStatus) -> Mapping[LeaseKey, str]:
        """Why feeds cannot continue from the leases' positions. If the sink has a newer one, a host continues there."""
        errors = (await self.read_lag()).errors
        leases = {key: group.leases[key].lease for key in errors if key in group.leases}
        asked = {
            key: partial(self._reads_on, lease)
            for key, lease in leases.items()
            if self.pipelines[key.pipeline].sink.reports_standing
        }
        answers = await ask_all(asked, patience=self._patience)
        continued = dict.fromkeys((key for key, reads_on in answers.found.items() if reads_on), CONTINUES)
        return {**errors, **continued}

    async def _reads_on(self, lease: Lease) -> bool:
        """Whether the feed has the position that the sink holds. Raises PipelineError."""
        pipeline = self.pipelines[lease.pipeline]
        held = await pipeline.sink.standing(lease.pipeline, lease.partition)
        if held is None or held.generation != lease.generation or held.position == lease.continuation:
            return False
        await pipeline.feed.lag(lease.partition, held.position)
        return True

    def health(self) -> Readiness:
        host, reasons = self.host, []
        if host is None:
            reasons.append("no host runs in this process")
        elif host.is_draining:
            reasons.append("the host is draining: it finishes its batches and releases its leases")
        elif not host.ready.is_set():
            waits = any(each.transform.executors_wait is not None for each in self.pipelines.values())
            usual = "waits for Spark or its sinks, or has not read the lease store yet"
            reasons.append(f"the host is starting: it {'waits for executors of its Spark cluster' if waits else usual}")
        return Readiness(tuple(reasons))

    def _aged(self, measured: _Measured) -> Lag:
        elapsed_s, now = self.clock.monotonic() - measured.at, self.now()
        workers = {lease.key: worker for lease in measured.leases if (worker := self._worker_of(lease)) is not None}

        def own(one: PartitionLag) -> float | None:
            worker, feed = workers[one.key], self._feeds[one.pipeline]
            waiting = worker.progress.waiting
            lease = replace(worker.owned.lease, continuation=waiting.position)
            known = known_lag_of(feed, lease) if feed.is_metered else None
            return own_seconds(one, elapsed_s, waiting, now, known, is_metered=feed.is_metered)

        return aged(
            measured.lag,
            elapsed_s,
            own=own,
            owned=workers.keys(),
            slack_s=lambda one: measured.slack_s.get(one.key),
            reports={
                key: each for key, each in self._reports_of(measured.leases).items() if key not in measured.stalled
            },
            metered={name for name, feed in self._feeds.items() if feed.is_metered},
        )

    def _reports_of(self, leases: Iterable[Lease]) -> Mapping[LeaseKey, OwnerReport]:
        """What owners report, if their leases alone do not show what is delivered now."""
        if self.host is not None:
            self._owner_reports.note(self.host.watch.present_records, at=self.host.watch.began)
        wanted = [lease for lease in leases if self._needs_report(self.pipelines[lease.pipeline])]
        return self._owner_reports.find(wanted)

    def _needs_report(self, pipeline: PipelineParts) -> bool:
        return pipeline.feed.is_metered or pipeline.position_lag_s > 0

    def _worker_of(self, lease: Lease) -> Worker | None:
        """This host's worker, unless the lease shows that the host has lost it, for example by a reset."""
        worker = None if self.host is None else self.host.workers.get(lease.key)
        if worker is None:
            return None
        mine = worker.owned.lease
        return worker if lease.generation <= mine.generation and lease.epoch <= mine.epoch else None

    async def _measure_lag(self) -> _Measured:
        group = await self._group.get(self._pace_s)  # a shared reading would add its age to those of events
        leases = [status.lease for status in group.leases.values()]
        for lease in leases:
            if self._worker_of(lease) is None:  # else it may be found at the position that the worker has delivered
                self._first.note(lease)
        self._first.keep(group.leases.keys())
        known = await self._collect_known_lags(group, leases)
        runs = {lease.key: found for lease in leases if (found := self._run_of(lease)) is not None}
        lag = await measure_lag(
            leases,
            self._feeds,
            unreadable=group.unreadable,
            waiting=self._waiting(group),
            known=known,
            listings={} if self.host is None else self.host.listings,
            find_wait=lambda feed, lease: self._find_wait(feed, lease, runs.get(lease.key)),
            patience=self._patience,
            clock=self.clock,
        )
        for one in lag.partitions:
            if one.events == 0 and one.key in runs and one.key not in known:
                waiting, run = runs[one.key]
                waiting.forget_first(run, one.position)
        ended = self.clock.monotonic()
        before, at = self._before or (None, ended)
        lag = filled(lag, before, ended - at)
        self._before = (lag, ended)
        lag_s = {name: pipeline.position_lag_s for name, pipeline in self.pipelines.items()}
        asked = [one for one in lag.partitions if not self._feeds[one.pipeline].is_metered]
        stalled = self._owner_reports.find_stalled(asked, self._reports_of(leases), lag_s)
        return _Measured(lag, leases, ended, self._slack_s(group), stalled)

    def _run_of(self, lease: Lease) -> tuple[WaitingEvents, int] | None:
        """What a worker here has read, and in which run."""
        worker = self._worker_of(lease)
        return None if worker is None else (worker.progress.waiting, worker.progress.waiting.run)

    async def _find_wait(self, feed: ChangeFeed, lease: Lease, run: tuple[WaitingEvents, int] | None) -> float | None:
        """The first event's waiting time, by what a worker here has read, or by the feed. run: of that worker; it may be over.

        The lease may be behind what that worker has delivered. If the worker has read no more, what waits has just arrived.
        """
        if run is None or not run[0].has_begun:
            return await self._first.find(feed, lease)
        waiting, _ = run
        if (waited_s := owned_wait_s(waiting, self.now())) is not None:
            return waited_s
        if waiting.is_empty and waiting.position != lease.continuation:
            return 0.0
        return await self._first.find(feed, replace(lease, continuation=waiting.position))

    def _slack_s(self, group: GroupStatus) -> Mapping[LeaseKey, float]:
        """For each partition that another host works on, how far its lease may be behind what is delivered.

        Partitions that stand still are left out: their lease shows what is delivered. Those of metered feeds are not
        left out: what a host reported about them, even a failure, may be over by now.
        """
        failing, found = failures_of(group), {}
        for key, status in group.leases.items():
            owner = None if status.lease.owner is None else group.hosts.get(status.lease.owner)
            if status.state not in ("owned", "handing_over") or owner is None or owner.is_this or not owner.is_heard:
                continue
            pipeline = self.pipelines[key.pipeline]
            slack_s = 0.0 if pipeline.feed.is_metered else pipeline.position_lag_s
            is_still = key in failing or self._first.stood_s(status.lease) > slack_s
            if pipeline.feed.is_metered or not is_still:
                found[key] = slack_s
        return found

    async def _collect_known_lags(self, group: GroupStatus, leases: list[Lease]) -> Mapping[LeaseKey, PartitionLag]:
        """Lags of metered feeds. A process without a host requests those that no host reports; a host requests them anyway."""
        group_lag = self._group_lag
        if not group_lag.feeds:
            return {}
        heard = [host for host in group.hosts.values() if host.is_heard and not host.is_this]
        own = {} if self.host is None else self.host.own_leases
        reports = [group_lag.reported(each.name, (each.incarnation, each.tick), each.activity.lags) for each in heard]
        if self.host is None:
            group_lag.hosts = len(heard) + 1 if heard else 0
            known = {key for report in reports for key in report} | group_lag.first_hand(own).keys()
            await group_lag.ask_all(leases, known, ASKING_S)
        return group_lag.answers(leases, own, reports)

    def _waiting(self, group: GroupStatus) -> Mapping[LeaseKey, str]:
        """Partitions without a lease, and why, as far as any host knows."""
        return {**group.waiting, **(self.host.waiting if self.host is not None else {})}

    async def _read_group(self) -> GroupStatus:
        began = self.clock.monotonic()
        documents = await self._keeper.store.list(GROUP_PREFIX)
        records, problems = _hosts_in(documents)
        self._owner_reports.note(records, at=began)
        scan = await self._keeper.scan(self.pipelines)
        self._leases = len(scan.seen)
        host = self.host
        if host is not None:
            problems += [
                f"pipeline '{key.pipeline}', partition '{key.partition}' waits: {why}"
                for key, why in host.waiting.items()
            ]
        return group_of(
            scan,
            records,
            problems,
            pipelines={name: pipeline.identity for name, pipeline in self.pipelines.items()},
            me=self._keeper.host,
            unrenewed=unrenewed_of(host) if host else None,
            mine=activity_of(host, now=self.now(), monotonic_s=self.clock.monotonic()) if host else None,
            controls=controls_in(documents),
            now=self.now(),
        )


def _hosts_in(documents: Iterable[Stored]) -> tuple[list[HostRecord], list[str]]:
    """The readable host documents, and what is wrong with the others."""
    records: list[HostRecord] = []
    problems: list[str] = []
    for stored in documents:
        if stored.id.startswith(HOSTS_PREFIX):
            try:
                records.append(decode_host(stored.id, stored.body))
            except InvalidDocument as error:
                problems.append(str(error))
    return records, problems
