"""Sessions with one server: a few, shared by all writers of a sink, and each closed if its state is in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from psycopg import AsyncConnection, AsyncCursor, Error, pq
from psycopg.sql import Identifier

from leasehold.common import postgres
from leasehold.common.azure import Identity
from leasehold.common.entra_token import NoToken, TokenCredential, TokenSource
from leasehold.common.postgres import (
    VERSION_MIN,
    TokenRefused,
    address_of,
    connect,
    cut,
    is_cut,
    limits_at_server,
    run_within,
    words_of,
)
from leasehold.pipeline.connectors.postgres import refusal
from leasehold.pipeline.connectors.postgres.copy import Load
from leasehold.pipeline.connectors.postgres.shape import Shape, locked, shape_of, shape_query
from leasehold.pipeline.connectors.postgres.sql import (
    BEGIN,
    ROLLBACK,
    Column,
    Statement,
    loaded,
    one_message,
    pinned,
    staged,
    unstaged,
)
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import Ambiguous, SinkRejected, SinkUnavailable

T = TypeVar("T")

ATTEMPTS = 4
"""How often a conversation is tried in all if it collides with another, or uses a connection that a restart has cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """In seconds. They limit how long the server keeps what a lost owner has left behind. Settings shorten them all together if
    `Timing.patience_s` is below 60."""

    connect_s: float = 10
    lock_s: float = 10
    """Waiting for one lock."""
    statement_s: float = 30
    """One statement."""
    idle_s: float = 10
    """Silence of a client inside a transaction, and of a peer that acknowledges nothing."""
    transaction_s: float = 45
    """One conversation with the server, from its first byte to its last answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """How to connect, apart from the DSN, and how often at most.

    - `identity`: for Azure Database for PostgreSQL, "default" or a managed identity's client id. Every new connection
      gets an access token of Microsoft Entra ID as its password, so the DSN must not have one.
    - `credential`: of azure-identity's asynchronous kind, used for tokens instead; it is not closed.
    """

    max: int = 4
    timeouts: Timeouts = field(default_factory=Timeouts)
    application_name: str = "leasehold"
    identity: Identity | None = None
    credential: TokenCredential | None = None


class PostgresSession:
    """One connection and what it holds. `is_sent`: everything that a commit needs has been handed to the network.

    kept: a statement that, after a user's merge, fails if its targets are no longer as they were when the batch was prepared.
    """

    kept: Statement | None = None

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._staged: tuple[Column, ...] | None = None
        self._shaped: tuple[Column, ...] | None = None
        self._shape: Shape | None = None
        self.is_fresh = True
        self.is_sent = False

    @property
    def is_lost(self) -> bool:
        return self._connection.closed

    @property
    def is_cut(self) -> bool:
        """Whether the server has ended it: nothing else arrives on an idle connection."""
        return is_cut(self._connection)

    @property
    def is_idle(self) -> bool:
        return self._connection.info.transaction_status == pq.TransactionStatus.IDLE

    async def execute(self, message: Statement, *, extended: bool = False) -> AsyncCursor:
        """Send one message; its answers are the cursor's result sets. `extended`: by the protocol for a single statement."""
        return await self._connection.execute(message, binary=extended)

    async def ask(self, message: Statement) -> list[list[Any]]:
        """The rows of every statement of a message that has rows."""
        cursor, answers = await self.execute(message), []
        while True:
            if cursor.description is not None:
                answers.append(await cursor.fetchall())
            if not cursor.nextset():
                return answers

    async def prepare_batch(
        self,
        table: Identifier,
        columns: tuple[Column, ...],
        check: Callable[[PostgresSession], Awaitable[Statement]] | None = None,
    ) -> None:
        """Make the temporary table of batches, unless it has these columns. check: called once it is made; raises if it cannot be
        used, and returns `kept`."""
        if columns != self._staged:
            self._staged = None
            await self.execute(staged(table, columns))
            if check is not None:
                self.kept = await check(self)
            self._staged = columns

    async def remove_batch(self, table: Identifier) -> None:
        self._staged = None
        await self.execute(unstaged(table))

    async def read_shape(self, table: Identifier, columns: tuple[Column, ...], key: Sequence[str]) -> Shape:
        """The target as this session last found it. Statements made for it check that it has not changed (`unchanged`)."""
        if self._shape is None or columns != self._shaped:
            return await self._ask_shape(shape_query(table, columns, key), columns)
        return self._shape

    async def _ask_shape(self, message: Statement, columns: tuple[Column, ...]) -> Shape:
        cursor = await self.execute(message)
        while cursor.nextset():
            """Only the last statement has an answer."""
        row = await cursor.fetchone()
        self._shape, self._shaped = shape_of(None if row is None else row[0], columns), columns
        return self._shape

    async def copy_into(self, table: Identifier, batch: Load) -> bool:
        """Begin a transaction and copy the rows directly into the target; False if it does not take them as they are.

        The check and the copy are in one transaction, which locks the target: a rule or another type counts for all rows or none.
        """
        shape = await self.read_shape(table, batch.columns, ())
        if not shape.copies:
            return False
        message = one_message(BEGIN, *locked(table, shape), shape_query(table, batch.columns))
        shape = await self._ask_shape(message, batch.columns)
        if not shape.copies:
            await self.execute(ROLLBACK)
            return False
        await self._copy(table, batch)
        return True

    async def load(self, table: Identifier, batch: Load) -> None:
        """Begin a transaction and copy the rows into the temporary table. No lock is held that another writer could wait for."""
        await self.execute(BEGIN)
        await self._copy(table, batch)

    async def _copy(self, table: Identifier, batch: Load) -> None:
        async with self._connection.cursor().copy(loaded(batch.columns, table)) as copy:
            await copy.write(batch.csv)

    async def run_within(self, seconds: float, conversation: Awaitable[T]) -> T:
        """If it is cancelled or times out, the connection is cut, and the server rolls back what was not committed."""
        return await run_within(seconds, conversation, self._cut)

    def _cut(self) -> None:
        cut(self._connection)

    async def close(self) -> None:
        await self._connection.close()


class PostgresServer:
    """Holds conversations with a server, and translates their errors. `address` names it, without secrets."""

    def __init__(self, dsn: str, connections: Connections) -> None:
        """Raises ValueError."""
        identity, self.timeouts = connections.identity, connections.timeouts
        self._tokens = None if identity is None else TokenSource(identity, credential=connections.credential)
        self._parameters = parameters_of(
            dsn, self.timeouts, connections.application_name, has_token=identity is not None
        )
        self._idle: list[PostgresSession] = []
        self._slots = asyncio.Semaphore(connections.max)
        self._path: str | None = None
        """The search_path of the first connection, for all that follow: the same names always mean the same tables."""
        self.address = address_of(self._parameters)

    async def talk(self, doing: str, conversation: Callable[[PostgresSession], Awaitable[T]]) -> T:
        """Hold a conversation. It is repeated from its beginning if it certainly left nothing behind and may succeed.

        Raises SinkUnavailable, SinkRejected, Ambiguous, and what `conversation` raises.
        """
        for attempts_left in reversed(range(ATTEMPTS)):
            async with self._session() as session:
                try:
                    return await session.run_within(self.timeouts.transaction_s, conversation(session))
                except TimeoutError:
                    words = f"PostgreSQL {self.address}: {doing} got no answer in {self.timeouts.transaction_s:g} s"
                    raise Ambiguous(words) if session.is_sent else SinkUnavailable(words) from None
                except Error as error:
                    if refusal.is_changed(error):
                        await self._close_idle()  # what they know about the target is outdated, too
                    if not attempts_left or not _may_repeat(session, error):
                        lost, sent = session.is_lost, session.is_sent
                        raise refusal.refused(error, self.address, doing, is_lost=lost, is_sent=sent) from error
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        await self._close_idle()
        if self._tokens is not None:
            await self._tokens.close()

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[PostgresSession]:
        async with self._slots:
            session = await self._idle_session() or await self._connect()
            try:
                yield session
            finally:
                if session.is_idle:
                    session.is_fresh = session.is_sent = False
                    self._idle.append(session)
                else:
                    if session.is_lost:
                        await self._close_idle()  # a restart of the server has cut the others too
                    await session.close()

    async def _idle_session(self) -> PostgresSession | None:
        """A connection that was used before and that the server has not ended since."""
        while self._idle:
            session = self._idle.pop()
            if not session.is_cut:
                return session
            await session.close()
        return None

    async def _connect(self) -> PostgresSession:
        connection = await self._open_connection()
        try:
            if connection.info.server_version < VERSION_MIN * 10_000:
                raise SinkRejected(f"PostgreSQL {self.address} is too old: it has to be {VERSION_MIN} or later")
            async with asyncio.timeout(self.timeouts.connect_s):
                cursor = await connection.execute(one_message(settings_of(self.timeouts), pinned(self._path)))
                while cursor.nextset():
                    """The last answer is the path."""
                [self._path] = await cursor.fetchone() or [None]
        except BaseException as error:
            await connection.close()
            if isinstance(error, TimeoutError):
                raise SinkUnavailable(
                    f"PostgreSQL {self.address} cannot be reached: no answer within {self.timeouts.connect_s:g} s"
                ) from error
            if isinstance(error, Error):
                raise SinkUnavailable(f"PostgreSQL {self.address} cannot be reached: {words_of(error)}") from error
            raise
        return PostgresSession(connection)

    async def _open_connection(self) -> AsyncConnection:
        """A new connection, which still has the server's settings."""
        try:
            return await connect(self._parameters, self._tokens)
        except NoToken as error:
            raise SinkUnavailable(
                f"PostgreSQL {self.address} cannot be reached: there is no access token ({error}): log in, or check `identity`"
            ) from error
        except TokenRefused as error:
            raise refusal.token_refused(error, self.address) from None
        except Error as error:
            raise refusal.not_connected(error, self.address) from None


def _may_repeat(session: PostgresSession, error: Error) -> bool:
    """Whether nothing was changed, and a repetition may succeed. Collisions, and statements for another state of the target, are
    rolled back. A connection that was idle before and is found dead has carried nothing."""
    if session.is_lost:
        return not session.is_sent and not session.is_fresh
    return refusal.is_collision(error) or refusal.is_changed(error)


def parameters_of(dsn: str, timeouts: Timeouts, application_name: str, *, has_token: bool = False) -> dict[str, Any]:
    """The parameters of the connection: ours, unless the DSN has others. Raises ValueError."""
    return postgres.parameters_of(
        dsn, application_name, connect_s=timeouts.connect_s, idle_s=timeouts.idle_s, has_token=has_token
    )


def endpoint_of(address: str, table: str | None) -> Endpoint:
    """address: of a server. If it is a list of hosts or a service, no server is named."""
    place, _, database = address.rpartition("/")
    server, _, port = place.rpartition(":")
    is_one = bool(server) and "," not in place
    return Endpoint(
        kind="database",
        system="postgresql",
        name=table or database,
        server=server if is_one else None,
        port=int(port) if is_one and port.isdecimal() else None,
        namespace=database if place else None,
        collection=table,
    )


def settings_of(timeouts: Timeouts) -> Statement:
    """Limits at the server, for a client that has died, hangs or is cut off."""
    return limits_at_server(
        lock_s=timeouts.lock_s,
        statement_s=timeouts.statement_s,
        idle_s=timeouts.idle_s,
        transaction_s=timeouts.transaction_s,
    )
