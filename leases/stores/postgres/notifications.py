"""Hints as notifications of PostgreSQL: what their payload holds, and the connection that waits for them."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

from psycopg import AsyncConnection, Error
from psycopg.sql import SQL, Composed, Identifier

from leasehold.common.nesting import parsed_json
from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.store import Hint
from leasehold.leases.stores.postgres.table import LeaseTable

PAYLOAD_BYTES_MAX = 7999
PROOF_S = 5.0
"""A notification that this process sends to itself arrives within this time, or none arrive."""


def encode(hint: Hint) -> str:
    """At most PAYLOAD_BYTES_MAX bytes; a hint for any host if names are too long."""
    text = json.dumps({"host": hint.host, "pipeline": hint.pipeline})
    return text if len(text) <= PAYLOAD_BYTES_MAX else json.dumps({"host": None, "pipeline": None})


def decode(payload: str) -> Hint:
    """A hint for any host if the payload is something else. Anyone may send one, and looking does no harm."""
    with suppress(ValueError):
        found = parsed_json(payload, levels_max=2)
        if isinstance(found, dict):
            host, pipeline = found.get("host"), found.get("pipeline")
            if isinstance(host, str | None) and isinstance(pipeline, str | None):
                return Hint(host, pipeline)
    return Hint()


async def listen(
    connection: AsyncConnection, table: LeaseTable, address: str, prove: Callable[[str], Awaitable[None]]
) -> AsyncGenerator[Hint, None]:
    """Yield the hints from now on. The first one, for any host, is yielded as soon as others would arrive.

    prove: sends this payload through another connection. If it does not arrive, the server does not know this connection as
    one that listens: a pooler has lent it to others. Raises StoreUnavailable, and what `prove` raises.
    """
    proof = uuid.uuid4().hex
    try:
        await connection.execute(SQL("LISTEN {}").format(Identifier(table.channel)))
        await prove(proof)
        async for notification in connection.notifies(timeout=PROOF_S):
            if notification.payload == proof:
                break
        else:
            raise StoreUnavailable(
                f"PostgreSQL {address}: notifications do not arrive, as through a pooler in transaction mode, or from another"
                " database: set `listen_dsn` to a DSN that leads to the same database without the pooler"
            )
        yield Hint()
        async for notification in connection.notifies():
            yield decode(notification.payload)
    except Error as error:
        raise StoreUnavailable(f"PostgreSQL {address}: the connection for notifications was lost: {error}") from error
    raise StoreUnavailable(f"PostgreSQL {address}: the connection for notifications ended")


def notified(table: LeaseTable) -> Composed:
    """Parameter: a list of payloads."""
    return SQL("SELECT pg_notify({}, payload) FROM unnest(%s::text[]) AS payload").format(table.channel)
