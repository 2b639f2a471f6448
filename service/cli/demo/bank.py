"""`leasehold demo`: the bank, end to end on one machine, and its balances checked against a plain computation.

Everything is kept in one directory: the transactions, the two logs, the leases, PostgreSQL, the settings (`bank.yaml`) and the
host's log. Run again with the same directory, it finds everything done and changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib import resources
from pathlib import Path

import psycopg
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from leasehold.leases.lease import Lease
from leasehold.service.cli.demo import transactions as demo_data
from leasehold.service.cli.demo.postgres import DSN, check_place, make_directory, query_command, run_postgres
from leasehold.service.cli.demo.transactions import Transaction
from leasehold.service.cli.host_name import host_name
from leasehold.service.cli.run import process, stopping
from leasehold.service.cli.tables import balances_table, screen_of, stopped
from leasehold.service.config import load as config
from leasehold.service.config.leases import SqliteLeases
from leasehold.service.config.settings import HostSettings, LogSettings
from leasehold.service.errors import ServiceError
from leasehold.service.lag.measurement import Backlog, measure_lag
from leasehold.service.processor import Processor
from leasehold.service.telemetry import logs
from leasehold.service.texts import counted, noun
from leasehold.service.wiring.build import processor_of

# What `leasehold demo` shows while it runs: a bar for every pipeline, and the leases with their owners.


REFRESH_S = 0.2
LINES_S = 2.0
"""Without a terminal: how often a line is printed."""


async def count_done(processor: Processor) -> dict[str, int]:
    """How many events each pipeline has behind it, by its leases, before the processor starts. Raises StoreError."""
    feeds = {pipeline.name: pipeline.feed for pipeline in processor.pipelines}
    leases = (await processor.keeper.scan(feeds)).leases
    left = await measure_lag(leases, feeds)
    whole = await measure_lag([replace(lease, continuation=None) for lease in leases], feeds)
    return {name: max(0, whole.of(name).events - left.of(name).events) for name in feeds}


class DemoView:
    """Redrawn in place on a terminal; a line now and then where output goes to a file.

    before: what each pipeline had done when this processor started.
    """

    def __init__(self, processor: Processor, transactions: int, before: Mapping[str, int], screen: Console) -> None:
        self._processor = processor
        self._screen = screen
        self._total = transactions
        self._before = before
        self._bars = Progress(
            TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=screen
        )
        self._tasks: dict[str, TaskID] = {
            pipeline.name: self._bars.add_task(pipeline.name, total=transactions) for pipeline in processor.pipelines
        }

    @asynccontextmanager
    async def draw(self) -> AsyncIterator[None]:
        """Draw it, and draw it again, within this context."""
        draw = self._live() if self._screen.is_terminal else self._lines()
        task = asyncio.create_task(draw, name="demo view")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _live(self) -> None:
        with Live(console=self._screen, auto_refresh=False) as live:
            try:
                while True:
                    live.update(self._drawn(), refresh=True)
                    await asyncio.sleep(REFRESH_S)
            finally:
                live.update(self._drawn(), refresh=True)

    async def _lines(self) -> None:
        last = ""
        while True:
            done = self._done()
            line = ", ".join(f"{name} {count:,}/{self._total:,}" for name, count in done.items())
            if line != last:
                _say(self._screen, line)
                last = line
            await asyncio.sleep(LINES_S)

    def _drawn(self) -> RenderableType:
        for name, count in self._done().items():
            self._bars.update(self._tasks[name], completed=count)
        return Group(self._bars, self._leases())

    def _leases(self) -> Table:
        table = Table.grid(padding=(0, 2))
        scan = self._processor.host.balancer.scan
        for name in self._tasks:
            leases = [lease for lease in scan.leases if lease.pipeline == name] if scan else []
            table.add_row(name, "  ".join(_shown(lease) for lease in leases) or "waiting for its first partition")
        return table

    def _done(self) -> dict[str, int]:
        return {name: self._before[name] + self._processor.stats.events[name] for name in self._tasks}


def _shown(lease: Lease) -> str:
    return (
        f"{lease.partition.removesuffix('.csv').rsplit('-', 1)[-1]}: {lease.owner or 'no owner'} (epoch {lease.epoch})"
    )


PARTITIONS = 4
ACCOUNTS_SHOWN = 20


TEMPLATE = "bank.yaml, a template for settings of your own"
BALANCES = "SELECT * FROM balances"


class DemoFailed(ServiceError):
    """The demo did not finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """directory: where the state stays; None for one that goes. transactions: a file to use instead of the made-up ones."""

    directory: Path | None = None
    transactions: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """account -> balance, and account -> how many events it is made of."""

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
        """Accounts whose balance, or how many events it is made of, is not as expected."""
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
    """Run it, show it, check it. Raises StartFailed, DemoFailed, ConfigurationError, demo_data.InvalidTransactions."""
    screen = screen_of(sys.stderr if options.as_json else sys.stdout)
    stop = asyncio.Event()
    with stopping(stop.set), ExitStack() as stack:
        rows = await asyncio.to_thread(_transactions, options.transactions)
        directory = stack.enter_context(_directory(options.directory))
        expected = await asyncio.to_thread(_write, directory, rows)
        _say(screen, f"bank in {directory}: {_size(expected)}")
        started = time.monotonic()
        name = stack.enter_context(host_name(HostSettings(), SqliteLeases(path=directory / "leases.db")))
        logs.configure(LogSettings(file=directory / "host.log"), name)
        async with run_postgres(directory / "postgres") as dsn:
            await _process(directory, dsn, name, expected, screen, stop)
            found = await asyncio.to_thread(_ledger, dsn)
        result = DemoResult(found, expected, time.monotonic() - started)
    _report(result, options.directory, screen)
    if options.as_json:
        sys.stdout.write(result.as_json + "\n")
    return result


async def _process(
    directory: Path, dsn: str, host: str, expected: Ledger, screen: Console, stop: asyncio.Event
) -> None:
    settings = config.load(directory / "bank.yaml", {DSN: dsn})
    processor = processor_of(settings, host=host, log=logs.logger())
    before = await count_done(processor)
    _say(screen, "starting Spark, which takes some seconds")
    async with DemoView(processor, sum(expected.events.values()), before, screen).draw():
        last = await process(
            processor,
            settings.api,
            stop,
            until_idle=True,
            log=logs.logger(),
            listening=lambda port: _say(screen, f"dashboard: http://{settings.api.host}:{port}/"),
        )
    _heed(last, screen)
    if not any(processor.stats.events.values()):
        _say(screen, _nothing_done(expected))


def _nothing_done(expected: Ledger) -> str:
    return "everything had been processed before" if expected.events else "there are no transactions to process"


def _heed(last: Backlog | None, screen: Console) -> None:
    if last is None:
        raise DemoFailed("stopped before the bank was finished; with --dir, it continues where it stopped")
    for (pipeline, partition), error in sorted(last.failed.items()):
        _say(screen, stopped(pipeline, partition, error))


@contextmanager
def _directory(wanted: Path | None) -> Iterator[Path]:
    """Nothing is made where PostgreSQL could not live."""
    if wanted is None:
        check_place(Path(tempfile.gettempdir()))
        with tempfile.TemporaryDirectory(prefix="leasehold-bank-") as made:
            Path(made).chmod(0o755)  # for root, another user runs PostgreSQL
            yield Path(made)
        return
    yield make_directory(wanted)


def _transactions(wanted: Path | None) -> list[Transaction]:
    return demo_data.generated() if wanted is None else demo_data.read(wanted)


def _write(directory: Path, rows: list[Transaction]) -> Ledger:
    """The bank's files, and what its balances have to be."""
    demo_data.write(rows, directory, files=PARTITIONS)
    settings = resources.files("leasehold.service.cli.demo").joinpath("bank.yaml").read_text()
    (directory / "bank.yaml").write_text(settings)
    return Ledger(demo_data.expected_balances(rows), demo_data.expected_events(rows))


def _ledger(dsn: str) -> Ledger:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT account, balance, events FROM balances").fetchall()
    return Ledger({row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows})


def _report(result: DemoResult, kept: Path | None, screen: Console) -> None:
    """kept: the directory that stays."""
    names = sorted(result.expected.balances.keys() | result.found.balances.keys())
    shown = result.differing or names[:ACCOUNTS_SHOWN]
    screen.print(balances_table(result.expected.balances, result.found.balances, shown))
    if result.matches and len(shown) < len(names):
        _say(screen, f"... and {counted(len(names) - len(shown), 'more account')}, which also match")
    for line in _kept(kept):
        _say(screen, line)
    verdict = "match" if result.matches else f"DIFFER in {counted(len(result.differing), 'account')}"
    _say(
        screen,
        f"balances {verdict}: {counted(len(result.expected.balances), 'account')}, {result.transactions}"
        f" {noun(result.transactions, 'transaction')},"
        f" {result.lost} lost, {result.duplicated} duplicated",
    )


def _kept(directory: Path | None) -> list[str]:
    """What is left to look at."""
    if directory is None:
        return [f"nothing is kept; `--dir DIRECTORY` keeps everything ({TEMPLATE}, and the database to look into)"]
    return [
        f"everything is kept in {directory}: {TEMPLATE}, and its database:",
        "  " + query_command(directory / "postgres", BALANCES),
    ]


def _size(ledger: Ledger) -> str:
    return f"{counted(sum(ledger.events.values()), 'transaction')} of {counted(len(ledger.events), 'account')}"


def _say(screen: Console, line: str) -> None:
    screen.print(line, markup=False, highlight=False, soft_wrap=True)
