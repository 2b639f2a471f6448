"""A Cosmos DB account for tests (`cosmos`): our wire server as a process of its own, with a client of its control port."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from plugins_servers import Orders, served

if TYPE_CHECKING:
    from azure.cosmos.aio import CosmosClient

RANGES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """lsn: its last. documents: how many live in it."""

    id: str
    min: str
    max: str
    parents: list[str]
    lsn: int = 0
    documents: int = 0


class Control(Orders):
    """Orders to the server, one method each, as tests/lab/servers/README.md lists them. Raises ValueError for what it refuses."""

    def split(self, container: str, range_id: str, at: str | None = None, completing: int = 0) -> list[Range]:
        return [
            Range(**one)
            for one in self.order("split", container=container, range_id=range_id, at=at, completing=completing)
        ]

    def merge(self, container: str, left: str, right: str, completing: int = 0) -> Range:
        return Range(**self.order("merge", container=container, left=left, right=right, completing=completing))

    def fault(self, do: str, of: str = "*", **more: Any) -> int:
        return super().fault(do, of, **more)

    def disconnect(self) -> int:
        return int(self.order("disconnect")["connections"])

    def ranges_of(self, container: str, ranges: int) -> None:
        self.order("ranges_of", container=container, ranges=ranges)

    def images(self, container: str, previous: str) -> None:
        self.order("images", container=container, previous=previous)

    def consistency(self, level: str) -> None:
        self.order("consistency", level=level)

    def statistics(self, *, clear: bool = False) -> list[dict[str, Any]]:
        return list(self.order("statistics", clear=clear))

    def requests(self, kind: str, container: str | None = None) -> int:
        """Of that kind so far, to that container or to any."""
        counts = (c for c in self.statistics() if c["kind"] == kind and container in (None, c["container"]))
        return sum(count["requests"] for count in counts)

    def answered(self, kind: str, status: int) -> int:
        """How many requests of that kind got that status so far."""
        return sum(c["statuses"].get(str(status), 0) for c in self.statistics() if c["kind"] == kind)

    def ranges(self, container: str) -> list[Range]:
        return [Range(**one) for one in self.order("truth", container=container)]

    def versions(self, container: str) -> list[dict[str, Any]]:
        return list(self.order("versions", container=container))

    def delivered(self, container: str) -> dict[tuple[str, int], int]:
        """(id, LSN) -> how often a feed has answered with it."""
        return {(one["id"], one["lsn"]): one["times"] for one in self.order("delivered", container=container)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosmos:
    """endpoint: HTTP. https: the same account, with a certificate that the authority in the file `ca` has signed."""

    endpoint: str
    https: str
    ca: str
    key: str
    connection_string: str
    token: str
    control: Control
    process: subprocess.Popen[str]

    def client(self, **options: Any) -> CosmosClient:
        from azure.cosmos.aio import CosmosClient  # most test runs do without, and it takes a second to import

        return CosmosClient(self.endpoint, self.key, **options)


@contextmanager
def running(*arguments: str) -> Iterator[Cosmos]:
    """A server of one's own, for whoever needs two accounts or another key."""
    with served("leasehold_emulators.cosmos", *arguments) as (said, process):
        yield Cosmos(**said | {"control": Control(said["control"])}, process=process)


@pytest.fixture(scope="session")
def cosmos_server() -> Iterator[Cosmos]:
    with running("--ranges", str(RANGES)) as server:
        yield server


@pytest.fixture
def cosmos(cosmos_server: Cosmos) -> Iterator[Cosmos]:
    """An empty account whose containers have 4 ranges, without faults, its clock right."""
    cosmos_server.control.reset()
    yield cosmos_server
    cosmos_server.control.reset()
