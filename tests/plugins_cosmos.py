"""A Cosmos DB account for tests (`cosmos`): our wire server as a process of its own, with a client of its control port."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from azure.cosmos.aio import CosmosClient

TESTS = Path(__file__).parent
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


class Control:
    """Orders to the server, one method each; tests/servers/README.md says what they do. Raises ValueError for what it refuses."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def order(self, name: str, **what: Any) -> Any:
        response = self._http.post(name, json=what)
        if response.status_code != 200:
            raise ValueError(response.json()["error"])
        return response.json()

    def split(self, container: str, range_id: str, at: str | None = None, completing: int = 0) -> list[Range]:
        return [
            Range(**one)
            for one in self.order("split", container=container, range_id=range_id, at=at, completing=completing)
        ]

    def merge(self, container: str, left: str, right: str, completing: int = 0) -> Range:
        return Range(**self.order("merge", container=container, left=left, right=right, completing=completing))

    def fault(self, do: str, of: str = "*", **more: Any) -> int:
        return int(self.order("fault", do=do, of=of, **more)["number"])

    def heal(self, number: int | None = None) -> None:
        self.order("heal", number=number)

    def disconnect(self) -> int:
        return int(self.order("disconnect")["connections"])

    def move_clock(self, seconds: float) -> None:
        self.order("clock", move_s=seconds)

    def ranges_of(self, container: str, ranges: int) -> None:
        self.order("ranges_of", container=container, ranges=ranges)

    def images(self, container: str, previous: str) -> None:
        self.order("images", container=container, previous=previous)

    def reset(self) -> None:
        self.order("reset")

    def faults(self) -> list[dict[str, Any]]:
        return list(self.order("faults"))

    def statistics(self, *, clear: bool = False) -> list[dict[str, Any]]:
        return list(self.order("statistics", clear=clear))

    def requests(self, kind: str, container: str | None = None) -> int:
        """Of that kind so far, to that container or to any."""
        counts = (c for c in self.statistics() if c["kind"] == kind and container in (None, c["container"]))
        return sum(count["requests"] for count in counts)

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
    token: str
    control: Control
    process: subprocess.Popen[str]

    def client(self, **options: Any) -> CosmosClient:
        from azure.cosmos.aio import CosmosClient  # most test runs do without, and it takes a second to import

        return CosmosClient(self.endpoint, self.key, **options)


@contextmanager
def running(*arguments: str) -> Iterator[Cosmos]:
    """A server of one's own, for whoever needs two accounts or another key."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "servers.cosmos", "--with-parent", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        yield Cosmos(**said | {"control": Control(said["control"])}, process=process)
    finally:
        process.terminate()
        process.wait(timeout=30)
        if process.stdout:
            process.stdout.close()


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
