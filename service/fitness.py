"""Whether this host can do its work, pipeline by pipeline, and what becomes of its leases if it cannot.

    well      --- it fails for a duration ------------------> sick        shown to the others: it gets no leases
    sick      --- another host is fit for a duration -------> leaving     its workers settle or drop their batches, and end
    leaving   --- nothing is sent any more -----------------> renounced   shown to the others: they take its leases
    renounced --- a probe succeeds, after a while ----------> well        in a new term

A host is fit if it has delivered, or has probed lease writes, feed and sink, within the last minute. A lease that another host
works on moves only to such a host. If there is none, nothing moves (docs/protocol.md, S10).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from leasehold.common.cancellation import is_cancelled
from leasehold.common.clock import Backoff
from leasehold.leases.host_record import BLIND, FIT, RENOUNCED, SICK, UNKNOWN, HostRecord
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import LeaseKey
from leasehold.leases.session import Session
from leasehold.leases.tenure import VersionedLease
from leasehold.service.failures import Ended, Failure, Failures
from leasehold.service.pipeline import PipelineParts
from leasehold.service.runtime import Runtime
from leasehold.service.worker import Worker

State = Literal["well", "sick", "leaving", "renounced"]
PROVED_FOR_S = 60.0
"""How long a delivery or a successful probe counts as proof that a host is fit."""
PROBED_EVERY_S = 5.0
PROBE_CALLS = 2
"""How many calls a probe makes one after the other."""
REST = Backoff(first_s=40.0, max_s=1800.0)
"""The time from sickness to the first try to resume: longer each time, until the host has been well for as long as its next
rest."""
FOREIGN_REST = Backoff(first_s=60.0, max_s=1800.0)
"""How long a lease that failed at its last owner may fail here before that counts against this host."""
TRIAL = 2
"""For how many durations a host that resumes tries the one lease that it requests, unless it delivers sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """What other live hosts show.

    - fit_s: for how long one of them has been fit; None if none is. are_able: whether one may take leases, as far as is known.
    - sick_s: how long ago the latest of the sick ones became sick; None if none is sick.
    """

    fit_s: float | None = None
    are_able: bool = False
    sick_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What shows that a pipeline works here.

    - delivered_s: how long ago it last delivered. proved_s: how long ago it last delivered, or a probe succeeded.
    - probe_failed: whether the last probe failed, with no delivery since.
    """

    delivered_s: float = inf
    proved_s: float = inf
    probe_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a pipeline here, at `now` (Clock seconds).

    - fails_s: the longest time for which writes of leases, or a partition, have failed.
    - failing: how long each partition has failed, if it has a worker, or its worker failed and must not be replaced yet.
    - has_released: whether leases were released here because they failed.
    - reads_fail_s: how long reads of leases have failed.
    - trusted_s: how long ago the host's last lapse of trust ended.

    `failing` and `reads_fail_s` are 0 for what was not tried again since the last lapse: the cause may have ended with it.
    """

    now: float
    lasts_s: float
    fails_s: float = 0.0
    failing: Collection[float] = ()
    has_released: bool = False
    reads_fail_s: float = 0.0
    proof: Proof = field(default_factory=Proof)
    peers: Peers = field(default_factory=Peers)
    trusted_s: float = inf

    @property
    def is_suspect(self) -> bool:
        """Whether something fails, and a probe has to find out whether everything does."""
        return self.fails_s >= self.lasts_s

    @property
    def loses_work(self) -> bool:
        """Whether leases are better off elsewhere: all partitions fail, or some do and a probe fails too."""
        all_fail = bool(self.failing) and min(self.failing) >= self.lasts_s
        return all_fail or (self.is_suspect and self.proof.probe_failed)

    @property
    def is_blind(self) -> bool:
        """Whether this host cannot read leases: it keeps its own, which it can process, and gets no others."""
        return self.reads_fail_s >= self.lasts_s

    @property
    def may_lack_workers(self) -> bool:
        """Whether a host without workers can rely on others for its leases: they requested them, or one is fit to take them."""
        return self.peers.fit_s is not None or (self.peers.are_able and not self.has_released)

    @property
    def is_sick_alone(self) -> bool:
        """Whether the cause is likely to be here: another host is fit, and has been for a duration unless errors ended workers
        here. A system that was away for both gives this host that time to recover."""
        return self.peers.fit_s is not None and (self.has_released or self.peers.fit_s >= self.lasts_s)

    @property
    def is_outage(self) -> bool:
        """Whether trust has lapsed lately: the lease store may be the cause of failures."""
        return self.trusted_s < self.lasts_s

    @property
    def is_proved_now(self) -> bool:
        return self.proof.proved_s <= 2 * PROBED_EVERY_S

    @property
    def wants_probe(self) -> bool:
        return self.is_suspect or (self.peers.sick_s is not None and not self.answers_the_sick)

    @property
    def answers_the_sick(self) -> bool:
        """Whether this host has shown that it is fit after the latest other one became sick. An older proof does not count: both
        may have one cause."""
        return self.peers.sick_s is not None and self.proof.proved_s <= min(self.peers.sick_s, PROVED_FOR_S)

    @property
    def is_well_proved(self) -> bool:
        """Whether the proof is a delivery, which it must be if leases failed here: no probe shows what a handler will do."""
        return not self.has_released or self.proof.delivered_s <= (self.peers.sick_s or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineHealth:
    """The state of one pipeline. since: when it became well or sick. rests: how often it was renounced since it was last well
    for a long time."""

    state: State = "well"
    since: float = -inf
    rests: int = 0

    def judged(self, facts: Facts, *, workers: int) -> PipelineHealth:
        """The next state. Pure."""
        match self.state:
            case "well" if facts.loses_work and not facts.is_outage:
                return replace(self, state="sick", since=facts.now)
            case "sick" if not workers and facts.may_lack_workers:
                return replace(self, state="renounced", rests=self.rests + 1)
            case "sick" if not facts.loses_work and (workers or facts.proof.proved_s <= facts.now - self.since):
                return replace(self, state="well", since=facts.now)
            case "sick" if facts.is_sick_alone:
                return replace(self, state="leaving")
            case "leaving" if not workers:
                return replace(self, state="renounced", rests=self.rests + 1)
            case "renounced" if self.may_resume(facts) and facts.is_proved_now and not facts.loses_work:
                return replace(self, state="well", since=facts.now)
            case "well" if self.rests and facts.now - self.since >= REST.pause_s(self.rests + 1, 0.0):
                return replace(self, rests=0)
        return self

    def may_resume(self, facts: Facts) -> bool:
        """Whether it has rested long enough. While no other host may take leases, each rest is as short as the first."""
        return facts.now - self.since >= REST.pause_s(self.rests if facts.peers.are_able else 1, 0.0)

    def is_on_trial(self, now: float, lasts_s: float, *, delivered_at: float, requested_at: float) -> bool:
        """Whether it has resumed, and has not shown yet that it works: no probe shows what a handler will do."""
        is_tried = requested_at >= self.since and now - requested_at >= TRIAL * lasts_s
        return self.state == "well" and self.rests > 0 and delivered_at < self.since and not is_tried

    def shown(self, facts: Facts) -> str:
        """The pipeline's character in `HostRecord.fitness`."""
        if self.state != "well":
            return RENOUNCED if self.state == "renounced" else SICK
        if facts.is_blind and not facts.is_outage:
            return BLIND
        return FIT if facts.answers_the_sick and facts.is_well_proved and not facts.is_suspect else UNKNOWN


@dataclass(slots=True)
class _WatchedPeers:
    """fit_since: since when at least one of them is fit."""

    sick: frozenset[str] = frozenset()
    sick_since: float = -inf
    fit_since: float | None = None


@dataclass(slots=True)
class _WatchedPipeline:
    health: PipelineHealth = field(default_factory=PipelineHealth)
    delivered_at: float = -inf
    requested_at: float = -inf
    proved_at: float = -inf
    probed_at: float = -inf
    probe_failed: bool = False
    probes: int = 0
    peers: _WatchedPeers = field(default_factory=_WatchedPeers)


class Fitness:
    """Judges this host, shows the others the result, and stops the workers that have to stop."""

    def __init__(
        self,
        pipelines: Mapping[str, PipelineParts],
        *,
        keeper: Keeper,
        session: Session,
        workers: Mapping[LeaseKey, Worker],
        failures: Failures,
        others: Callable[[], Iterable[HostRecord]],
        lease_of: Callable[[str, int], VersionedLease | None],
        changed: Callable[[], None],
        runtime: Runtime,
    ) -> None:
        """others: the other live hosts. changed: called when leases have to move, or may.

        lease_of: a lease of the pipeline, if one is known; another one for each turn.
        """
        self._pipelines = pipelines
        self._keeper = keeper
        self._session = session
        self._workers = workers
        self._failures = failures
        self._others = others
        self._lease_of = lease_of
        self._changed = changed
        self._clock, self._timing, self._log = runtime.clock, runtime.timing, runtime.log
        self._watched = {name: _WatchedPipeline() for name in pipelines}
        self._lapses, self._trusted_since = 0, -inf
        self._foreign: dict[LeaseKey, tuple[int, float]] = {}
        """Leases that failed at their last owner: how often such ones were taken, and until when their failures do not count."""

    def gives_up(self, pipeline: str) -> bool:
        """Whether no work on the pipeline may begin here."""
        return self._watched[pipeline].health.state in ("leaving", "renounced")

    def is_unfit(self, pipeline: str) -> bool:
        """Whether this host cannot process the pipeline now."""
        return self._watched[pipeline].health.state != "well"

    def note_delivery(self, key: LeaseKey) -> None:
        self._foreign.pop(key, None)
        watched = self._watched[key.pipeline]
        watched.delivered_at = watched.proved_at = self._clock.monotonic()
        self._note_success(key.pipeline)

    def note_request(self, key: LeaseKey) -> None:
        self._failures.note_request(key)
        self._watched[key.pipeline].requested_at = self._clock.monotonic()

    def note_take(self, key: LeaseKey) -> None:
        """A lease that failed at its last owner may fail here too, through no fault of this host."""
        if any(key.pipeline in each.which_are(SICK, RENOUNCED) for each in self._others()):
            times = self._foreign.get(key, (0, 0.0))[0] + 1
            self._foreign[key] = times, self._clock.monotonic() + FOREIGN_REST.pause_s(times, 0.0)

    async def requests(self, wanted: Collection[LeaseKey]) -> tuple[LeaseKey, ...]:
        """Which of the wanted leases, which other hosts work on, this host may request.

        It has to be fit for their pipeline: it has shown that lately, or a probe shows it now. What failed here is left to
        others for a while.
        """
        now, ended = self._clock.monotonic(), self._failures.ended
        left = {key for key in wanted if key in ended and now < ended[key].left_until}
        by_pipeline = defaultdict[str, list[LeaseKey]](list)
        for key in wanted:
            if key not in left:
                by_pipeline[key.pipeline].append(key)
        await asyncio.gather(*(self._probe(name) for name in by_pipeline if not self._is_proved(name)))
        return tuple(
            key for name, keys in by_pipeline.items() if self._is_proved(name) for key in keys[: self._most(name, now)]
        )

    def _most(self, name: str, now: float) -> int | None:
        """How many leases this host may request now; None: as many as it lacks. A host on trial may request one in all."""
        health, lasts_s = self._watched[name].health, self._session.timing.duration_s
        if now - health.since < lasts_s:
            return 0  # the others may have been sick for the same cause, and recover too
        delivered_at, requested_at = self._watched[name].delivered_at, self._watched[name].requested_at
        if not health.is_on_trial(now, lasts_s, delivered_at=delivered_at, requested_at=requested_at):
            return None
        return int(requested_at < health.since)

    async def run(self) -> None:
        """Probe and judge this host again and again. Never returns."""
        while True:
            await self._clock.sleep(self._pause_s)
            self._note_lapses()
            others = list(self._others())
            for name in self._pipelines:
                self._note_peers(name, others)
            await asyncio.gather(*(self._probe_if_wanted(name, others) for name in self._pipelines))
            self._judge(others)

    @property
    def _pause_s(self) -> float:
        if any(watched.health.state != "well" for watched in self._watched.values()):
            return self._timing.handoff_poll_s
        return min(self._session.timing.look_s, PROBED_EVERY_S)

    def _note_lapses(self) -> None:
        if not self._session.is_trusted:
            self._trusted_since = inf
        elif self._trusted_since == inf or self._session.lapses != self._lapses:
            self._trusted_since = self._clock.monotonic()
        self._lapses = self._session.lapses

    def _judge(self, others: Collection[HostRecord]) -> None:
        shown, resumes = "", False
        for name, watched in self._watched.items():
            facts = self._facts(name, others)
            workers = [worker for key, worker in self._workers.items() if key.pipeline == name]
            before, watched.health = watched.health, watched.health.judged(facts, workers=len(workers))
            shown += watched.health.shown(facts)
            resumes |= before.state == "renounced" != watched.health.state
            if watched.health.state == "leaving":
                for worker in workers:
                    worker.stop()
            if watched.health.state != before.state:
                self._log.warning("fitness changed", pipeline=name, before=before.state, now=watched.health.state)
        self._show(shown, resumes)

    def _note_success(self, name: str) -> None:
        """What could not be reached can be again, so partitions need not wait for their next try."""
        watched = self._watched[name]
        if watched.probe_failed:
            for key, worker in self._workers.items():
                if key.pipeline == name:
                    worker.retry_now()
        watched.probe_failed = False

    def _note_peers(self, name: str, others: Collection[HostRecord]) -> None:
        """Each host that becomes sick restarts `sick_since`: what made it sick may have begun only now."""
        peers, now = self._watched[name].peers, self._clock.monotonic()
        if not any(name in each.which_are(FIT) for each in others if not each.draining):
            peers.fit_since = None
        elif peers.fit_since is None:
            peers.fit_since = now
        sick = frozenset(each.name for each in others if name in each.which_are(SICK))
        if sick - peers.sick:
            peers.sick_since = now
        peers.sick = sick

    def _show(self, shown: str, resumes: bool) -> None:
        if shown != (self._session.fitness or UNKNOWN * len(shown)):
            self._session.set_fitness(shown, resumes=resumes)
            self._changed()

    def _facts(self, name: str, others: Collection[HostRecord]) -> Facts:
        now, watched, outcomes = self._clock.monotonic(), self._watched[name], self._keeper.outcomes
        return Facts(
            now=now,
            lasts_s=self._session.timing.duration_s,
            fails_s=max((outcomes.writes.failing_s(now), *self._failing(name, now))),
            failing=self._failing(name, now, tried_since=self._trusted_since),
            has_released=any(key.pipeline == name for key in self._failures.ended),
            reads_fail_s=outcomes.reads.failing_s(now, tried_since=self._trusted_since),
            proof=Proof(
                delivered_s=now - watched.delivered_at,
                proved_s=now - watched.proved_at,
                probe_failed=watched.probe_failed,
            ),
            peers=Peers(
                fit_s=None if watched.peers.fit_since is None else now - watched.peers.fit_since,
                are_able=any(each.peer(is_new=False).gets(name) for each in others),
                sick_s=now - watched.peers.sick_since if watched.peers.sick else None,
            ),
            trusted_s=now - self._trusted_since,
        )

    def _failing(self, name: str, now: float, *, tried_since: float = -inf) -> list[float]:
        """How long each partition has failed. tried_since: older failures do not count: 0 for a worker that runs, and nothing
        for one that ended."""
        ended = {key: each for key, each in self._failures.ended.items() if key not in self._workers}
        tried = [key for key, each in ended.items() if each.at >= tried_since and now < each.until]
        keys = [key for key in (*self._workers, *tried) if key.pipeline == name]
        return [self._failing_s(key, self._failures.get(key) or ended.get(key), now, tried_since) for key in keys]

    def _failing_s(self, key: LeaseKey, failure: Failure | Ended | None, now: float, tried_since: float) -> float:
        if failure is None or failure.at < tried_since or now < self._foreign.get(key, (0, -inf))[1]:
            return 0.0
        return now - failure.since

    def _is_proved(self, name: str) -> bool:
        """Whether there is a proof that is newer than the failures here and the sickness of others. An older one shows nothing
        about their cause."""
        facts = self._facts(name, ())
        failing = self._failing(name, facts.now)
        return facts.proof.proved_s <= min([PROVED_FOR_S, *filter(None, (facts.peers.sick_s, *failing))])

    async def _probe_if_wanted(self, name: str, others: Collection[HostRecord]) -> None:
        watched, facts = self._watched[name], self._facts(name, others)
        state = watched.health.state
        is_unsure = state == "sick" or (state == "renounced" and watched.health.may_resume(facts))
        if (facts.wants_probe or is_unsure) and facts.now - watched.probed_at >= PROBED_EVERY_S:
            await self._probe(name)

    async def _probe(self, name: str) -> None:
        """Find out whether lease writes, feed and sink can be reached. Changes nothing."""
        watched, pipeline, outcomes = self._watched[name], self._pipelines[name], self._keeper.outcomes
        if self._clock.monotonic() < outcomes.quiet_until:
            # Refused writes over so long a time show the same as a probe.
            watched.probe_failed |= outcomes.writes.spans_s >= self._session.timing.duration_s
            return
        watched.probes, watched.probed_at = watched.probes + 1, self._clock.monotonic()
        seen = self._lease_of(name, watched.probes)
        asked: list[Awaitable[object]] = [pipeline.feed.partitions()]
        if seen is not None:
            asked += [self._keeper.probe(seen), pipeline.sink.probe(name, seen.lease.partition)]
        asking = [asyncio.ensure_future(each) for each in asked]
        try:
            async with asyncio.timeout(PROBE_CALLS * self._timing.call_timeout_s):
                await asyncio.gather(*asking)
        except (Exception, asyncio.CancelledError) as error:  # a user's feed or sink may raise anything
            if is_cancelled(error):
                raise
            watched.probe_failed = True
            self._log.debug("probe failed", pipeline=name, error=str(error) or type(error).__name__)
        else:
            self._note_success(name)
            if pipeline.sink.reports_standing or not any(self._failing(name, self._clock.monotonic())):
                watched.proved_at = self._clock.monotonic()  # otherwise the probe did not reach the sink
        finally:
            for each in asking:
                each.cancel()  # one may hang after another has failed
