"""Lists the partitions of the feeds, and creates missing leases.

A slow or failing feed does not affect other pipelines or the host. Problems that need a person are reported.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import inf
from shlex import quote
from typing import Any, TypeVar

from leasehold.common.cancellation import is_cancelled
from leasehold.common.clock import Clock, retry_after_s
from leasehold.common.standing import Standing
from leasehold.leases.balance import Peer
from leasehold.leases.bootstrap import Bootstrap, RoundFindings
from leasehold.leases.errors import StoreError, Undecided
from leasehold.leases.keeper import Keeper, Scan
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.lineage import Partition, scopes_of
from leasehold.leases.side_by_side import AT_ONCE_MAX
from leasehold.leases.timing import Timing
from leasehold.pipeline.errors import FeedError, FeedNotFound, FeedUnavailable, SinkNotFound, SinkUnavailable
from leasehold.pipeline.feed import FeedPartition
from leasehold.service.failures import Streak
from leasehold.service.lag.metered import LISTINGS_PER_S
from leasehold.service.pipeline import PipelineParts
from leasehold.service.runtime import Runtime
from leasehold.service.texts import counted, described, noun

# Questions about single partitions that may take minutes: asked in the background, and repeated if they fail.
#
# A sink may have to read a whole partition to find out where it stands. Nothing else waits for that.


ANSWERED_SOON_S = 1.0
"""How long a caller waits for the answer to a new question before it does something else."""
ANSWER_MAX_S = 3600.0
"""A call that takes longer fails, and is repeated."""


@dataclass(slots=True)
class _Question:
    """task: never raises; its outcome is in `answer` or `error`. failures: in a row. due_at: when a failed call is repeated."""

    key: LeaseKey
    began: float
    failures: int = 0
    due_at: float = inf
    answer: Any = None
    error: BaseException | None = None
    task: asyncio.Task[None] | None = None


class Asks:
    """The background calls of one pipeline. answered: called after an answer that no caller waited for."""

    def __init__(self, clock: Clock, timing: Timing, rng: random.Random, answered: Callable[[], None]) -> None:
        self._clock = clock
        self._timing = timing
        self._rng = rng
        self._answered = answered
        self._questions: dict[tuple[str, LeaseKey], _Question] = {}
        self._gates: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE_MAX))
        """For each kind: limits how many calls run at a time."""

    async def get(self, kind: str, key: LeaseKey, call: Callable[[], Awaitable[T]], what: str) -> T:
        """The answer, if it is known or arrives soon; the same one until `forget`. Raises Undecided otherwise.

        kind, key: name the question. what: the system that answers, for people.
        """
        question = self._questions.get((kind, key))
        if question is None or self._clock.monotonic() >= question.due_at:
            failures = 0 if question is None else question.failures
            question = self._questions[kind, key] = _Question(key, self._clock.monotonic(), failures)
            question.task = asyncio.create_task(
                self._ask(question, call, self._gates[kind]), name=f"{kind} of {key.pipeline}/{key.partition}"
            )
        left_s = ANSWERED_SOON_S - (self._clock.monotonic() - question.began)
        if left_s > 0 and question.task is not None:
            await asyncio.wait({question.task}, timeout=left_s)
        if question.error is not None:
            raise Undecided(
                f"{what} does not say where it begins ({described(question.error)})",
                is_slow=True,
                needs_person=needs_person(question.error),
            )
        if question.task is None or not question.task.done():
            waited_s = self._clock.monotonic() - question.began
            raise Undecided(
                f"{what} is still finding out where it begins", is_slow=waited_s > self._timing.call_timeout_s
            )
        answer: T = question.answer
        return answer

    def forget(self, having: Collection[LeaseKey] | None = None) -> None:
        """Drop the answers about partitions that have a lease now; without an argument, all of them."""
        for name, question in list(self._questions.items()):
            is_over = question.task is not None and question.task.done()
            if is_over and (having is None or question.key in having):
                del self._questions[name]

    async def close(self) -> None:
        tasks = [each.task for each in self._questions.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, question: _Question, call: Callable[[], Awaitable[object]], gate: asyncio.Semaphore) -> None:
        """Make the call. One that takes longer than usual gives its place back: slow calls must not hold up all others."""
        await gate.acquire()
        place = ExitStack()
        place.callback(gate.release)
        leave = asyncio.get_running_loop().call_later(self._timing.call_timeout_s, place.close)
        place.callback(leave.cancel)
        try:
            with place:
                async with asyncio.timeout(ANSWER_MAX_S):
                    question.answer = await call()
        except TimeoutError:
            question.error = TimeoutError(f"no answer within {ANSWER_MAX_S:g} s")
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled(error):
                raise
            question.error = error
        if question.error is not None:
            question.failures += 1
            pause_s = self._timing.backoff.pause_s(question.failures, self._rng.random(), retry_after_s(question.error))
            question.due_at = self._clock.monotonic() + pause_s
        elif self._clock.monotonic() - question.began >= ANSWERED_SOON_S:
            self._answered()


T = TypeVar("T")
Report = Callable[[str, Hashable, str, LeaseKey | None], None]
"""(kind, subject, text, the partition that it is about): the arguments of `leasehold.service.reports.Reports.report`."""
NAMED_MAX = 5
"""How many closed partitions a warning names."""
LISTING_WAIT_S = 0.25
"""How long a round waits for feeds to list their partitions. Leases of dead hosts also wait for that long."""


class Partitions:
    """The partitions of all pipelines of a host. waiting: partitions that get no lease for now, and why.

    listings: the partitions of metered feeds, as they were listed last. stuck: those of `waiting` that only a person can help.

    blocked: why a pipeline's leases cannot be created until a person helps. Its feed may still list partitions.

    report: called with problems that need attention. orphaned: called for a lease without a partition, with the error.
    """

    def __init__(
        self,
        pipelines: Mapping[str, PipelineParts],
        keeper: Keeper,
        *,
        runtime: Runtime,
        report: Report,
        orphaned: Callable[[LeaseKey, Exception, Scan], None],
        wake: Callable[[], None],
    ) -> None:
        self.bootstraps = {name: Bootstrap(keeper, name, each.identity) for name, each in pipelines.items()}
        self.waiting: dict[LeaseKey, str] = {}
        self.stuck: dict[LeaseKey, str] = {}
        self.blocked: dict[str, str] = {}
        self._pipelines = pipelines
        self._clock, self._timing, self._rng, self._log = runtime.clock, runtime.timing, runtime.rng, runtime.log
        self._report = report
        self._orphaned = orphaned
        self._wake = wake
        self._listings: dict[str, asyncio.Task[RoundFindings]] = {}
        self._seen: dict[str, tuple[FeedPartition, ...]] = {}
        self._audited: dict[str, Scan] = {}
        """The leases that each pipeline's last audit began with."""
        self._outdated: set[str] = set()
        """Pipelines whose leases have changed since the audit in progress began."""
        self.listings: dict[str, Sequence[FeedPartition]] = {}
        self._listed: dict[str, tuple[float, frozenset[str]]] = {}
        """When a metered feed was last listed, and the partitions that it or the leases had then."""
        self._remembered: dict[str, Scan] = {}
        """The scan whose scopes each feed was given last."""
        self._streaks = {name: Streak(self._clock) for name in pipelines}
        self._due_at = dict.fromkeys(pipelines, -inf)
        self._asks = {name: Asks(self._clock, self._timing, self._rng, wake) for name in pipelines}
        self._undecided_streaks = {name: Streak(self._clock) for name in pipelines}

    async def close(self) -> None:
        """End all background calls."""
        for asks in self._asks.values():
            await asks.close()

    async def refresh(
        self, scan: Scan, group: asyncio.TaskGroup, peers: Sequence[Peer] = ()
    ) -> dict[str, RoundFindings]:
        """The audits of pipelines whose feeds have answered. That of a slow feed is about an earlier scan.

        The host does not wait for a slow feed: it would not scan meanwhile, and could not judge which owners are dead. A lease
        is created only once in any case.
        """
        earlier = self._take_answers()  # first, so that these feeds can be listed again in this round
        begun: list[str] = []
        for name in self._pipelines:
            if name not in self._listings and self._clock.monotonic() >= self._due_at[name]:
                self._listings[name] = group.create_task(
                    self._reconcile(name, scan, [each.name for each in peers if each.serves(name)]),
                    name=f"listing {name}",
                )
                self._audited[name] = scan
                begun.append(name)
            elif name in self._listings and scan.lineage.get(name) != self._audited[name].lineage.get(name):
                self._outdated.add(name)
        if self._listings:
            await asyncio.wait(self._listings.values(), timeout=min(LISTING_WAIT_S, self._timing.balance_s / 4))
        for name in begun:
            if not (listing := self._listings[name]).done():
                listing.add_done_callback(partial(self._wake_for, name))
        return {**earlier, **self._take_answers()}

    def _take_answers(self) -> dict[str, RoundFindings]:
        done = {name: listing for name, listing in self._listings.items() if listing.done()}
        self._listings = {name: listing for name, listing in self._listings.items() if name not in done}
        return {name: listing.result() for name, listing in done.items()}

    def _wake_for(self, name: str, listing: asyncio.Task[RoundFindings]) -> None:
        """Begin a round if a slow feed's new leases can be taken, or leases changed while it listed its partitions.

        Nothing else begins one: slow feeds would never let a host rest.
        """
        is_outdated = name in self._outdated
        self._outdated.discard(name)
        if listing.cancelled() or listing.exception() is not None:
            return
        if is_outdated or listing.result().created or listing.result().left:
            self._wake()

    async def _reconcile(self, name: str, scan: Scan, hosts: Sequence[str]) -> RoundFindings:
        """Create leases for new partitions and for the children of ended ones."""
        pipeline = self._pipelines[name]
        feed = pipeline.feed
        try:
            if self._remembered.get(name) is not scan:
                feed.remember(scopes_of(scan.by_pipeline.get(name, {}).values()))
                self._remembered[name] = scan
            found = await self._list(pipeline, scan, len(hosts))
            audit = await self.bootstraps[name].reconcile(
                found,
                scan,
                lambda partition: self._asks[name].get(
                    "start",
                    LeaseKey(name, partition),
                    lambda: feed.start_of(partition, pipeline.starts.get(partition, pipeline.start)),
                    "its feed",
                ),
                lambda partition, scopes: [
                    Partition(*part) for part in feed.uncovered(FeedPartition(*partition), scopes)
                ],
                self._standing_in(pipeline),
                hosts,
            )
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled(error):
                raise
            if needs_person(error) and not isinstance(error, FeedError):
                self.blocked[name] = described(error)
            else:
                self.blocked.pop(name, None)
            streak = self._streaks[name]
            streak.log_failure(self._log, "listing partitions failed, retrying", error, pipeline=name)
            pause = self._timing.backoff.pause_s(streak.count, self._rng.random(), retry_after_s(error))
            self._due_at[name] = self._clock.monotonic() + pause
            return RoundFindings()
        self.blocked.pop(name, None)
        self._streaks[name].log_end(self._log, "listing partitions recovered", pipeline=name)
        if not found:
            self._report("no partitions", name, f"pipeline '{name}': {feed.no_partitions}", None)
        if audit.created:
            self._log.info("leases created", pipeline=name, partitions=list(audit.created))
        self._attend(name, audit, scan)
        self._warn_of_returned(name, audit.finished, found, scan)
        return audit

    async def _list(self, pipeline: PipelineParts, scan: Scan, hosts: int) -> Sequence[FeedPartition]:
        """The feed's partitions. All hosts and pipelines together list those of a metered feed at most once a second.

        Raises FeedError.

        A lease that is newer than the last listing causes a new one: its partition may be newer, too, so it is not an orphan yet.
        """
        name, now = pipeline.name, self._clock.monotonic()
        if not pipeline.feed.is_metered:
            return await self._await_answer(pipeline.feed.partitions(), f"the feed of pipeline '{name}'")
        leases = scan.by_pipeline.get(name, {}).keys()
        listed_at, known = self._listed.get(name, (-inf, frozenset()))
        sharing = sum(each.feed.identity == pipeline.feed.identity for each in self._pipelines.values())
        if now - listed_at >= max(1, hosts) * sharing / LISTINGS_PER_S or not leases <= known:
            found = await self._await_answer(pipeline.feed.partitions(), f"the feed of pipeline '{name}'")
            self.listings[name] = found
            self._listed[name] = (now, frozenset(leases).union(partition.name for partition in found))
        return self.listings[name]

    def _warn_of_returned(
        self, pipeline: str, finished: Collection[str], listed: Sequence[FeedPartition], scan: Scan
    ) -> None:
        """Warn of closed partitions that the feed lists (again). Closing one before its file is moved away is expected."""
        before = {partition.name for partition in self._seen.get(pipeline, ())} if finished else ()
        self._seen[pipeline] = tuple(listed)
        # The lease of one that was deleted and has just been put back is not in the scan.
        if returned := [name for name in finished if name not in before and LeaseKey(pipeline, name) in scan.seen]:
            one = returned[0]
            names = ", ".join(f"'{name}'" for name in returned[:NAMED_MAX]) + ", ..." * (len(returned) > NAMED_MAX)
            self._report(
                "returned",
                (pipeline, names),
                f"pipeline '{pipeline}': the feed lists"
                f" {counted(len(returned), 'partition whose lease', 'partitions whose leases')} an operator closed ({names})."
                f" No host reads {noun(len(returned), 'it', 'them')}. {_reopening(scan.seen[LeaseKey(pipeline, one)].lease)}",
                LeaseKey(pipeline, one) if len(returned) == 1 else None,
            )

    def _attend(self, pipeline: str, audit: RoundFindings, scan: Scan) -> None:
        """Report problems that need a person."""
        for text in audit.notes:
            self._report("event", text, f"pipeline '{pipeline}': {text}", None)
        self.waiting = {key: why for key, why in self.waiting.items() if key.pipeline != pipeline}
        self.stuck = {key: why for key, why in self.stuck.items() if key.pipeline != pipeline}
        refused = {partition: str(error) for partition, error in audit.undecided.items() if error.needs_person}
        self.stuck |= {LeaseKey(pipeline, partition): why for partition, why in {**audit.waiting, **refused}.items()}
        self._attend_undecided(pipeline, audit, scan)
        for partition, why in sorted(audit.waiting.items()):
            key = LeaseKey(pipeline, partition)
            self.waiting[key] = why
            self._report("waits", key, f"pipeline '{pipeline}', partition '{partition}' waits: {why}", key)
        for partition in audit.orphaned:
            error = FeedError(
                f"pipeline '{pipeline}' has a lease for partition '{partition}', which its feed does not have (any more):"
                " it is set aside. Look at what the feed reads. If the partition is done, close its lease:"
                f" `leasehold leases close FILE {quote(pipeline)} {quote(partition)}`"
            )
            key = LeaseKey(pipeline, partition)
            self._report("orphaned", key, str(error), key)
            self._orphaned(key, error, scan)

    def _attend_undecided(self, pipeline: str, audit: RoundFindings, scan: Scan) -> None:
        self.waiting |= {LeaseKey(pipeline, partition): str(error) for partition, error in audit.undecided.items()}
        slow = {partition: error for partition, error in sorted(audit.undecided.items()) if error.is_slow}
        streak = self._undecided_streaks[pipeline]
        if slow and streak.count_failure():
            partition, error = next(iter(slow.items()))
            self._log.warning(
                "partitions wait for a lease", pipeline=pipeline, first=partition, count=len(slow), error=str(error)
            )
        if audit.undecided:
            self._asks[pipeline].forget(scan.seen)
        else:
            self._asks[pipeline].forget()
            streak.log_end(self._log, "waiting partitions recovered", pipeline=pipeline)

    def _standing_in(self, pipeline: PipelineParts) -> Callable[[str], Awaitable[Standing | None]] | None:
        """A function that asks the sink where a partition stands; None if the sink does not know that."""
        if not pipeline.sink.reports_standing:
            return None

        async def standing(partition: str) -> Standing | None:
            return await self._asks[pipeline.name].get(
                "standing",
                LeaseKey(pipeline.name, partition),
                lambda: pipeline.sink.standing(pipeline.name, partition),
                "its sink",
            )

        return standing

    async def _await_answer(self, call: Awaitable[T], what: str) -> T:
        """Await a call, but not for ever: a feed that does not answer must not keep this host from its leases.

        Raises FeedUnavailable.
        """
        try:
            async with asyncio.timeout(self._timing.call_timeout_s):
                return await call
        except TimeoutError:
            raise FeedUnavailable(f"{what} did not answer within {self._timing.call_timeout_s:g} s") from None


def needs_person(error: BaseException) -> bool:
    """Whether an error of a feed, a sink or a document lasts until a person helps, as far as is known. Pure."""
    waits = FeedUnavailable, SinkUnavailable, StoreError, TimeoutError, OSError
    return isinstance(error, FeedNotFound | SinkNotFound) or not isinstance(error, waits)


def _reopening(closed: Lease) -> str:
    """Commands that read what was added after the close, or everything again."""
    command = f"leasehold leases reset FILE {quote(closed.pipeline)} {quote(closed.partition)}"
    again = f"`{command} --to earliest --yes`"
    if closed.continuation is None:
        return f"To read '{closed.partition}': {again}"
    return (
        f"To read what was added to '{closed.partition}' after the close: `{command} --to {quote(closed.continuation)} --yes`."
        f" To read it from its beginning, which delivers its events a second time: {again}"
    )
