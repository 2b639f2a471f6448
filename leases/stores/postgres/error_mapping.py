"""What a server's or a connection's error means for a call: not carried out, or perhaps carried out. Pure.

An error that leaves the connection usable was rolled back. If the connection is gone, a write may have been committed
before, or may be soon: the server does not stop at once.
"""

from __future__ import annotations

import re

from psycopg import Error

from leasehold.common.postgres import TokenRefused, cause_of, words_of
from leasehold.leases.errors import StoreAmbiguous, StoreError, StoreUnavailable

NO_TABLE = "42P01"
READ_ONLY = "25006"
DSN = "dsn"
"""The setting that leads to the server, unless `listen_dsn` does."""


def _to_replica(setting: str) -> str:
    return f"name the primary in `{setting}`, or all servers (host=a,b): hosts choose the primary"


def _to_read_only(setting: str) -> str:
    return (
        f"{_to_replica(setting)}; if this is the primary, look at `default_transaction_read_only`, which some services turn on"
        " when the disk is full"
    )


_DOCUMENTED = "compare the table with that of docs/leases-postgres.md, or name another `table`"
_READ_ONLY_SESSION = ("session is read-only", "session is not read-write")
_ALL_ATTEMPTS = "All failures were:"
"""The driver's words before its list of attempts, if it made several."""
_ATTEMPT = re.compile(r"\n(?=- host: |connection to server )")
_FULL = ("too many clients", "too many connections", "remaining connection slots", "no more connections allowed")
_REMEDIES = {
    NO_TABLE: "it was dropped while hosts use it; the next call makes it again if it may",
    "42501": "grant this role SELECT, INSERT, UPDATE and DELETE on the table, and USAGE on its schema",
    "42703": _DOCUMENTED,
    READ_ONLY: _to_read_only(DSN),
    "55P03": "look for an open transaction that holds it (pg_stat_activity), and end that",
    "57014": "look for an open transaction that holds it (pg_stat_activity), or at what slows the server down",
    "53100": "free some space on the server's disk",
}


def failed(error: Error, address: str, doing: str, *, is_lost: bool, is_write: bool) -> StoreError:
    """is_lost: whether the connection is gone."""
    prefix = f"PostgreSQL {address}: {doing}"
    if not is_lost:
        remedy = _REMEDIES.get(error.sqlstate or "")
        return StoreUnavailable(f"{prefix} failed: {words_of(error)}{f': {remedy}' if remedy else ''}")
    if is_write:
        return StoreAmbiguous(f"{prefix} was sent, and the connection was lost before the answer: {words_of(error)}")
    return StoreUnavailable(f"{prefix} failed, the connection was lost: {words_of(error)}")


def not_connected(error: Error, address: str, setting: str = DSN) -> StoreUnavailable:
    words, cause = words_of(error), cause_of(error)
    if _are_all_read_only(error, address):
        return StoreUnavailable(
            f"PostgreSQL {address} takes no writes: its sessions are read-only: {_to_read_only(setting)}"
        )
    if any(full in words for full in _FULL):
        return StoreUnavailable(
            f"PostgreSQL {address} has no free connection: {words}: raise its limit (max_connections, or that of the role or"
            " database), or use a pooler"
        )
    if cause == "settings":
        return StoreUnavailable(
            f"PostgreSQL {address} refused the connection: {words}: correct `{setting}`, or the server's settings"
        )
    if cause == "host":
        return StoreUnavailable(f"PostgreSQL {address} cannot be reached: {words}: check the host in `{setting}`")
    return StoreUnavailable(f"PostgreSQL {address} cannot be reached: {words}: look at `{setting}`, and at the server")


def _are_all_read_only(error: Error, address: str) -> bool:
    """Whether each server of the address was reached and takes no writes. The driver omits servers whose names do not resolve."""
    attempts = [each for each in _ATTEMPT.split(str(error).rpartition(_ALL_ATTEMPTS)[2]) if each.strip()]
    servers = address.partition(":")[0].count(",") + 1
    return len(attempts) >= servers and all(any(words in each for words in _READ_ONLY_SESSION) for each in attempts)


def replica(address: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"PostgreSQL {address} is a read-only replica (it is in recovery), which may be behind and takes no leases:"
        f" {_to_replica(DSN)}"
    )


def not_migrated(error: Error, address: str, table: str) -> StoreUnavailable:
    remedy = {
        "42501": "grant this role CREATE on the schema, or make the table as another role (docs/leases-postgres.md) and grant"
        " this one SELECT, INSERT, UPDATE and DELETE on it",
        "3F000": "create the schema, or name another in `schema`",
        "55P03": "find who holds the table's advisory lock, or is about to create the same table (pg_locks,"
        " pg_stat_activity), and end that",
    }.get(error.sqlstate or "", "see the server's log")
    return StoreUnavailable(
        f"PostgreSQL {address}: the table '{table}' of leases could not be made: {words_of(error)}: {remedy}"
    )


def token_refused(error: TokenRefused, address: str, setting: str = DSN) -> StoreUnavailable:
    """A token expires, and the service may be unable to verify one for a while: another one may be accepted."""
    return StoreUnavailable(
        f"PostgreSQL {address} refused the access token: {error}: if this persists, check that the role in"
        f" `{setting}` belongs to this `identity`"
    )
