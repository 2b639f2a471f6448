"""Which servers of a DSN with several are to blame if none of them takes leases, and the next step after an error."""

from __future__ import annotations

import pytest
from psycopg import OperationalError
from psycopg.errors import LockNotAvailable, ReadOnlySqlTransaction, UndefinedColumn

from leasehold.leases.stores.postgres.error_mapping import failed, not_connected, not_migrated

READ_ONLY = 'connection failed: connection to server at "10.0.0.1", port 5432 failed: session is read-only'
DOWN = (
    'connection failed: connection to server at "10.0.0.2", port 5432 failed: Connection refused\n'
    "\tIs the server running on that host and accepting TCP/IP connections?"
)
TWO = "a,b:5432/bank"


def attempts(*texts: str) -> OperationalError:
    """As the driver reports several attempts: the last one first."""
    lines = [f"- host: 'a', port: '5432', hostaddr: '10.0.0.{number}': {text}" for number, text in enumerate(texts, 1)]
    return OperationalError("\n".join([texts[-1], "Multiple connection attempts failed. All failures were:", *lines]))


def by_libpq(*texts: str) -> OperationalError:
    """As libpq reports several servers, such as those of a service file."""
    return OperationalError(
        "connection failed: " + "\n".join(text.removeprefix("connection failed: ") for text in texts)
    )


@pytest.mark.parametrize(
    ("error", "address"),
    [
        (attempts(READ_ONLY, DOWN), TWO),
        (attempts(DOWN, READ_ONLY), TWO),
        (by_libpq(READ_ONLY, DOWN), "service bank"),
        (by_libpq(DOWN, READ_ONLY), "service bank"),
        (OperationalError(READ_ONLY), TWO),  # the name of the other one was not resolved
    ],
    ids=["first", "last", "libpq-first", "libpq-last", "unresolved"],
)
def test_a_primary_that_is_down_is_not_called_a_replica(error: OperationalError, address: str) -> None:
    words = str(not_connected(error, address))
    assert "read-only replica" not in words
    assert words.startswith(f"PostgreSQL {address} cannot be reached: connection failed")
    assert "session is read-only" in words
    assert ("Connection refused" in words) == ("Connection refused" in str(error))


@pytest.mark.parametrize(
    ("error", "address"),
    [
        (OperationalError(READ_ONLY), "a:5432/bank"),
        (attempts(READ_ONLY, READ_ONLY), TWO),
        (attempts(READ_ONLY, READ_ONLY), "localhost:5432/bank"),
        (by_libpq(READ_ONLY, READ_ONLY), "service bank"),
        (OperationalError(READ_ONLY.replace("is read-only", "is not read-write")), "a:5432/bank"),
    ],
    ids=["one", "all", "addresses", "libpq-all", "older"],
)
def test_servers_that_all_take_no_writes_are_replicas_or_have_been_made_read_only(
    error: OperationalError, address: str
) -> None:
    words = str(not_connected(error, address))
    assert words.startswith(f"PostgreSQL {address} takes no writes: its sessions are read-only: name the primary")
    assert "look at `default_transaction_read_only`" in words


@pytest.mark.parametrize(
    "why",
    [
        "sorry, too many clients already",
        "remaining connection slots are reserved for non-replication superuser connections",
        'too many connections for role "leasehold"',
        "no more connections allowed (max_client_conn)",
    ],
)
def test_a_server_without_a_free_connection_leads_to_its_limit(why: str) -> None:
    error = OperationalError(f'connection failed: connection to server at "10.0.0.1", port 5432 failed: FATAL:  {why}')
    words = str(not_connected(error, "a:5432/bank"))
    assert words.startswith("PostgreSQL a:5432/bank has no free connection: ")
    assert words.endswith(": raise its limit (max_connections, or that of the role or database), or use a pooler")


def test_a_write_that_a_read_only_session_refuses_has_the_same_remedies() -> None:
    words = str(failed(ReadOnlySqlTransaction(), "a:5432/bank", "creating 'x'", is_lost=False, is_write=True))
    assert "name the primary" in words
    assert "look at `default_transaction_read_only`" in words


def test_a_table_that_cannot_be_made_because_of_a_lock_leads_to_its_holder() -> None:
    words = str(not_migrated(LockNotAvailable(), "a:5432/bank", "public.leasehold_leases"))
    assert "pg_locks" in words
    assert "server's log" not in words


def test_a_table_without_one_of_the_columns_is_compared_with_the_documented_one() -> None:
    words = str(failed(UndefinedColumn(), "a:5432/bank", "listing '_'", is_lost=False, is_write=False))
    assert "docs/leases-postgres.md" in words
