"""`make chaos`: the bank through some minutes of faults that a seed has drawn; then it drains, and its end is compared.

Hosts are killed, frozen, told to stop, added, cut off; their Spark dies; PostgreSQL crashes; the leases are locked, or away; hubs
are cut off, throttle, lose batches and answers. Faults overlap, and transactions keep coming. Exit code 1 where anything is lost,
duplicated or wrong, or nothing was put to the test.
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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg

from scenarios.chaos_books import Difference, Found, Writer, delivered, difference, found
from scenarios.chaos_group import Group, Happened
from scenarios.chaos_plan import KILLS, KINDS, KINDS_OF, KINDS_ON, LEASE_S, Fault, planned
from scenarios.chaos_spark import Spark, spark_of
from scenarios.grounds import Ground, grounds
from scenarios.place import place, say

WRITE_EVERY_S, WRITE_LINES = 0.25, 10
START_S = 180
STANDSTILL_S = 100
"""Above the longest time for which a host leaves a partition alone that has failed."""
PAUSE_S = (2.0, 8.0)
SUSPENDING = ("host frozen", "leases locked", "leases away")
LAPSE_S = LEASE_S
"""After such a fault: until a heartbeat is answered, which is when a host notices that its session lapsed."""
CALM_S = 30
"""How long a fault waits at most for the group to work again after the ones before."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """problems: what no host should have done. spoiled: starts that met a fault, and were made again.

    let_go: reason -> how many leases, by hosts that lived on. kinds: what might have happened. lapses: of sessions, when.
    kills_min: how many parts of a cluster have to be killed, or it proves too little.
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

    @property
    def kills(self) -> int:
        return sum(each.kind in KILLS for each in self.happened)

    @property
    def false_lapses(self) -> int:
        """Sessions that lapsed although no host was frozen, and the leases were there."""
        spans = [(each.began, each.ended + LAPSE_S) for each in self.happened if each.kind in SUSPENDING]
        return sum(not any(began <= at <= ended for began, ended in spans) for at in self.lapses)

    @property
    def delivered(self) -> int:
        """Events that PostgreSQL committed while a fault lasted."""
        return self.found.delivered_within([(each.began, each.ended) for each in self.happened])

    @property
    def failures(self) -> list[str]:
        """Empty where something was put to the test, and nothing is wrong."""
        nothing = [] if self.happened else ["no fault happened"]
        still = [] if self.delivered else ["nothing was delivered while faults lasted"]
        wrong = [self.difference.told] if self.difference else []
        lapsed = [f"sessions that lapsed without a reason: {self.false_lapses}"] if self.false_lapses else []
        few = [f"only {self.kills} parts of the cluster were killed"] if self.kills < self.kills_min else []
        return [*nothing, *still, *wrong, *lapsed, *few, *self.problems]

    def told(self) -> Iterator[str]:
        yield from self._table()
        yield from self.difference.lines()
        yield from (f"FAILED: {failure}" for failure in self.failures)
        yield f"{self.written:,} transactions through {len(self.happened)} faults: {self.difference.told}"

    def _table(self) -> Iterator[str]:
        yield f"{'fault':24}{'times':>8}{'lasted':>10}{'events delivered meanwhile':>30}"
        times = Counter(each.kind for each in self.happened)
        for kind in self.kinds:
            spans = [(each.began, each.ended) for each in self.happened if each.kind == kind]
            lasted = sum(ended - began for began, ended in spans)
            yield f"{kind:24}{times[kind]:8}{lasted:8.0f} s{self.found.delivered_within(spans):30,}"
        yield f"{'all':24}{len(self.happened):8}{'':10}{self.delivered:30,}"
        yield f"{'parts of Spark killed':24}{self.kills:8}"
        yield f"{'starts they spoiled':24}{self.spoiled:8}"
        yield f"{'sessions that lapsed':24}{len(self.lapses):8}{'':10}without such a fault: {self.false_lapses}"
        yield f"leases let go: {', '.join(f'{reason} {count}' for reason, count in sorted(self.let_go.items()))}"


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

    async def run(self, plan: Iterable[Fault], seconds: float) -> Outcome:
        """Until there are no more faults, or time is up. Raises what is wrong with this program."""
        writing = asyncio.create_task(self._writer.write(self._write_every_s, WRITE_LINES))
        try:
            await self._open()
            await self._live(plan, seconds)
            writing.cancel()
            await asyncio.wait({writing})
            await self._drain()
            await self._group.stop()
            return await self._outcome()
        finally:
            writing.cancel()
            await self._group.close()

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
                        if fault.waits:
                            with suppress(TimeoutError):
                                await asyncio.wait_for(self._flow(since), CALM_S)
                        faults.create_task(self._group.act(fault))
            self._note("no more faults")

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

    async def _drain(self) -> None:
        """Until everything is everywhere, or nothing has moved for so long that it never will."""
        last, since = "", time.monotonic()
        while not (now := await self._found()).is_whole(self._writer.written):
            if now.told != last:
                last, since = now.told, time.monotonic()
            if time.monotonic() - since > STANDSTILL_S:
                self._group.problems.append(f"nothing moved for {STANDSTILL_S} s")
                break
            await asyncio.sleep(0.5)
        self._note(f"{self._writer.count} transactions, arrived: {now.told}")

    async def _outcome(self) -> Outcome:
        there, written = await self._found(), self._writer.written
        return Outcome(
            self._writer.count,
            self._group.happened,
            there,
            difference(written, there),
            self._group.problems,
            self._group.spoiled,
            self._group.let_go(),
            lapses=self._group.lapses(),
        )

    async def _found(self) -> Found:
        return await asyncio.to_thread(found, self._ground, self._group.dsn)

    def _note(self, what: str) -> None:
        self._say(f"{time.monotonic() - self._began:7.1f} s  {what}")


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
) -> Outcome:
    """feed: what the bank's logs are. spark: what transforms run on."""
    bank = directory / "bank"
    bank.mkdir()

    async def run(ground: Ground, spark_of_hosts: Spark) -> Outcome:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return replace(
            await Chaos(bank, server, ground, spark_of_hosts, seed, say, write_every_s).run(plan, seconds),
            kinds=kinds(feed, spark),
        )

    with grounds(feed) as make, spark_of(spark, directory / "cluster") as spark_of_hosts:
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
    parser.add_argument("--faults", type=int, help="no more than these")
    parser.add_argument("--kills", type=int, default=0, help="how many parts of a cluster have to be killed at least")
    arguments = parser.parse_args()
    feed, spark, seconds = arguments.feed, arguments.spark, arguments.minutes * 60
    say(f"SEED={arguments.seed} MINUTES={arguments.minutes:g} FEED={feed} SPARK={spark}")
    plan = islice(planned(arguments.seed, PAUSE_S, kinds(feed, spark)), arguments.faults)
    with place("chaos", is_kept=True) as (directory, server):
        try:
            outcome = lived(directory, server, arguments.seed, plan, seconds, say, feed, spark=spark)
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
