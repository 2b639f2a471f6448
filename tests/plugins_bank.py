"""Hosts that keep balances in PostgreSQL: sinks, claims and batches for tests, and a third party's view of what was counted.

Every batch carries one event for each account. So the balances tell what was counted, the history tells in which steps.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from plugins_pg import Line, Network, Postgres

from leasehold.pipeline.connectors.postgres import Connections, PostgresOutputSink, Tables
from leasehold.pipeline.connectors.postgres.copy import FEW_ROWS
from leasehold.pipeline.connectors.postgres.writer import PostgresWriter
from leasehold.pipeline.sink import Claim, Output

ACCOUNTS = [f"account-{i}" for i in range(FEW_ROWS + 10)]
"""So many that a batch is copied, message by message."""
SETUP = "CREATE TABLE IF NOT EXISTS balances (account text PRIMARY KEY, value bigint NOT NULL)"
MERGE = """INSERT INTO balances (account, value) SELECT account, value FROM batch ORDER BY account
    ON CONFLICT (account) DO UPDATE SET value = balances.value + excluded.value"""
DECISIVE = b"leasehold_guard"


class Open:
    def check(self) -> None: ...

    async def wait_until_granted(self) -> None: ...


def claim(
    epoch: int = 1, partition: str = "0", *, generation: int = 0, continuation: str | None = None, state: str = ""
) -> Claim:
    return Claim(
        pipeline="balances",
        partition=partition,
        owner=f"host-{epoch}",
        epoch=epoch,
        generation=generation,
        continuation=continuation,
        state=state,
        compare=lambda a, b: int(a or 0) - int(b or 0),
    )


def batch(position: str | None, accounts: Sequence[str] = ACCOUNTS) -> Output:
    """The next event of every account, worth 1."""
    table = pa.table({"account": list(accounts), "value": [1] * len(accounts)})
    return Output(table=table, start=position, to=str(int(position or 0) + 1), events=len(accounts))


async def write(writer: PostgresWriter, accounts: Sequence[str] = ACCOUNTS) -> None:
    await writer.write(batch(writer.position, accounts), Open())


def output(table: pa.Table, start: str | None = None, to: str = "1") -> Output:
    return Output(table=table, start=start, to=to, events=table.num_rows)


EXECUTORS_ENV = "EXECUTORS_DSN"
"""Set it to a DSN before a sink with `executors_env=EXECUTORS_ENV` is prepared."""


async def staged(writer: PostgresWriter, tables: Sequence[pa.Table], start: str | None = None, to: str = "1") -> Output:
    """Each table as a part of the batch, by executors one after the other."""
    stager = await writer.make_stager(start, tables[0].schema)
    assert stager is not None
    in_executor = pickle.loads(pickle.dumps(stager))
    parts = [await asyncio.to_thread(in_executor.stage, table, uuid4().hex) for table in tables]
    return Output(table=tables[0].slice(0, 0), start=start, to=to, events=1, staged=tuple(parts))


ONE = pa.table({"account": ["alice"], "value": [Decimal("1.20")]})
BALANCES = "CREATE TABLE IF NOT EXISTS balances (account text PRIMARY KEY, value numeric NOT NULL CHECK (value < 1000))"


@dataclass
class Bank:
    """Balances and the hosts that keep them; `counted` is the third party's view."""

    postgres: Postgres
    stack: AsyncExitStack

    async def sink(self, dsn: str | None = None, merge: str = MERGE, **settings: Any) -> PostgresOutputSink:
        sink = made_sink(dsn or self.postgres.dsn, setup=SETUP, merge=merge, history=True, **settings)
        self.stack.push_async_callback(sink.close)
        await sink.prepare()
        return sink

    def counted(self) -> int:
        """Batches in the balances; all accounts agree, and so do history and positions."""
        values = {value for (value,) in self.postgres.fetch("SELECT value FROM balances")} or {0}
        positions = self.postgres.fetch("SELECT partition, coalesce(position, '0')::int FROM leasehold_positions")
        for partition, position in positions:
            steps = self.postgres.fetch(
                'SELECT coalesce("from", \'0\')::int, "to"::int, epoch FROM leasehold_history WHERE partition = %s'
                ' ORDER BY "to"::int',
                partition,
            )
            assert [(start, to) for start, to, _ in steps] == [(n, n + 1) for n in range(position)]
            assert [epoch for *_, epoch in steps] == sorted(epoch for *_, epoch in steps)
        assert values == {sum(position for _, position in positions)}
        return values.pop()

    def sessions(self, where: str) -> int:
        query = (
            f"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' AND datname = %s AND {where}"
        )
        return int(self.postgres.fetch(query, self.postgres.name)[0][0])


def made_sink(
    dsn: str, *, schema: str = "public", history: bool = False, letters: bool = False, **settings: Any
) -> PostgresOutputSink:
    """settings: of the sink and of its connections."""
    names = {"connections_max": "max", "timeouts": "timeouts", "identity": "identity", "credential": "credential"}
    connections = {names[name]: settings.pop(name) for name in list(settings) if name in names}
    tables = Tables(schema, history, letters)
    return PostgresOutputSink(dsn, tables=tables, connections=Connections(**connections), **settings)


@pytest.fixture
async def bank(postgres: Postgres) -> AsyncIterator[Bank]:
    async with AsyncExitStack() as stack:
        yield Bank(postgres, stack)


Make = Callable[..., PostgresOutputSink]


@pytest.fixture
async def sink_of(postgres: Postgres) -> AsyncIterator[Make]:
    """Makes sinks over the fresh database, and closes them."""
    sinks: list[PostgresOutputSink] = []

    def make(**settings: Any) -> PostgresOutputSink:
        sinks.append(made_sink(settings.pop("dsn", postgres.dsn), **settings))
        return sinks[-1]

    yield make
    await asyncio.gather(*(sink.close() for sink in sinks))


class Pause:
    """Holds up the n-th message (from 0) that a client sends from now on, until `go` is set."""

    def __init__(self, network: Network, message: int) -> None:
        self._left = message
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        self.line: Line | None = None
        network.before = self._before

    async def _before(self, line: Line, message: bytes) -> None:
        self._left -= 1
        if self._left < 0 and not self.go.is_set():
            self.line = line
            self.reached.set()
            await self.go.wait()


def at_the_end(network: Network, interfere: Callable[[Line], Awaitable[None]]) -> None:
    """Interferes once, with the message that carries guard, merge and COMMIT, before it is passed on."""

    async def before(line: Line, message: bytes) -> None:
        if DECISIVE in message:
            network.before = None
            await interfere(line)

    network.before = before


MESSAGES = range(5)
"""Of a write after the first: BEGIN, COPY, rows, end of rows, and the one that decides."""
