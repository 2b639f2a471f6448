"""`leasehold demo`: the bank, end to end on one machine, and its balances checked against a plain computation.

Everything is kept in one directory: the transactions, the two logs, the leases, PostgreSQL, the settings (`bank.yaml`) and the
host's log. A second run with the same directory finds everything done, and changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from importlib import resources
from pathlib import Path

from rich.console import Console

from leasehold.pipeline.connectors.log import LogChangeFeed
from leasehold.service.cli.demo import transactions as demo_data
from leasehold.service.cli.demo.failing import FAILURES, Bank, DemoFailed, FailureName, PlannedFailure, Victim
from leasehold.service.cli.demo.postgres import DSN, check_place, make_directory, query_command, run_postgres
from leasehold.service.cli.demo.transactions import Transaction
from leasehold.service.cli.demo.user_file import read
from leasehold.service.cli.demo.view import REFRESH_S, DemoView, count_done, say
from leasehold.service.cli.host_name import host_name
from leasehold.service.cli.run import process, stopping
from leasehold.service.cli.tables import balances_table, screen_of, stopped
from leasehold.service.config import load as config
from leasehold.service.config.leases import SqliteLeases
from leasehold.service.config.settings import HostSettings, LogSettings, Settings
from leasehold.service.lag.backlog import Backlog
from leasehold.service.processor import ProcessorCore
from leasehold.service.telemetry import logs
from leasehold.service.texts import counted, noun
from leasehold.service.wiring.build import processor_of

PARTITIONS = 4
OUTPUT = {"generate": "raw-event", "transform": "transformed-event"}
"""Pipeline -> the log that it writes."""
ACCOUNTS_SHOWN = 20


TEMPLATE = "bank.yaml, a template for settings of your own"
BALANCES = "SELECT * FROM balances"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """directory: where the state stays; None for a temporary one. transactions: a file to use instead of the made-up ones.

    fail: the failure to show.
    """

    directory: Path | None = None
    transactions: Path | None = None
    as_json: bool = False
    fail: FailureName | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """account -> balance, and account -> how many events that balance is the sum of."""

    balances: dict[str, Decimal]
    events: dict[str, int]

    def of(self, account: str) -> tuple[Decimal | None, int | None]:
        return self.balances.get(account), self.events.get(account)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The pipelines' output, compared with that of a plain computation."""

    found: Ledger
    expected: Ledger
    seconds: float

    @property
    def transactions(self) -> int:
        return sum(self.expected.events.values())

    @property
    def lost(self) -> int:
        """Events that are missing from an account's row."""
        return sum(max(0, count - self.found.events.get(name, 0)) for name, count in self.expected.events.items())

    @property
    def duplicated(self) -> int:
        """Events that an account's row has too many of."""
        return sum(max(0, count - self.expected.events.get(name, 0)) for name, count in self.found.events.items())

    @property
    def differing(self) -> list[str]:
        """Accounts with another balance, or another number of events, than expected."""
        names = self.found.balances.keys() | self.expected.balances.keys()
        return sorted(name for name in names if self.found.of(name) != self.expected.of(name))

    @property
    def matches(self) -> bool:
        return not self.differing

    @property
    def as_json(self) -> str:
        return json.dumps(
            {
                "balances": {name: str(balance) for name, balance in sorted(self.found.balances.items())},
                "transactions": self.transactions,
                "lost": self.lost,
                "duplicated": self.duplicated,
                "seconds": round(self.seconds, 3),
            },
            ensure_ascii=False,
        )


async def run_demo(options: DemoOptions) -> DemoResult:
    """Run the demo, show it, check it. Raises StartFailed, DemoFailed, ConfigurationError, demo_data.InvalidTransactions."""
    screen = screen_of(sys.stderr if options.as_json else sys.stdout)
    stop = asyncio.Event()
    with stopping(stop.set), ExitStack() as stack:
        rows = await asyncio.to_thread(_transactions, options.transactions)
        directory = stack.enter_context(_directory(options.directory))
        expected = await asyncio.to_thread(_write, directory, rows)
        say(screen, f"bank in {directory}: {_size(expected)}")
        started = time.monotonic()
        name = stack.enter_context(host_name(HostSettings(), SqliteLeases(path=directory / "leases.db")))
        logs.configure(LogSettings(file=directory / "host.log"), name)
        async with run_postgres(directory / "postgres") as dsn:
            run = _DemoRun(directory, dsn, name, expected, screen, stop)
            await (run.process() if options.fail is None else run.fail(FAILURES[options.fail]))
            found = await asyncio.to_thread(_ledger, dsn)
        result = DemoResult(found, expected, time.monotonic() - started)
    _report(result, options.directory, screen)
    if options.as_json:
        sys.stdout.write(result.as_json + "\n")
    return result


@dataclass(frozen=True, slots=True)
class _DemoRun:
    """The demo's host. stop: set when the user wants to stop."""

    directory: Path
    dsn: str
    host: str
    expected: Ledger
    screen: Console
    stop: asyncio.Event

    @property
    def transactions(self) -> int:
        return sum(self.expected.events.values())

    async def process(self) -> None:
        """Run all pipelines until nothing is left to do. Raises DemoFailed."""
        settings = config.load(self.directory / "bank.yaml", {DSN: self.dsn})
        processor = processor_of(settings, host=self.host, log=logs.logger())
        await self._process(settings, processor, await count_done(processor))
        if not any(processor.stats.events.values()):
            say(self.screen, _nothing_done(self.expected))

    async def fail(self, failure: PlannedFailure) -> None:
        """Let one part of the bank fail, and then process everything, which recovers from it. Raises DemoFailed."""
        bank = Bank(self.directory, {DSN: self.dsn}, self.stop, partial(say, self.screen))
        async with bank.failed(failure) as victim:
            say(self.screen, f"{failure.part} {failure.what}")
            settings = config.load(self.directory / "bank.yaml", {DSN: self.dsn})
            processor = processor_of(settings, host=self.host, log=logs.logger())
            known = await count_done(processor)
            before = {pipeline: await self._stored(pipeline) for pipeline in known}
            stored = before[failure.pipeline]
            say(
                self.screen,
                f"{stored:,} of {self.transactions:,} transactions are stored, and the leases know of"
                f" {known[failure.pipeline]:,}: the demo's host takes the leases when they expire (10 s)",
            )
            async with self._woken(failure, victim, processor):
                await self._process(settings, processor, before)
            say(
                self.screen,
                f"recovered: the other {self.transactions - stored:,} transactions were processed,"
                f" {processor.stats.events[failure.pipeline]:,} of them by the demo's host",
            )
        stored = await self._stored(failure.pipeline)
        if stored != self.transactions:
            raise DemoFailed(
                f"pipeline {failure.pipeline} has stored {stored:,} events instead of {self.transactions:,}"
            )

    async def _process(self, settings: Settings, processor: ProcessorCore, before: Mapping[str, int]) -> None:
        say(self.screen, "starting Spark, which takes some seconds")
        async with DemoView(processor, self.transactions, before, self.screen).draw():
            last = await process(
                processor,
                settings.api,
                self.stop,
                until_idle=True,
                log=logs.logger(),
                listening=lambda port: say(self.screen, f"dashboard: http://{settings.api.host}:{port}/"),
            )
        _heed(last, self.screen)

    @asynccontextmanager
    async def _woken(self, failure: PlannedFailure, victim: Victim, processor: ProcessorCore) -> AsyncIterator[None]:
        """If the victim is frozen, it continues as soon as it owns nothing, and ends before this context does."""
        if not failure.freezes:
            yield
            return
        waking = asyncio.create_task(self._wake(failure, victim, processor), name="wake the frozen host")
        try:
            yield
            await waking
        finally:
            waking.cancel()
            await asyncio.gather(waking, return_exceptions=True)

    async def _wake(self, failure: PlannedFailure, victim: Victim, processor: ProcessorCore) -> None:
        while not _is_displaced(processor, failure):  # noqa: ASYNC110  # scans set no event
            await asyncio.sleep(REFRESH_S)
        say(self.screen, f"{failure.part} continues (SIGCONT) with its old batch: its partitions have new owners")
        victim.resume()
        if (code := await victim.changed()) != 0:
            raise DemoFailed(f"{failure.part} ended with exit code {code}: {victim.words}")
        say(self.screen, f"{failure.part} has ended: nothing of its old batch was stored, because its epoch was over")

    async def _stored(self, pipeline: str) -> int:
        """How many transactions the pipeline's output holds; 0 if there is no output yet."""
        if pipeline == "balances":
            from psycopg.errors import UndefinedTable

            with suppress(UndefinedTable):
                return sum((await asyncio.to_thread(_ledger, self.dsn)).events.values())
            return 0
        if not (path := self.directory / OUTPUT[pipeline]).exists():
            return 0
        feed = LogChangeFeed(path)
        try:
            return sum([await feed.lag(found.name, None) for found in await feed.partitions()])
        finally:
            await feed.close()


def _is_displaced(processor: ProcessorCore, failure: PlannedFailure) -> bool:
    scan = processor.host.balancer.reader.scan
    leases = [lease for lease in scan.leases if lease.pipeline == failure.pipeline] if scan else []
    return bool(leases) and all(lease.owner not in (failure.part, None) for lease in leases)


def _nothing_done(expected: Ledger) -> str:
    return "everything had been processed before" if expected.events else "there are no transactions to process"


def _heed(last: Backlog | None, screen: Console) -> None:
    if last is None:
        raise DemoFailed("stopped before the bank was finished; with --dir, it continues where it stopped")
    for (pipeline, partition), error in sorted(last.failed.items()):
        say(screen, stopped(pipeline, partition, error))


@contextmanager
def _directory(wanted: Path | None) -> Iterator[Path]:
    """The demo's directory, which is not created if PostgreSQL could not live in it."""
    if wanted is None:
        check_place(Path(tempfile.gettempdir()))
        with tempfile.TemporaryDirectory(prefix="leasehold-bank-") as made:
            Path(made).chmod(0o755)  # for root, another user runs PostgreSQL
            yield Path(made)
        return
    yield make_directory(wanted)


def _transactions(wanted: Path | None) -> list[Transaction]:
    return demo_data.generated() if wanted is None else read(wanted)


def _write(directory: Path, rows: list[Transaction]) -> Ledger:
    """The bank's files, and what its balances have to be."""
    demo_data.write(rows, directory, files=PARTITIONS)
    settings = resources.files("leasehold.service.cli.demo").joinpath("bank.yaml").read_text()
    (directory / "bank.yaml").write_text(settings)
    return Ledger(demo_data.expected_balances(rows), demo_data.expected_events(rows))


def _ledger(dsn: str) -> Ledger:
    import psycopg  # not before the settings were checked: it fails if there is no libpq

    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT account, balance, events FROM balances").fetchall()
    return Ledger({row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows})


def _report(result: DemoResult, kept: Path | None, screen: Console) -> None:
    """kept: the directory that stays."""
    names = sorted(result.expected.balances.keys() | result.found.balances.keys())
    shown = result.differing or names[:ACCOUNTS_SHOWN]
    screen.print(balances_table(result.expected.balances, result.found.balances, shown))
    if result.matches and len(shown) < len(names):
        say(screen, f"... and {counted(len(names) - len(shown), 'more account')}, which also match")
    for line in _kept(kept):
        say(screen, line)
    verdict = "match" if result.matches else f"DIFFER in {counted(len(result.differing), 'account')}"
    say(
        screen,
        f"balances {verdict}: {counted(len(result.expected.balances), 'account')}, {result.transactions}"
        f" {noun(result.transactions, 'transaction')},"
        f" {result.lost} lost, {result.duplicated} duplicated",
    )


def _kept(directory: Path | None) -> list[str]:
    """What is left for the user to look at."""
    if directory is None:
        return [f"nothing is kept; `--dir DIRECTORY` keeps everything ({TEMPLATE}, and the database to look into)"]
    return [
        f"everything is kept in {directory}: {TEMPLATE}, and its database:",
        "  " + query_command(directory / "postgres", BALANCES),
    ]


def _size(ledger: Ledger) -> str:
    return f"{counted(sum(ledger.events.values()), 'transaction')} of {counted(len(ledger.events), 'account')}"
