"""The servers of a broker, as users write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leasehold.pipeline.connectors.network import check_unresolvable
from leasehold.pipeline.endpoint import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """servers: `HOST:PORT`, separated by commas."""

    system: ClassVar[str]
    """The name of the messaging system, for telemetry."""
    servers: str

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each server, sorted: the order in `servers` does not matter."""
        split = (each.strip().rpartition("://")[2].rpartition(":") for each in self.servers.split(","))
        return sorted((host, int(port)) for host, _, port in split)

    def endpoint(self, name: str, group: str | None = None) -> Endpoint:
        """name: the topic's or the stream's."""
        host, port = self.addresses[0]
        return Endpoint(system=self.system, name=name, server=host.strip("[]"), port=port, group=group)

    async def are_nowhere(self) -> bool:
        """Whether none of the servers' names exists."""
        return all([await check_unresolvable(host.strip("[]")) for host, _ in self.addresses])
