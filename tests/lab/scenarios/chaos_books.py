"""What was written to the bank's files, what came of it, and the difference.

A transaction's amount is its number in cents. So an event tells which transaction it is of, in whatever log it is found.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import psycopg
from lab.scenarios.grounds import Embedded, Ground

from leasehold.service.cli.demo.transactions import COLUMNS, Transaction, expected_balances, expected_events

AMOUNTS = {"raw-event": "amount", "transformed-event": "value"}
"""Log -> the field of its events that has the amount."""
ACCOUNTS = 10
SHOWN = 10

Written: TypeAlias = Mapping[str, Sequence[Transaction]]
"""File -> its transactions, in order."""


class Writer:
    """Goes on appending transactions to the files, some of them in two pieces, as a reader may meet them."""

    def __init__(self, directory: Path, seed: int, files: Sequence[str] = Embedded.files) -> None:
        self.written: dict[str, list[Transaction]] = {name: [] for name in files}
        self._directory = directory
        self._rng = random.Random(seed)
        for name in self.written:
            (directory / name).write_text(",".join(COLUMNS) + "\n")

    @property
    def count(self) -> int:
        return sum(map(len, self.written.values()))

    async def write(self, every_s: float, lines: int) -> None:
        """Until it is cancelled, which leaves whole lines behind."""
        while True:
            for _ in range(lines):
                await self._append()
            await asyncio.sleep(every_s)

    async def _append(self) -> None:
        name = self._rng.choice(list(self.written))
        row = self._next()
        text = ",".join(getattr(row, column) for column in COLUMNS) + "\n"
        cut = self._rng.randrange(len(text)) if self._rng.random() < 0.1 else len(text)
        with (self._directory / name).open("a") as file:
            try:
                file.write(text[:cut])
                file.flush()
                await asyncio.sleep(0)
            finally:
                file.write(text[cut:])
                self.written[name].append(row)

    def _next(self) -> Transaction:
        number = self.count + 1
        return Transaction(
            transaction_id=str(number),
            account=f"account {self._rng.randrange(ACCOUNTS)}",
            kind=self._rng.choice(("deposit", "withdrawal")),
            amount=f"{number // 100}.{number % 100:02}",
            occurred_at="2026-01-05T08:00:00Z",
        )


@dataclass(frozen=True, slots=True)
class Found:
    """logs: log -> file -> numbers of transactions, in order. rows: account -> balance and events.

    counted: file -> how many of the last log's events PostgreSQL has behind it. commits: Unix time and events of each.
    """

    logs: Mapping[str, Mapping[str, list[int]]]
    rows: Mapping[str, tuple[Decimal, int]]
    counted: Mapping[str, int]
    commits: Sequence[tuple[float, int]]

    @property
    def delivered(self) -> int:
        return sum(events for _, events in self.rows.values())

    @property
    def told(self) -> str:
        logs = ", ".join(f"{name} {sum(map(len, parts.values()))}" for name, parts in self.logs.items())
        return f"{logs}, balances {self.delivered}"

    def is_whole(self, written: Written) -> bool:
        """Everything has arrived everywhere; some of it perhaps too often."""
        last = self.logs["transformed-event"]
        return all(
            {number_of(row.amount) for row in rows} <= set(parts.get(name, ()))
            for parts in self.logs.values()
            for name, rows in written.items()
        ) and all(self.counted.get(name, 0) >= len(numbers) for name, numbers in last.items())

    def delivered_within(self, spans: Sequence[tuple[float, float]]) -> int:
        """Events that PostgreSQL committed in any of these spans of Unix time."""
        return sum(events for at, events in self.commits if any(since <= at <= until for since, until in spans))


def found(ground: Ground, dsn: str) -> Found:
    """Blocks, on a thread that has no event loop."""
    logs = {log: _numbers(ground, log, name) for log, name in AMOUNTS.items()}
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT account, balance, events FROM balances").fetchall()
        positions = connection.execute(
            "SELECT partition, position FROM leasehold_positions WHERE pipeline = 'balances'"
        ).fetchall()
        commits = connection.execute(
            "SELECT extract(epoch FROM committed_at), events FROM leasehold_history"
        ).fetchall()
    return Found(
        logs,
        {account: (balance, events) for account, balance, events in rows},
        ground.counted(positions),
        [(float(at), events) for at, events in commits],
    )


def delivered(dsn: str) -> int:
    """Raises psycopg.Error."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT coalesce(sum(events), 0) FROM balances").fetchone()
    assert row is not None
    return int(row[0])


def positions(dsn: str) -> dict[str, str]:
    """Partition of the last log -> how far PostgreSQL has its events. Raises psycopg.Error."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT partition, position FROM leasehold_positions WHERE pipeline = 'balances'")
        return {partition: str(position) for partition, position in rows}


def _numbers(ground: Ground, log: str, amount: str) -> dict[str, list[int]]:
    return {file: [number_of(body[amount]) for body in bodies] for file, bodies in ground.events(log).items()}


def number_of(amount: object) -> int:
    return abs(int(Decimal(str(amount)) * 100))


@dataclass(frozen=True, slots=True)
class Differs:
    """where: one partition of a log, or one balance. what: a transaction's number, where it can be told."""

    where: str
    what: str


@dataclass(slots=True)
class Difference:
    """Each event that is lost or duplicated, in each place, and each place that is wrong in another way."""

    lost: list[Differs] = field(default_factory=list)
    duplicated: list[Differs] = field(default_factory=list)
    wrong: list[Differs] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lost or self.duplicated or self.wrong)

    @property
    def told(self) -> str:
        wrong = f", {len(self.wrong)} wrong" if self.wrong else ""
        return f"{len(self.lost)} lost, {len(self.duplicated)} duplicated{wrong}"

    def lines(self) -> Iterator[str]:
        """One for each place."""
        for name, found in (("lost", self.lost), ("duplicated", self.duplicated), ("wrong", self.wrong)):
            for where, group in groupby(found, lambda each: each.where):
                what = [each.what for each in group]
                more = f", and {len(what) - SHOWN} more" if len(what) > SHOWN else ""
                yield f"{name} in {where}: {', '.join(what[:SHOWN])}{more}"


def difference(written: Written, found: Found) -> Difference:
    """By a computation that shares nothing with the pipelines."""
    result = Difference()
    for log, parts in found.logs.items():
        for name in sorted(written.keys() | parts.keys()):
            expected = [number_of(row.amount) for row in written.get(name, ())]
            compare_logs(f"{log}, {name}", expected, parts.get(name, ()), result)
    _compare_balances([row for rows in written.values() for row in rows], found.rows, result)
    return result


def compare_logs(where: str, expected: Sequence[int], numbers: Sequence[int], result: Difference) -> None:
    """Adds what is lost, duplicated or out of order."""
    result.lost += [Differs(where, str(n)) for n in (Counter(expected) - Counter(numbers)).elements()]
    result.duplicated += [Differs(where, str(n)) for n in (Counter(numbers) - Counter(expected)).elements()]
    known, there, first = set(expected), set(numbers), dict.fromkeys(numbers)
    if [n for n in expected if n in there] != [n for n in first if n in known]:
        result.wrong.append(Differs(where, "out of order"))


def _compare_balances(
    rows: Sequence[Transaction], balances: Mapping[str, tuple[Decimal, int]], result: Difference
) -> None:
    expected, events = expected_balances(rows), expected_events(rows)
    for account in sorted(expected.keys() | balances.keys()):
        balance, count = balances.get(account, (Decimal(0), 0))
        more, off = count - events.get(account, 0), balance - expected.get(account, Decimal(0))
        where = f"balances, {account} ({more:+} events, {off:+})"
        result.lost += [Differs(where, "an event")] * max(-more, 0)
        result.duplicated += [Differs(where, "an event")] * max(more, 0)
        if off and not more:
            result.wrong.append(Differs(where, "the balance"))
