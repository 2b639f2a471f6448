"""A lease store in one table of PostgreSQL (14 or later), for hosts anywhere."""

from leasehold.leases.stores.postgres.server import PostgresAddress
from leasehold.leases.stores.postgres.store import PostgresStore
from leasehold.leases.stores.postgres.table import LeaseTable

__all__ = ["LeaseTable", "PostgresAddress", "PostgresStore"]
