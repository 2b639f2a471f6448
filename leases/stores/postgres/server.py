"""Connections to one server: a few, each thrown away when its state is in doubt; one is always left for heartbeats."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from psycopg import AsyncClientCursor, AsyncConnection, Error, pq
from psycopg.sql import Composed

from leasehold.common.azure import Identity
from leasehold.common.entra_token import NoToken, TokenCredential, TokenSource
from leasehold.common.postgres import (
    VERSION_MIN,
    TokenRefused,
    address_of,
    connect,
    cut,
    is_cut,
    keepalives_at_server,
    parameters_of,
    run_within,
    servers_in,
)
from leasehold.leases.errors import StoreAmbiguous, StoreError, StoreMissing, StoreUnavailable
from leasehold.leases.stores.postgres import error_mapping
from leasehold.leases.stores.postgres.error_mapping import DSN, NO_TABLE, READ_ONLY
from leasehold.leases.stores.postgres.table import VERSION, LeaseTable, migration, settings, state, version_in

IDLE_S = 60.0
"""A connection that no call has needed for this long is closed."""
ATTEMPTS = 2
"""How often a read is sent if its connection turns out to be gone."""
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresAddress:
    """Where the leases are. creates: whether a missing table may be made. identity: as for `TokenSource`."""

    dsn: str
    table: LeaseTable
    identity: Identity | None = None
    connections_max: int = 4
    creates: bool = True
    listen_dsn: str | None = None
    """For notifications, if `dsn` leads through a pooler that shares connections between transactions."""


class Server:
    """Runs statements, and translates errors. `address` and `listening_address` name the servers, without secrets."""

    def __init__(
        self, place: PostgresAddress, *, call_timeout_s: float, credential: TokenCredential | None = None
    ) -> None:
        """call_timeout_s: bounds each call here and at the server. credential: as for `TokenSource`. Raises ValueError."""
        assert place.connections_max > 1, "one of them is for heartbeats"
        self._place = place
        self._timeout_s = call_timeout_s
        self._tokens = None if place.identity is None else TokenSource(place.identity, credential=credential)
        self._parameters = self._read(place.dsn)
        self._listening = self._parameters if place.listen_dsn is None else self._read(place.listen_dsn)
        self._settings = settings(statement_s=call_timeout_s, lock_s=call_timeout_s / 2)
        self._slots = asyncio.Semaphore(place.connections_max)
        self._turns = asyncio.Semaphore(place.connections_max - 1)
        self._idle: list[tuple[float, AsyncConnection]] = []
        self._used: set[AsyncConnection] = set()
        self._openings: set[asyncio.Task[AsyncConnection]] = set()
        self._left: list[asyncio.Task[AsyncConnection]] = []
        """Openings whose callers have left, for the next callers."""
        self._failure: BaseException | None = None
        """Why the last one of them failed, until an opening succeeds."""
        self._is_closed = False
        self.address = address_of(self._parameters)
        self.listening_address = address_of(self._listening)

    async def fetch(
        self,
        doing: str,
        statement: Composed,
        parameters: Sequence[object],
        *,
        is_write: bool = False,
        is_urgent: bool = False,
    ) -> list[Row]:
        """The rows. A write is sent once. A read is sent again if its connection, which had been idle, is gone.

        One time limit covers the wait for other calls, a new connection, and the answer. is_urgent: does not wait for the turns
        of other calls. Raises StoreUnavailable, StoreAmbiguous, StoreMissing (there is no table, and it must not be made).
        """
        now = asyncio.get_running_loop().time
        deadline = now() + self._timeout_s
        for attempts_left in reversed(range(ATTEMPTS)):
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout_at(deadline):
                        connection, is_fresh = await stack.enter_async_context(self._connection(is_urgent))
                except TimeoutError:
                    raise StoreUnavailable(
                        f"PostgreSQL {self.address}: {doing} had no connection within {self._timeout_s:g} s, and was not sent:"
                        f" {self._reason()}"
                    ) from None
                try:
                    return await run_within(
                        max(0.0, deadline - now()),
                        self._rows(connection, statement, parameters),
                        partial(cut, connection),
                    )
                except TimeoutError:
                    words = f"PostgreSQL {self.address}: {doing} got no answer within {self._timeout_s:g} s"
                    raise StoreAmbiguous(words) if is_write else StoreUnavailable(words) from None
                except Error as error:
                    is_lost = connection.closed
                    if error.sqlstate in (NO_TABLE, READ_ONLY):
                        await connection.close()  # the next connection looks at the table and the server again
                    if not attempts_left or is_write or is_fresh or not is_lost:
                        raise error_mapping.failed(
                            error, self.address, doing, is_lost=is_lost, is_write=is_write
                        ) from error
        raise AssertionError("the last attempt returns or raises")

    async def open_listener(self) -> AsyncConnection:
        """A connection for notifications alone, which is not one of `connections_max`. Raises StoreUnavailable.

        The driver limits the time for each server, and the token has a limit of its own. One limit for everything could end
        before the driver tries the server that answers.
        """
        setting = DSN if self._place.listen_dsn is None else "listen_dsn"
        return await self._open(self._listening, self.listening_address, setting)

    async def close_idle(self) -> None:
        """Close the idle connections, because they lead to a replica, or to a server that has restarted."""
        while self._idle:
            await self._idle.pop()[1].close()

    async def close(self) -> None:
        self._is_closed = True
        if openings := set(self._openings):
            for opening in openings:
                opening.cancel()
            await asyncio.wait(openings)
        await self.close_idle()
        for connection in [*self._used]:
            await connection.close()
        if self._tokens is not None:
            await self._tokens.close()

    @asynccontextmanager
    async def _connection(self, is_urgent: bool) -> AsyncIterator[tuple[AsyncConnection, bool]]:
        """A connection, and whether it is new."""
        async with AsyncExitStack() as stack:
            if not is_urgent:
                await stack.enter_async_context(self._turns)
            await stack.enter_async_context(self._slots)
            idle = await self._take_idle()
            connection = idle or await self._connect()
            self._used.add(connection)
            try:
                yield connection, idle is None
            finally:
                self._used.discard(connection)
                await self._put_back(connection)

    async def _take_idle(self) -> AsyncConnection | None:
        """The idle connection that was used last and that the server has not closed since; None if there is none."""
        while self._idle:
            _, connection = self._idle.pop()
            if not is_cut(connection):
                return connection
            await connection.close()
        return None

    async def _put_back(self, connection: AsyncConnection) -> None:
        now = asyncio.get_running_loop().time()
        if connection.info.transaction_status == pq.TransactionStatus.IDLE and not self._is_closed:
            self._idle.append((now, connection))
        else:
            if connection.closed:
                await self.close_idle()  # a restart of the server has cut the others too
            await connection.close()
        while self._idle and self._idle[0][0] < now - IDLE_S:
            await self._idle.pop(0)[1].close()

    async def _connect(self) -> AsyncConnection:
        """A new connection. If the caller leaves before it is open, the opening continues, and the next caller waits for it.

        Several servers, or a token, can take longer than any call may. If every call started over, none would get a connection.
        Slots also bound these openings: a new one begins only if no caller has left one and no connection is idle.

        Raises StoreUnavailable, StoreMissing.
        """
        if self._is_closed:
            raise self._closed()
        opening = self._left.pop(0) if self._left else self._begin_opening()
        try:
            await asyncio.wait({opening})
        except asyncio.CancelledError:
            self._left.append(opening)
            opening.add_done_callback(self._keep)
            raise
        if opening.cancelled():
            raise self._closed()
        return opening.result()

    def _begin_opening(self) -> asyncio.Task[AsyncConnection]:
        opening = asyncio.create_task(self._open_for_calls(), name=f"connecting to PostgreSQL {self.address}")
        self._openings.add(opening)
        opening.add_done_callback(self._openings.discard)
        return opening

    def _keep(self, opening: asyncio.Task[AsyncConnection]) -> None:
        """Keep the outcome of an opening that no call waits for."""
        if opening not in self._left:
            return
        self._left.remove(opening)
        if opening.cancelled():
            return
        if failure := opening.exception():
            self._failure = failure
        else:
            self._idle.append((asyncio.get_running_loop().time(), opening.result()))

    async def _open_for_calls(self) -> AsyncConnection:
        """A connection whose server and table are as required. Raises StoreUnavailable, StoreMissing."""
        connection = await self._open(self._parameters, self.address, DSN)
        try:
            await run_within(self._timeout_s, self._prepare(connection), partial(cut, connection))
        except BaseException as error:
            await connection.close()
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(
                    f"PostgreSQL {self.address} did not answer within {self._timeout_s:g} s"
                ) from None
            if isinstance(error, Error):
                raise error_mapping.failed(error, self.address, "connecting", is_lost=False, is_write=False) from error
            raise
        self._failure = None
        return connection

    async def _prepare(self, connection: AsyncConnection) -> None:
        """Set keepalives, and check the server and the table. Raises StoreError."""
        if connection.info.server_version < VERSION_MIN * 10_000:
            raise StoreUnavailable(f"PostgreSQL {self.address} is too old: it has to be {VERSION_MIN} or later")
        if (encoding := connection.info.parameter_status("server_encoding")) not in (None, "UTF8"):
            raise StoreUnavailable(
                f"PostgreSQL {self.address} has a database with the encoding {encoding}, which cannot hold all documents: name"
                " one that was created with ENCODING 'UTF8'"
            )
        await connection.execute(keepalives_at_server(self._timeout_s))
        is_replica, is_there, comment = (await self._rows(connection, state(self._place.table), ()))[0]
        if is_replica:
            raise error_mapping.replica(self.address)
        if is_there:
            self._check_version(comment)
        elif self._place.creates:
            await self._migrate(connection)
        else:
            raise StoreMissing(
                f"no leases yet in the table '{self._place.table.words}' of PostgreSQL {self.address}: no host has run this"
                " configuration"
            )

    def _check_version(self, comment: str | None) -> None:
        """Raises StoreUnavailable."""
        table, version = self._place.table, version_in(comment)
        if version is None:
            raise StoreUnavailable(
                f"PostgreSQL {self.address}: the table '{table.words}' is not one of leases, because it lacks the comment: name"
                " another `table`, or restore the comment (docs/leases-postgres.md)"
            )
        if version > VERSION:
            raise StoreUnavailable(
                f"PostgreSQL {self.address}: the table '{table.words}' was changed by a newer Leasehold (version {version} of the"
                f" table; this one knows {VERSION}): upgrade this host"
            )

    async def _migrate(self, connection: AsyncConnection) -> None:
        """Make the table, under a lock that all hosts share. Raises StoreUnavailable."""
        try:
            await connection.execute(self._settings + migration(self._place.table))
        except Error as error:
            raise error_mapping.not_migrated(error, self.address, self._place.table.words) from error

    def _reason(self) -> str:
        """Why a call had no connection in time, and the next step."""
        if self._tokens is not None and self._tokens.is_renewing:
            return "the access token is still being fetched: check `identity`, and the service that issues its tokens"
        failure = "" if self._failure is None else f" (the last attempt to connect failed: {self._failure})"
        return f"look at the servers in `dsn`, or raise `connections_max`{failure}"

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"PostgreSQL {self.address}: the lease store is closed: open another one")

    async def _open(self, parameters: dict[str, Any], address: str, setting: str) -> AsyncConnection:
        try:
            return await connect(parameters, self._tokens)
        except NoToken as error:
            raise StoreUnavailable(
                f"PostgreSQL {address} cannot be reached: there is no access token ({error}): log in, or check `identity`"
            ) from error
        except TokenRefused as error:
            raise error_mapping.token_refused(error, address, setting) from None
        except Error as error:
            raise error_mapping.not_connected(error, address, setting) from None

    def _read(self, dsn: str) -> dict[str, Any]:
        """The parameters of a connection. If there are several servers, the primary is chosen, unless the DSN wants another."""
        given = parameters_of(
            dsn,
            "leasehold leases",
            connect_s=self._timeout_s / servers_in(dsn),
            idle_s=self._timeout_s,
            has_token=self._tokens is not None,
        )
        chosen = {} if os.environ.get("PGTARGETSESSIONATTRS") else {"target_session_attrs": "read-write"}
        return {**chosen, **given}

    async def _rows(self, connection: AsyncConnection, statement: Composed, parameters: Sequence[object]) -> list[Row]:
        """The rows of a statement that is sent in one message with the transaction's settings.

        The driver fills in the parameters, because the server takes none in a message of several statements.
        """
        cursor = AsyncClientCursor(connection)
        await cursor.execute(self._settings + statement, parameters or None)
        while cursor.nextset():
            pass
        return await cursor.fetchall()


__all__ = ["PostgresAddress", "Row", "Server", "StoreError"]
