"""A lease store in one table of PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from psycopg.sql import Composed

from leasehold.common.entra_token import TokenCredential
from leasehold.leases.errors import StoreConflict, StoreMissing
from leasehold.leases.pause_orders import GROUP_PREFIX
from leasehold.leases.store import ChangedDocuments, Hint, LeaseStore, Stored
from leasehold.leases.stores.postgres import error_mapping, table
from leasehold.leases.stores.postgres.notifications import encode, listen, notified
from leasehold.leases.stores.postgres.server import PostgresAddress, Row, Server

OWN_SHARE = 0.9
"""The share of a call's time after which the store gives up: it knows whether a write was sent, but `TimedStore` does not."""


class PostgresStore(LeaseStore):
    """Every write is one statement in a transaction of its own, sent once. Reads are those of the primary, never stale.

    The table is made by the first call that does not find it, under a lock, so hosts may start together.

    Calls about the group (`_...`: heartbeats and looks) do not wait for calls about leases, which may be thousands.

    Not guaranteed:

    - A failover to a replica that was not up to date loses writes that were answered. Epochs move back, and sinks
      refuse them until the owners have raised theirs. Use synchronous replication (docs/leases-postgres.md).
    - With `fsync = off`, a power failure loses such writes, too.
    """

    def __init__(
        self, place: PostgresAddress, *, call_timeout_s: float = 5.0, credential: TokenCredential | None = None
    ) -> None:
        """call_timeout_s: after which callers give up. credential: as for `TokenSource`. Raises ValueError."""
        self._server = Server(place, call_timeout_s=call_timeout_s * OWN_SHARE, credential=credential)
        self._place = place
        self._listed = table.listed(place.table)
        self._found = table.found(place.table)
        self._counted = table.counted(place.table)
        self._now = table.now(place.table)
        self._changed = table.changed(place.table)
        self._created = table.created(place.table)
        self._replaced = table.replaced(place.table)
        self._deleted = table.deleted(place.table)
        self._notified = notified(place.table)

    @property
    def address(self) -> str:
        """For people: no secret."""
        return self._server.address

    async def list(self, prefix: str) -> list[Stored]:
        rows = await self._server.fetch(
            f"listing '{prefix}'", self._listed, (prefix, prefix + table.LAST), is_urgent=_is_of_group(prefix)
        )
        await self._refuse_replica(rows)
        return [Stored(name, body, version) for _, name, body, version in rows if name is not None]

    async def read_changes(self, prefix: str, since: str | None = None) -> ChangedDocuments | None:
        """By the transactions that a token's snapshot did not show, so late commits are not missed.

        None if the token is from before a restart or a failover.
        """
        if since is None:
            rows = await self._server.fetch("reading the changes", self._now, ())
            await self._refuse_replica(rows)
            return ChangedDocuments((), rows[0][1])
        if (snapshot := table.snapshot_in(since)) is None:
            return None
        parameters = snapshot, snapshot, prefix, prefix + table.LAST
        rows = await self._server.fetch(f"reading the changes of '{prefix}'", self._changed, parameters)
        await self._refuse_replica(rows)
        token: str = rows[0][1]
        if table.place_in(token) != table.place_in(since):
            return None
        return ChangedDocuments(
            [Stored(name, body, version) for _, _, name, body, version in rows if name is not None], token
        )

    async def count(self, prefix: str) -> int | None:
        rows = await self._server.fetch(f"counting '{prefix}'", self._counted, (prefix, prefix + table.LAST))
        await self._refuse_replica(rows)
        return int(rows[0][1])

    async def read(self, id: str) -> Stored:
        rows = await self._server.fetch(f"reading '{id}'", self._found, (id,), is_urgent=_is_of_group(id))
        await self._refuse_replica(rows)
        _, found, body, version = rows[0]
        if found is None:
            raise _missing(id)
        return Stored(id, body, version)

    async def create(self, id: str, body: str) -> str:
        rows = await self._write(f"creating '{id}'", id, self._created, (id, body))
        if not rows:
            raise StoreConflict(f"document '{id}' exists already: read it")
        return str(rows[0][0])

    async def replace(self, id: str, body: str, etag: str) -> str:
        rows = await self._write(f"replacing '{id}'", id, self._replaced, (body, id, etag, id))
        return _version(rows, id)

    async def delete(self, id: str, etag: str) -> None:
        _version(await self._write(f"deleting '{id}'", id, self._deleted, (id, etag, id)), id)

    async def notify(self, hints: Sequence[Hint]) -> None:
        await self._notify([encode(hint) for hint in hints])

    async def watch(self) -> AsyncGenerator[Hint, None]:
        """By LISTEN, on a connection of its own, after a test that notifications arrive on it."""
        connection = await self._server.open_listener()
        try:
            async with aclosing(
                listen(
                    connection,
                    self._place.table,
                    self._server.listening_address,
                    lambda payload: self._notify([payload]),
                )
            ) as hints:
                async for hint in hints:
                    yield hint
        finally:
            await connection.close()

    async def close(self) -> None:
        await self._server.close()

    async def _notify(self, payloads: Sequence[str]) -> None:
        await self._server.fetch("notifying hosts", self._notified, ([*payloads],), is_urgent=True)

    async def _write(self, doing: str, id: str, statement: Composed, parameters: tuple[str, ...]) -> Sequence[Row]:
        return await self._server.fetch(doing, statement, parameters, is_write=True, is_urgent=_is_of_group(id))

    async def _refuse_replica(self, rows: Sequence[Row]) -> None:
        """A pooler may lead to another server at any time. Raises StoreUnavailable."""
        if rows[0][0]:
            await self._server.close_idle()
            raise error_mapping.replica(self._server.address)


def _is_of_group(id: str) -> bool:
    return id.startswith(GROUP_PREFIX)


def _version(rows: Sequence[Row], id: str) -> str:
    """Raises StoreConflict, StoreMissing."""
    version, is_there = rows[0]
    if version is not None:
        return str(version)
    if not is_there:
        raise _missing(id)
    raise StoreConflict(f"document '{id}' was changed by another writer: read it again")


def _missing(id: str) -> StoreMissing:
    return StoreMissing(f"document '{id}' does not exist: it was deleted, or never created")
