"""PostgreSQL in memory for the real PostgresOutputSink: its SQL, run by SQLite, over connections that lose and delay messages.

The production code's SQL decides about claims, guards and merges. What PostgreSQL does by itself is a model: it carries out a
message from BEGIN to COMMIT in one step or not at all, as row locks make of it. A message of a session that was cut may still
arrive. A restore cuts all sessions. The tables exist from the beginning.
"""

from __future__ import annotations

import asyncio
import csv
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, get_args

import psycopg
from lab.simulation.broker import Threads
from lab.simulation.invariants import Onlooker
from lab.simulation.process import current, incarnation
from lab.simulation.weather import Request, Weather, answered, host_of
from psycopg import pq
from psycopg.sql import Identifier

from leasehold.leases.lease import Lease
from leasehold.pipeline.connectors.postgres.copy import Load
from leasehold.pipeline.connectors.postgres.session import Connections, PostgresServer, PostgresSession, Timeouts
from leasehold.pipeline.connectors.postgres.shape import Shape, shape_of
from leasehold.pipeline.connectors.postgres.sink import PostgresOutputSink
from leasehold.pipeline.connectors.postgres.sql import Column, Statement
from leasehold.pipeline.connectors.postgres.writer import PostgresWriter
from leasehold.pipeline.sink import Claim, Output

Way = Literal["message", "copy", "copy into the table"]
"""How rows come: in the message that decides, or loaded before, into `batch` or at once into their table."""
WAYS: tuple[Way, ...] = get_args(Way)
DSN = "postgresql://simulated/bank"
CREATED = """
ATTACH ':memory:' AS public;
CREATE TABLE public.leasehold_positions (
    pipeline, partition, generation, epoch, owner, position, state, updated_at, PRIMARY KEY (pipeline, partition, generation));
CREATE TABLE public.output (sequence, body);
CREATE TEMPORARY TABLE batch (sequence, body);
"""
DIALECT = (
    ('"pg_temp"."leasehold_batch"', '"batch"'),
    ("BEGIN ISOLATION LEVEL READ COMMITTED", "BEGIN"),
    ("SELECT FROM", "SELECT 1 FROM"),
    ("IS NOT DISTINCT FROM", "IS"),
    ("::text", ""),
)
GUARDED = re.compile(
    r"WITH moved AS \((UPDATE .*) RETURNING 1\)\s+SELECT CASE count\(\*\) WHEN 1 THEN 1 ELSE", re.DOTALL
)
"""SQLite has no UPDATE in a WITH: it is run alone, and its rows are counted here."""
ESCAPED = re.compile(r" E('(?:[^']|'')*')")
"""A text with backslashes, which SQLite takes as they are."""
CLAIMING = re.compile(r"SELECT '[^']*', '([^']*)', \d+, (\d+), ")
TENURE = re.compile(r"partition = '([^']*)' AND generation = (\d+) AND epoch >?= (\d+)")
PARTITION = re.compile(r"partition = '([^']*)'")


class Guarded(psycopg.errors.InvalidTextRepresentation):
    """What a guard raises."""

    diag: Any = SimpleNamespace(message_primary="leasehold_guard", message_detail=None, message_hint=None)


class Database:
    """What all hosts write to."""

    def __init__(self, onlooker: Onlooker, weather: Weather, *, transaction_s: float, way: Way = "message") -> None:
        self.weather = weather
        self.onlooker = onlooker
        self._transaction_s = transaction_s
        self._restores = 0
        self.way = way
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.executescript(CREATED)
        for name, arguments in (("now", 0), ("pg_advisory_xact_lock", 1), ("hashtextextended", 2)):
            self._db.create_function(name, arguments, lambda *_: 0)
        for name, arguments in (("to_regclass", 1), ("format", 3)):
            self._db.create_function(name, arguments, lambda *_: 1)

    def sink(self) -> PostgresOutputSink:
        """One host's way here."""
        connections = Connections(timeouts=Timeouts(transaction_s=self._transaction_s))
        sink = _Sink(DSN, table="public.output", connections=connections)
        sink.way = self.way
        server = _Server(self, connections)
        sink._parts = replace(sink._parts, server=server, thread=Threads(self.weather))  # type: ignore[arg-type]
        return sink

    def run(self, message: str, rows: list[list[str]], sent_at: int) -> list[list[Any]]:
        """The rows of each statement that has some. rows: what was loaded into `batch` before. sent_at: what `sent` said then."""
        if sent_at != self._restores:
            raise psycopg.OperationalError("the database was restored meanwhile")
        for ours, theirs in DIALECT:
            message = message.replace(ours, theirs)
        message = ESCAPED.sub(lambda text: text[1].replace(r"\\", "\\"), message)
        try:
            if rows:
                self._db.execute("BEGIN")
                table = "public.output" if self.way == "copy into the table" else "batch"
                self._db.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)
            found = [self._ran(statement) for statement in message.split("\n;\n")]
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._tell(message, found)
        return [each for each in found if each is not None]

    def sent(self) -> int:
        return self._restores

    def _ran(self, statement: str) -> list[Any] | None:
        if guarded := GUARDED.match(statement):
            if self._db.execute(guarded[1]).rowcount != 1:
                raise Guarded("leasehold_guard")
            return [(1,)]
        if statement == "ROLLBACK":  # of what the guard has rolled back
            return None
        cursor = self._db.execute(statement)
        return cursor.fetchall() if cursor.description else None

    def _tell(self, message: str, found: list[list[Any] | None]) -> None:
        """The onlooker, of a claim that was granted and of output that was committed."""
        if claiming := CLAIMING.search(message):
            if found[3]:
                self.onlooker.fenced(claiming[1], (int(claiming[2]),))
        elif tenure := TENURE.search(message):
            partition, generation, epoch = tenure[1], int(tenure[2]), int(tenure[3])
            self.onlooker.fenced(partition, (epoch,))
            numbers = [int(number) for (number,) in self._db.execute("SELECT sequence FROM output ORDER BY rowid")]
            self._db.execute("DELETE FROM output")
            self._db.execute("DELETE FROM batch")
            if numbers:
                self.onlooker.arrives(partition, generation, numbers)

    # A vault (simulation.restores). Of output the onlooker keeps the books.

    def backup(self) -> object:
        return self._db.execute("SELECT * FROM leasehold_positions").fetchall()

    def restore(self, backup: Any) -> None:
        """All sessions are cut: what they sent before arrives no more."""
        self._restores += 1
        self._db.execute("DELETE FROM leasehold_positions")
        self._db.executemany("INSERT INTO leasehold_positions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", backup)

    def has_lost(self, lease: Lease) -> bool:
        """Whether it has no row of a lease that has seen one."""
        ours = (lease.pipeline, lease.partition, lease.generation)
        query = "SELECT 1 FROM leasehold_positions WHERE pipeline = ? AND partition = ? AND generation >= ?"
        return lease.sink_state == f"known:{lease.generation}" and not self._db.execute(query, ours).fetchall()


class _Sink(PostgresOutputSink):
    way: Way = "message"

    async def prepare(self) -> None:
        """The tables are there."""

    async def open(self, claim: Claim) -> PostgresWriter:
        writer = await super().open(claim)
        return writer if self.way == "message" else _CopyingWriter(writer._parts, claim, writer.position)


class _CopyingWriter(PostgresWriter):
    """Whose batches are never few rows."""

    async def _loadable(self, output: Output) -> Load:
        return replace(await super()._loadable(output), few=None)


class _Server(PostgresServer):
    def __init__(self, database: Database, connections: Connections) -> None:
        super().__init__(DSN, connections)
        self._database = database

    async def _connect(self) -> PostgresSession:
        return _Session(self._database)


class _Connection:
    def __init__(self) -> None:
        self.closed = False
        self.info = SimpleNamespace(transaction_status=pq.TransactionStatus.IDLE)


class _Session(PostgresSession):
    def __init__(self, database: Database) -> None:
        self._line = _Connection()
        super().__init__(self._line)  # type: ignore[arg-type]  # what a Session asks of one
        self._database = database
        self._rows: list[list[str]] = []
        self._answer: asyncio.Future[list[list[Any]]] | None = None

    async def execute(self, message: Statement, *, extended: bool = False) -> Any:
        text, rows, self._rows = message.as_string(None), self._rows, []
        if not self.is_sent or text.startswith("ROLLBACK"):
            self._line.info.transaction_status = pq.TransactionStatus.IDLE
            return _Cursor(await self._asked("open" if "AS known" in text else "standing", text, rows))
        by, onlooker, tenure = incarnation(), self._database.onlooker, TENURE.search(text)
        assert tenure is not None, "what is sent as a write bears its epoch"
        partition, fence = tenure[1], (int(tenure[3]),)
        onlooker.sends(by, partition, fence, text)
        try:
            answer = await self._asked("write", text, rows)
        except Guarded:
            self._line.info.transaction_status = pq.TransactionStatus.INERROR
            onlooker.settled(by, partition, fence)
            raise
        self._line.info.transaction_status = pq.TransactionStatus.IDLE
        onlooker.settled(by, partition, fence)
        return _Cursor(answer)

    @property
    def is_cut(self) -> bool:
        return self.is_lost

    async def prepare_batch(self, *_: Any) -> None:
        """It is there."""

    async def read_shape(self, table: Identifier, columns: tuple[Column, ...], key: Sequence[str]) -> Shape:
        return shape_of(None, columns)

    async def copy_into(self, table: Identifier, batch: Load) -> bool:
        if self._database.way != "copy into the table":
            return False
        await self.load(table, batch)
        return True

    async def load(self, table: Identifier, batch: Load) -> None:
        await self._asked("load", "", [])
        self._line.info.transaction_status = pq.TransactionStatus.INTRANS
        self._rows = list(csv.reader(batch.csv.decode().splitlines()))

    async def close(self) -> None:
        self._line.closed = True

    def _cut(self) -> None:
        """What was sent arrives all the same."""
        self._line.closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(psycopg.OperationalError("the connection was cut"))

    async def _asked(self, operation: str, text: str, rows: list[list[str]]) -> list[list[Any]]:
        database = self._database
        found = PARTITION.search(text)
        request = Request(host_of(current()), "sink", operation, found[1] if found else "")
        call = partial(database.run, text, rows, database.sent()) if text else list[list[Any]]
        lost = psycopg.OperationalError
        self._answer = answered(database.weather, request, call, lost, lost)
        try:
            return await self._answer
        except psycopg.OperationalError:
            self._line.closed = True
            raise


class _Cursor:
    """What `_answers` asks of one: the rows of every statement that has some."""

    def __init__(self, answers: list[list[Any]]) -> None:
        self._answers = answers

    @property
    def description(self) -> object:
        return self._answers or None

    async def fetchall(self) -> list[Any]:
        return self._answers[0]

    def nextset(self) -> bool:
        self._answers = self._answers[1:]
        return bool(self._answers)
