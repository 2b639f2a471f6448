"""The embedded ground, with its leases in the database of the balances. A host is cut off from both at once."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from lab.scenarios.grounds import MADE, Breakage, Embedded

from leasehold.leases.document import decode_lease, lease_prefix
from leasehold.leases.errors import StoreMissing
from leasehold.leases.lease import Lease
from leasehold.leases.stores.postgres import LeaseTable, PostgresAddress, PostgresStore

TABLE = LeaseTable()


class WithLeasesInPostgres(Embedded):
    """A case has a new database, so its roles and those behind them begin without leases. The roles before do not run again."""

    def __init__(self, directory: Path, *, with_spark: bool = True) -> None:
        super().__init__(directory, with_spark=with_spark)
        self.breakages: Mapping[str, Breakage] = {"leases locked": self._without_writes}

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "leases": {"type": "postgres", "dsn": "${LEASEHOLD_POSTGRES_DSN}"}}

    def undo(self, stage: Path, roles: Sequence[str]) -> None:
        for role in roles:
            if role in MADE:
                shutil.rmtree(stage / MADE[role])

    def leases(self, role: str) -> list[Lease]:
        async def read() -> list[Lease]:
            store = PostgresStore(PostgresAddress(dsn=self.dsn, table=TABLE, creates=False))
            try:
                return [decode_lease(each.id, each.body) for each in await store.list(lease_prefix(role))]
            except StoreMissing:
                return []
            finally:
                await store.close()

        return asyncio.run(read())

    @contextmanager
    def _without_writes(self) -> Iterator[None]:
        """Hosts can read the leases, but not write them, unless the server crashes meanwhile."""
        with closing(self._locking()) as connection:
            yield
            with suppress(psycopg.Error):
                connection.rollback()

    def _locking(self) -> psycopg.Connection:
        """A connection that holds the lock, as soon as the server takes one."""
        while True:
            try:
                connection = psycopg.connect(self.dsn)
                connection.execute("LOCK TABLE public.leasehold_leases IN EXCLUSIVE MODE")
            except psycopg.OperationalError:
                time.sleep(0.2)
            else:
                return connection
