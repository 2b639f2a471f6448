"""The table of lease documents, and every statement on it. Pure.

    id          as in `leasehold.leases.store`; compared by its bytes, so that a prefix is a range
    body        JSON
    version     the ETag: random, and a new one with each write, so that no backup and no failover brings one back
    changed_in  the transaction that wrote the row, by which changes are read

Every read also shows whether a replica answered it: a replica may be behind, so no lease may be judged by what it shows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from psycopg.sql import SQL, Composed, Identifier, Literal

from leasehold.common.dsn import NAME_BYTES_MAX, check_table
from leasehold.common.postgres import CLIENT_CHECK, CLIENT_CHECK_MS
from leasehold.leases.document import BODY_BYTES_MAX

VERSION = 1
MARK = "leasehold leases, version "
"""The table's comment begins with this. It marks the tables of Leasehold, and holds the version of the last migration."""
LAST = "\U0010ffff"
"""Sorts after all characters that ids contain."""

_SNAPSHOT = re.compile(r"([0-9]{1,18}):([0-9]{1,18}):([0-9,]*)")


@dataclass(frozen=True, slots=True)
class LeaseTable:
    """Raises ValueError for a name that PostgreSQL would cut short, or the driver would take for a parameter."""

    schema: str = "public"
    name: str = "leasehold_leases"

    def __post_init__(self) -> None:
        check_table(self.schema, self.name)

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.schema}.{self.name}"

    @property
    def channel(self) -> str:
        """Notifications belong to the whole database, so each table has its own."""
        usual = self.words
        if len(usual.encode()) <= NAME_BYTES_MAX:
            return usual
        return f"leasehold.{sha256(usual.encode()).hexdigest()[:40]}"

    @property
    def identifier(self) -> Identifier:
        return Identifier(self.schema, self.name)

    @property
    def quoted(self) -> str:
        """The name as to_regclass reads it."""
        return ".".join('"' + name.replace('"', '""') + '"' for name in (self.schema, self.name))


# Reading


_SERVER = SQL("(SELECT pg_is_in_recovery() AS is_replica)")
_DOCUMENT = SQL("document.id, left(document.body::text, {}), document.version::text").format(BODY_BYTES_MAX + 1)
"""Anyone may have written a body, so only as much of it is read as shows that it is too large."""
_WITHIN = SQL("document.id >= %s AND document.id < %s")


def listed(table: LeaseTable) -> Composed:
    """Parameters: the prefix, and the prefix with LAST. Rows: is_replica, id, body, version; NULLs if there is none."""
    return SQL(
        "SELECT server.is_replica, {document}"
        " FROM {server} AS server LEFT JOIN {table} AS document ON {within} ORDER BY document.id"
    ).format(document=_DOCUMENT, server=_SERVER, table=table.identifier, within=_WITHIN)


def found(table: LeaseTable) -> Composed:
    """Parameter: the id. One row like those of `listed`."""
    return SQL(
        "SELECT server.is_replica, {document} FROM {server} AS server LEFT JOIN {table} AS document ON document.id = %s"
    ).format(document=_DOCUMENT, server=_SERVER, table=table.identifier)


def counted(table: LeaseTable) -> Composed:
    """Parameters: those of `listed`. One row: is_replica, count."""
    return SQL("SELECT pg_is_in_recovery(), count(*) FROM {} AS document WHERE {}").format(table.identifier, _WITHIN)


def now(table: LeaseTable) -> Composed:
    """One row: is_replica, token."""
    return SQL("SELECT server.is_replica, server.token FROM {} AS server").format(_token(table))


def changed(table: LeaseTable) -> Composed:
    """Parameters: a snapshot twice, then those of `listed`. Rows: is_replica, token, id, body, version; NULLs if there is none.

    These are the documents that the snapshot did not show, whatever the order in which their transactions were committed.
    """
    return SQL(
        "SELECT server.is_replica, server.token, {document}"
        " FROM {server} AS server LEFT JOIN {table} AS document"
        " ON document.changed_in >= pg_snapshot_xmin(%s::pg_snapshot)"
        " AND NOT pg_visible_in_snapshot(document.changed_in, %s::pg_snapshot) AND {within}"
    ).format(document=_DOCUMENT, server=_token(table), table=table.identifier, within=_WITHIN)


def _token(table: LeaseTable) -> Composed:
    """What this query sees, and on which server since which start: transactions are counted differently on any other."""
    return SQL(
        "(SELECT pg_is_in_recovery() AS is_replica, concat(pg_current_snapshot()::text, ' ', to_regclass({name})::oid, ' ',"
        " extract(epoch FROM pg_postmaster_start_time())::text) AS token)"
    ).format(name=Literal(table.quoted))


def snapshot_in(token: str) -> str | None:
    """The snapshot of a token; None if `read_changes` cannot have given this token."""
    snapshot = token.partition(" ")[0]
    if (match := _SNAPSHOT.fullmatch(snapshot)) is None:
        return None
    first, last, running = int(match[1]), int(match[2]), match[3]
    if not 0 < first <= last:
        return None
    numbers = running.split(",") if running else []
    if not all(each and first <= int(each) < last for each in numbers):
        return None
    return snapshot


def place_in(token: str) -> str:
    """The table and the server, since its start, for which the token is valid."""
    return token.partition(" ")[2]


# Writing. One statement each, in a transaction of its own.


def created(table: LeaseTable) -> Composed:
    """Parameters: id, body. One row with the version; none if the document exists."""
    return SQL("INSERT INTO {} (id, body) VALUES (%s, %s) ON CONFLICT (id) DO NOTHING RETURNING version::text").format(
        table.identifier
    )


def replaced(table: LeaseTable) -> Composed:
    """Parameters: body, id, version, id. One row: the new version or NULL, and whether there is such a document."""
    return SQL(
        "WITH written AS (UPDATE {table} SET body = %s, version = gen_random_uuid(), changed_in = pg_current_xact_id()"
        " WHERE id = %s AND version::text = %s RETURNING version)"
        " SELECT (SELECT version::text FROM written), EXISTS (SELECT FROM {table} WHERE id = %s)"
    ).format(table=table.identifier)


def deleted(table: LeaseTable) -> Composed:
    """Parameters: id, version, id. One row like that of `replaced`, with the last version."""
    return SQL(
        "WITH removed AS (DELETE FROM {table} WHERE id = %s AND version::text = %s RETURNING version)"
        " SELECT (SELECT version::text FROM removed), EXISTS (SELECT FROM {table} WHERE id = %s)"
    ).format(table=table.identifier)


# The table itself


def settings(*, statement_s: float, lock_s: float) -> Composed:
    """Statements that begin a transaction's only message, and hold for that transaction alone.

    A session's settings do not reach it: a pooler in transaction mode runs each transaction on any of its server connections,
    and lends these to others. Statements of one message are one transaction, without BEGIN and COMMIT, so these cost no round
    trip. The isolation level comes first, because a transaction cannot change it after its first query.

    A commit that is answered must survive a failover, or epochs would move back. A write that waited for another one must find
    the row changed, as read committed does.

    statement_s, lock_s: bounds for one statement, and for one lock that it waits for.
    """
    return SQL(
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;"
        " SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
        " WHEN 'off' THEN 'on' WHEN 'local' THEN 'on' ELSE current_setting('synchronous_commit') END, true),"
        " set_config('statement_timeout', {statement}, true), set_config('lock_timeout', {lock}, true),"
        " set_config({check}, {check_ms}, true); "
    ).format(
        statement=Literal(str(round(statement_s * 1000))),
        lock=Literal(str(round(lock_s * 1000))),
        check=Literal(CLIENT_CHECK),
        check_ms=CLIENT_CHECK_MS,
    )


def state(table: LeaseTable) -> Composed:
    """One row: is_replica, whether the table exists, its comment. The last two are of one moment: `to_regclass` alone also finds
    a table that another host has made since, whose comment this statement does not see."""
    return SQL(
        "SELECT pg_is_in_recovery(), found.oid IS NOT NULL, obj_description(found.oid, 'pg_class')"
        " FROM (SELECT to_regclass({name})::oid AS oid) named LEFT JOIN pg_class found USING (oid)"
    ).format(name=Literal(table.quoted))


def migration(table: LeaseTable) -> Composed:
    """Several statements in one message, which is one transaction. It may run again, and concurrently with another host's."""
    return SQL(
        "SELECT pg_advisory_xact_lock(hashtextextended({lock}, 0));"
        ' CREATE TABLE IF NOT EXISTS {table} (id text COLLATE "C" PRIMARY KEY, body json NOT NULL,'
        " version uuid NOT NULL DEFAULT gen_random_uuid(), changed_in xid8 NOT NULL DEFAULT pg_current_xact_id())"
        " WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);"
        " CREATE INDEX IF NOT EXISTS {index} ON {table} (changed_in);"
        " COMMENT ON TABLE {table} IS {mark}"
    ).format(
        lock=Literal(f"leasehold leases {table.words}"),
        table=table.identifier,
        index=Identifier(index_of(table)),
        mark=Literal(f"{MARK}{VERSION}"),
    )


def index_of(table: LeaseTable) -> str:
    """The index's name, which has at most NAME_BYTES_MAX bytes."""
    usual = f"{table.name}_changed_in"
    if len(usual.encode()) <= NAME_BYTES_MAX:
        return usual
    return f"leasehold_{sha256(usual.encode()).hexdigest()[:20]}_changed_in"


def version_in(comment: str | None) -> int | None:
    """The version of the table's last migration; None if the table is not ours."""
    number = (comment or "").removeprefix(MARK)
    return int(number) if number != comment and number.isdecimal() and len(number) < 6 else None
