"""A group of hosts of this process whose leases are in PostgreSQL, for tests."""

from __future__ import annotations

import asyncio

from lab.simulation.group import logger
from patience import until_async
from plugins_pg import Network, Postgres

from leasehold.common.clock import BootClock
from leasehold.leases.bell import Bell
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.stores.postgres import LeaseTable, PostgresAddress, PostgresStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink
from leasehold.pipeline.transform import NoTransform
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore


class Group:
    """Hosts of this process, each with connections of its own.

    network: between them and the server.
    """

    def __init__(
        self, postgres: Postgres, partitions: int, timing: Timing | None = None, network: Network | None = None
    ) -> None:
        self.postgres = postgres
        self._dsn = postgres.dsn if network is None else network.dsn
        self.timing = timing
        self.feed = MemoryChangeFeed(str(number) for number in range(partitions))
        self.destination = MemoryDestination()
        self.hosts: dict[str, ProcessorCore] = {}
        self.log: list[dict[str, object]] = []
        self.operator = self.store()
        self.bell = Bell(self.operator)
        self.keeper = Keeper(
            self.operator, host="leasehold", incarnation="0", clock=BootClock(), timing=Timing(), bell=self.bell
        )

    def store(self) -> PostgresStore:
        return PostgresStore(PostgresAddress(dsn=self._dsn, table=LeaseTable()))

    async def start(self, *names: str) -> None:
        for name in names:
            pipeline = PipelineParts(
                name="orders", feed=self.feed, sink=MemoryOutputSink(self.destination), transform=NoTransform()
            )
            self.hosts[name] = ProcessorCore(
                [pipeline], self.store(), host=name, timing=self.timing, log=logger(self.log)
            )
        await asyncio.gather(*(self.hosts[name].start() for name in names))

    def owned_by(self, name: str) -> set[str]:
        return {key.partition for key in self.hosts[name].host.workers}

    async def hand_over(self, partition: str, to: str) -> float:
        """As an operator's command does. Returns the seconds until the other host works on it."""
        seen = await self.keeper.read("orders", partition)
        await self.keeper.rewrite(seen, seen.lease.handoff_requested(to))
        await self.bell.write()
        return await until_async(lambda: partition in self.owned_by(to), f"{to} has {partition}")

    def delivered(self, partition: str) -> list[int]:
        """The numbers that were appended to it, as they arrived."""
        return [int(row["body"]) for row in self.destination.rows(partition)]

    async def leases(self) -> dict[str, Lease]:
        return {key.partition: seen.lease for key, seen in (await self.keeper.scan(["orders"])).seen.items()}

    async def close(self) -> None:
        await asyncio.gather(*(host.stop() for host in self.hosts.values()))
        await self.operator.close()
