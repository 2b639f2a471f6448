"""`make chaos`: the bank through some minutes of faults that a seed has drawn; then it drains, and its end is compared.

Hosts are killed, frozen, told to stop, added, cut off; their Spark dies; PostgreSQL crashes; the leases are locked, or away; hubs
are cut off, throttle, lose batches and answers; Kafka's broker is killed, and frozen. Faults overlap, and transactions keep
coming. On a cluster, executors read and stage the events of another pipeline meanwhile. Exit code 1 where anything is lost,
duplicated or wrong, or not put to the test.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
from lab.scenarios.chaos_books import Difference, Found, Writer, delivered, difference, found, positions
from lab.scenarios.chaos_group import Group
from lab.scenarios.chaos_host import DATABASE
from lab.scenarios.chaos_plan import (
    KILLS,
    KINDS,
    KINDS_OF,
    KINDS_ON,
    LEASE_S,
    OF_CLUSTERS,
    OF_CONNECT,
    ROUND_ON,
    Fault,
    planned,
)
from lab.scenarios.chaos_ranges import BURST_EVERY_S, Backlog, Copied, Spans, copies_in, environment
from lab.scenarios.chaos_spark import Spark, spark_of
from lab.scenarios.chaos_stalls import Stalls
from lab.scenarios.chaos_waits import STOPS, Happened, Wait, is_reported, of_spark, unreported
from lab.scenarios.grounds import LEASES, Ground, grounds
from lab.scenarios.place import place, say

WRITE_EVERY_S, WRITE_LINES = 0.25, 10
START_S = 180
STANDSTILL_S = 100
"""Above the longest time for which a host leaves a partition alone that has failed."""
PAUSE_S = (2.0, 8.0)
SUSPENDING = ("host frozen", "leases locked", "leases away")
SUSPENDING_POSTGRES = (*SUSPENDING, "PostgreSQL crashed", "PostgreSQL restarted", "host cut off", "host's line stalled")
"""If the leases are in PostgreSQL."""
LAPSE_S = LEASE_S
"""After such a fault: until a heartbeat is answered, which is when a host notices that its session lapsed."""
CALM_S = 30
"""How long a fault waits at most for the group to work again after the ones before."""
RECOVERY_S = 60
"""On a cluster: how soon every partition has to be delivered again after a fault, while no other one lasts."""

WAITS_EVERY_S = 2.0
"""How often REST is read."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """problems: what no host should have done. spoiled: starts that met a fault, and were made again.

    let_go: reason -> how many leases, by hosts that lived on. kinds: what might have happened. lapses: of sessions, when.
    kills_min: how many parts of a cluster have to be killed, or it proves too little. copied: what executors had to read, on a
    cluster. refusals: of batches, by executors. restarts: of a Connect server that its master had forgotten.
    waits_logged, waits_told: hosts that wait, according to logs and to REST. stalls: of the machine itself.
    """

    written: int
    happened: Sequence[Happened]
    found: Found
    difference: Difference
    problems: Sequence[str] = ()
    spoiled: int = 0
    let_go: Mapping[str, int] = field(default_factory=dict)
    kinds: Sequence[str] = KINDS
    lapses: Sequence[float] = ()
    kills_min: int = 0
    suspending: Sequence[str] = SUSPENDING
    stalls: Spans = ()
    waits_logged: Sequence[Wait] = ()
    waits_told: Sequence[Wait] = ()
    copied: Copied | None = None
    refusals: int = 0
    restarts: int = 0

    @property
    def kills(self) -> int:
        return sum(each.kind in KILLS for each in self.happened)

    @property
    def false_lapses(self) -> int:
        """Sessions that lapsed although no host was frozen, the leases were there, and the machine did not stand still."""
        spans = [*self.stalls, *((each.began, each.ended) for each in self.happened if each.kind in self.suspending)]
        return sum(not any(began <= at <= ended + LAPSE_S for began, ended in spans) for at in self.lapses)

    @property
    def delivered(self) -> int:
        """Events that PostgreSQL committed while a fault lasted."""
        return self.found.delivered_within(self._spans)

    @property
    def _spans(self) -> Spans:
        return [(each.began, each.ended) for each in self.happened]

    @property
    def _spans_of_spark(self) -> Spans:
        return [(each.began, each.ended) for each in self.happened if each.kind in (*OF_CLUSTERS, *OF_CONNECT)]

    @property
    def _ended(self) -> float:
        """When the last fault did, in Unix time."""
        return max((each.ended for each in self.happened), default=0.0)

    def _of(self, kind: str) -> Spans:
        return [(each.began, each.ended) for each in self.happened if each.kind == kind]

    @property
    def failures(self) -> list[str]:
        """Empty where something was put to the test, and nothing is wrong."""
        nothing = [] if self.happened else ["no fault happened"]
        still = [] if self.delivered else ["nothing was delivered while faults lasted"]
        wrong = [self.difference.told] if self.difference else []
        lapsed = [f"sessions that lapsed without a reason: {self.false_lapses}"] if self.false_lapses else []
        few = [f"only {self.kills} parts of the cluster were killed"] if self.kills < self.kills_min else []
        unread = [] if self.copied is None else self.copied.failures(self._spans_of_spark, self._ended, RECOVERY_S)
        return [*nothing, *still, *wrong, *lapsed, *few, *self._unsaid, *unread, *self.problems]

    @property
    def _unsaid(self) -> Iterator[str]:
        """Faults of a cluster of which hosts had to say that they wait."""
        kinds = [kind for kind in self.kinds if kind in STOPS] if set(self.kinds) & set(OF_CLUSTERS) else []
        places = (("no log says", self.waits_logged), ("REST does not say", self.waits_told))
        for kind in kinds:
            for where, waits in places:
                missed, demanded = unreported(kind, self.happened, waits)
                if missed:
                    yield f"{where} that a host waits for Spark after {missed} of {demanded} faults: {kind}"
        for where, waits in places if self.kills else ():
            if not any(of_spark(waits)):
                yield f"{where} that a host waits for Spark"

    def told(self) -> Iterator[str]:
        yield from self._table()
        yield from self.difference.lines()
        yield from (f"FAILED: {failure}" for failure in self.failures)
        beside = "" if self.copied is None else f" and {self.copied.events:,} events for executors"
        yield f"{self.written:,} transactions{beside} through {len(self.happened)} faults: {self.difference.told}"

    def _table(self) -> Iterator[str]:
        yield f"{'fault':24}{'times':>8}{'lasted':>10}{'events delivered meanwhile':>30}{self._waits('logged', 'by REST')}"
        for kind in self.kinds:
            spans = self._of(kind)
            lasted = sum(ended - began for began, ended in spans)
            waits = self._waits(*(str(self._said(kind, each)) for each in (self.waits_logged, self.waits_told)))
            yield f"{kind:24}{len(spans):8}{lasted:8.0f} s{self.found.delivered_within(spans):30,}{waits}"
        yield f"{'all':24}{len(self.happened):8}{'':10}{self.delivered:30,}"
        yield f"{'parts of Spark killed':24}{self.kills:8}"
        if "Connect server killed" in self.kinds:
            yield f"{'Connect server restarted':24}{self.restarts:8}{'':10}because its master had forgotten it"
        if self.copied is not None:
            yield from self._staged(self.copied)
        yield f"{'starts they spoiled':24}{self.spoiled:8}"
        yield f"{'sessions that lapsed':24}{len(self.lapses):8}{'':10}without such a fault: {self.false_lapses}"
        stood_s = sum(ended - began for began, ended in self.stalls)
        yield f"{'stalls of the machine':24}{len(self.stalls):8}{stood_s:8.0f} s"
        yield f"leases let go: {', '.join(f'{reason} {count}' for reason, count in sorted(self.let_go.items()))}"

    def _waits(self, logged: str, told: str) -> str:
        """Two columns, on a cluster: after how many faults a host said that it waits for Spark."""
        return "" if self.copied is None else f"{logged:>12}{told:>12}"

    def _said(self, kind: str, waits: Sequence[Wait]) -> int:
        return sum(is_reported(each, self.happened, waits) for each in self.happened if each.kind == kind)

    def _staged(self, copied: Copied) -> Iterator[str]:
        staged, meanwhile = len(copied.staged), copied.staged_within(self._spans_of_spark)
        yield f"{'events executors staged':24}{staged:8,}{'':10}of {copied.events:,}; while faults of Spark lasted: {meanwhile:,}"
        idle_s = copied.idle_after(self._ended)
        first = "" if idle_s is None else f"{'':10}the first {idle_s:.0f} s after it"
        yield f"{'  after the last fault':24}{copied.staged_late:8,}{first}"
        yield f"{'batches they refused':24}{self.refusals:8}"


class Chaos:
    def __init__(
        self,
        directory: Path,
        server: Any,
        ground: Ground,
        spark: Spark,
        seed: int,
        say: Callable[[str], None],
        write_every_s: float = WRITE_EVERY_S,
    ) -> None:
        self._ground = ground
        self._say = say
        self._write_every_s = write_every_s
        self._began = time.monotonic()
        self._writer = Writer(directory, seed, ground.files)
        self._group = Group(directory, server, ground, spark, self._note)
        self._backlog = Backlog(directory) if self._group.is_on_cluster else None
        self._stalls = Stalls(directory)

    async def run(self, plan: Iterable[Fault], seconds: float) -> Outcome:
        """Until there are no more faults, or time is up. Raises what is wrong with this program."""
        writing = {asyncio.create_task(self._writer.write(self._write_every_s, WRITE_LINES))}
        self._stalls.start()
        try:
            await self._open()
            if self._backlog is not None:  # bursts of a start would pile up
                writing.add(asyncio.create_task(self._backlog.write(BURST_EVERY_S)))
                writing.add(asyncio.create_task(self._group.note_waits(WAITS_EVERY_S)))
            await self._live(plan, seconds)
            await _end(writing)
            if self._backlog is not None:
                self._backlog.write_last()
            await self._drain()
            await self._group.stop()
            return await self._outcome()
        finally:
            for each in writing:
                each.cancel()
            await self._group.close()
            self._stalls.close()

    async def _open(self) -> None:
        await self._group.open()
        async with asyncio.timeout(START_S):
            await self._flow(0)
        self._note(f"{len(self._group.hosts)} hosts deliver")

    async def _live(self, plan: Iterable[Fault], seconds: float) -> None:
        """Returns when the last fault is over."""
        async with asyncio.TaskGroup() as faults:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    for fault in plan:
                        since = await self._delivered()
                        await asyncio.sleep(fault.pause_s)
                        is_calm = fault.waits and await self._recover(since)
                        faults.create_task(self._group.act(fault, is_calm))
            self._note("no more faults")
        if self._group.is_on_cluster:
            await self._recover(0)

    async def _recover(self, since: int) -> bool:
        """Returns when all hosts work again, or after CALM_S: whether all partitions are delivered, on a cluster.

        There, events of each partition have to come through Spark again within RECOVERY_S, while no other fault lasts, on
        whatever host. One whose Spark is away for long rests while others have its leases.
        """
        if not self._group.is_on_cluster:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._flow(since), CALM_S)
            return False
        if idle := await idle_partitions(self._group, self._positions, RECOVERY_S):
            words = f"not delivered again within {RECOVERY_S} s after a fault: {', '.join(idle)}"
            self._group.problems.append(words)
            self._note(words)
        return not idle

    async def _flow(self, since: int) -> None:
        """Returns when all hosts work, and more has been delivered than that."""
        while not self._group.has_started or await self._delivered() <= since:  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.2)

    async def _delivered(self) -> int:
        """0 where nobody can tell."""
        try:
            return await asyncio.to_thread(delivered, self._group.dsn)
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            return 0

    async def _positions(self) -> Mapping[str, str]:
        """Nothing where nobody can tell."""
        try:
            return await asyncio.to_thread(positions, self._group.dsn)
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            return {}

    async def _drain(self) -> None:
        """Until everything is everywhere, or nothing has moved for so long that it never will."""
        last, since = "", time.monotonic()
        while not self._is_whole(*(now := await self._found())):
            if (words := _told(*now)) != last:
                last, since = words, time.monotonic()
            if time.monotonic() - since > STANDSTILL_S:
                self._group.problems.append(f"nothing moved for {STANDSTILL_S} s")
                break
            await asyncio.sleep(0.5)
        self._note(f"{self._writer.count} transactions, arrived: {_told(*now)}")

    def _is_whole(self, there: Found, copied: Copied | None) -> bool:
        return there.is_whole(self._writer.written) and (copied is None or copied.is_whole)

    async def _outcome(self) -> Outcome:
        there, copied = await self._found()
        differs = difference(self._writer.written, there)
        if copied is not None:
            copied.compare(differs)
        return Outcome(
            self._writer.count,
            self._group.happened,
            there,
            differs,
            self._group.problems,
            self._group.spoiled,
            self._group.let_go(),
            lapses=self._group.lapses(),
            stalls=self._stalls.spans,
            waits_logged=self._group.waits_logged(),
            waits_told=self._group.waits_told,
            copied=copied,
            refusals=self._group.refusals(),
            restarts=self._group.restarts,
        )

    async def _found(self) -> tuple[Found, Copied | None]:
        bank = await asyncio.to_thread(found, self._ground, self._group.dsn)
        if self._backlog is None:
            return bank, None
        return bank, await asyncio.to_thread(copies_in, self._backlog, self._group.dsn)

    def _note(self, what: str) -> None:
        self._say(f"{time.monotonic() - self._began:7.1f} s  {what}")


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    """Raises what one of them has raised."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


def _told(there: Found, copied: Copied | None) -> str:
    return there.told if copied is None else f"{there.told}, copies {len(copied.rows)}"


async def idle_partitions(
    group: Group, positions: Callable[[], Awaitable[Mapping[str, str]]], within_s: float, look_s: float = 1.0
) -> list[str]:
    """Those whose positions do not move within that time, while no fault lasts. Returns as soon as all do."""
    now_s = asyncio.get_running_loop().time
    before: Mapping[str, str] = {}
    idle, calm_since = ["all"], now_s()
    while now_s() - calm_since <= within_s:
        if group.has_fault:
            before, calm_since = {}, now_s()
        elif now := await positions():
            before = before or now
            idle = [partition for partition in now if now[partition] == before.get(partition)]
            if not idle:
                break
        await asyncio.sleep(look_s)
    return idle


def lived(
    directory: Path,
    server: Any,
    seed: int,
    plan: Iterable[Fault],
    seconds: float,
    say: Callable[[str], None],
    feed: str = "log",
    write_every_s: float = WRITE_EVERY_S,
    spark: str = "local",
    leases: str = "sqlite",
) -> Outcome:
    """feed: what the bank's logs are. spark: what transforms run on. leases: where they are, with the feed `log`."""
    bank = directory / "bank"
    bank.mkdir()

    async def run(ground: Ground, spark_of_hosts: Spark) -> Outcome:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return replace(
            await Chaos(bank, server, ground, spark_of_hosts, seed, say, write_every_s).run(plan, seconds),
            kinds=kinds(feed, spark),
            suspending=SUSPENDING_POSTGRES if leases == "postgres" else SUSPENDING,
        )

    for_executors = environment(server.get_uri(database=DATABASE))
    with grounds(feed, leases=leases) as make, spark_of(spark, directory / "cluster", for_executors) as spark_of_hosts:
        return asyncio.run(run(make(bank, "chaos"), spark_of_hosts))


def kinds(feed: str, spark: str) -> Sequence[str]:
    """What may happen."""
    return KINDS_OF[feed] if spark == "local" else KINDS_ON[spark]


def minutes(text: str) -> float:
    if not 0 < float(text) * 60 < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time: a number of minutes above 0 is wanted")
    return float(text)


def main() -> int:
    parser = argparse.ArgumentParser(description="The bank, through faults at random; then its end is compared.")
    parser.add_argument("--minutes", type=minutes, default=10, help="of faults")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="what the faults are drawn from")
    parser.add_argument("--feed", choices=KINDS_OF, default="log", help="what the bank's logs are")
    parser.add_argument("--spark", choices=("local", *KINDS_ON), default="local", help="what transforms run on")
    parser.add_argument("--leases", choices=LEASES, default="sqlite", help="where leases are, with --feed log")
    parser.add_argument("--faults", type=int, help="no more than these")
    parser.add_argument("--kills", type=int, default=0, help="how many parts of a cluster have to be killed at least")
    arguments = parser.parse_args()
    feed, spark, seconds = arguments.feed, arguments.spark, arguments.minutes * 60
    leases = arguments.leases
    if leases != "sqlite" and feed != "log":
        parser.error("--leases goes with --feed log")
    say(f"SEED={arguments.seed} MINUTES={arguments.minutes:g} FEED={feed} SPARK={spark} LEASES={leases}")
    a_round = kinds(feed, spark) if spark == "local" else ROUND_ON[spark]
    plan = islice(planned(arguments.seed, PAUSE_S, a_round), arguments.faults)
    with place("chaos", is_kept=True) as (directory, server):
        try:
            outcome = lived(directory, server, arguments.seed, plan, seconds, say, feed, spark=spark, leases=leases)
            outcome = replace(outcome, kills_min=arguments.kills)
        except BaseException as error:
            say(f"kept: {directory}")
            if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
                return 130
            raise
    say("\n" + "\n".join(outcome.told()))
    if outcome.failures:
        say(f"kept: {directory}")
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
