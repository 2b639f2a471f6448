"""A lease store in one table of PostgreSQL (14 or later), for hosts anywhere."""

from leases.stores.postgres.server import PostgresAddress
from leases.stores.postgres.store import PostgresStore
from leases.stores.postgres.table import Table

__all__ = ["PostgresAddress", "PostgresStore", "Table"]
