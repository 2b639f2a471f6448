"""An Event Hubs namespace for tests (`eventhubs`): our wire server as a process of its own, with a client of its control port."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from plugins_servers import Orders, served

HUBS = {"raw-event": 4, "transformed-event": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An event as the server keeps it. producer: (group id, owner level, sequence number) of an idempotent one."""

    sequence: int
    offset: str
    time_ms: int
    key: str | None
    body: str
    properties: dict[str, Any]
    producer: list[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """first: number of the oldest event. end: of the next one. repeated: batches recognised as known. producers: as kept."""

    id: str
    first: int
    end: int
    last_offset: str
    size_bytes: int
    repeated: int
    producers: list[dict[str, Any]]


class Control(Orders):
    """Orders to the server, one method each, as tests/lab/servers/README.md lists them. Raises ValueError for what it refuses."""

    # --- faults ---

    def fault(self, do: str, of: str = "send", **more: Any) -> int:
        return super().fault(do, of, **more)

    def cut(self, **which: Any) -> int:
        return int(self.order("cut", **which)["count"])

    def close(self, condition: str | None = None) -> int:
        return int(self.order("close", condition=condition)["count"])

    def detach(self, condition: str | None = None, **which: Any) -> int:
        return int(self.order("detach", condition=condition, **which)["count"])

    def steal(self, **which: Any) -> int:
        return int(self.order("steal", **which)["count"])

    # --- hubs ---

    def make_hub(self, hub: str, partitions: int, groups: Sequence[str] = (), events_max: int | None = None) -> None:
        self.order("make_hub", hub=hub, partitions=partitions, groups=list(groups), events_max=events_max)

    def grow(self, hub: str, partitions: int) -> None:
        self.order("grow", hub=hub, partitions=partitions)

    def append(self, hub: str, partition: str, bodies: Sequence[str], key: str | None = None) -> int:
        """The number of the first."""
        return int(self.order("append", hub=hub, partition=partition, bodies=list(bodies), key=key)["first"])

    def fill(self, hub: str, partition: str, count: int, body_bytes: int = 200) -> None:
        """That many events with bodies of that size, quickly."""
        self.order("append", hub=hub, partition=partition, count=count, bytes=body_bytes)

    def trim(self, hub: str, partition: str, first: int) -> None:
        self.order("trim", hub=hub, partition=partition, first=first)

    def forget(self, hub: str, partition: str) -> int:
        """The service forgets its idempotent producers. How many there were."""
        return int(self.order("forget", hub=hub, partition=partition)["count"])

    def rules(self, **rules: Any) -> None:
        """Choose what nobody knows of the service. A rule that is left out is as at the start."""
        self.order("rules", **rules)

    # --- what there is ---

    def partitions(self, hub: str) -> list[Partition]:
        return [Partition(**one) for one in self.order("partitions", hub=hub)]

    def partition(self, hub: str, partition: str) -> Partition:
        return self.partitions(hub)[int(partition)]

    def events(self, hub: str, partition: str, first: int = 0, count: int | None = None) -> list[Stored]:
        return [Stored(**one) for one in self.order("truth", hub=hub, partition=partition, first=first, count=count)]

    def bodies(self, hub: str, partition: str) -> list[str]:
        return [event.body for event in self.events(hub, partition)]

    def links(self, **which: Any) -> list[dict[str, Any]]:
        return list(self.order("links", **which))

    def statistics(self) -> dict[str, Any]:
        return dict(self.order("statistics"))

    def count(self, what: str, hub: str | None = None, partition: str | None = None, detail: str | None = None) -> int:
        """Of that kind so far: batches, events, appended, delivered, refused, attach.refused, reads,
        reads.throttled."""
        wanted = {"what": what, "hub": hub, "partition": partition, "detail": detail}
        counts = self.statistics()["counts"]
        return sum(one["count"] for one in counts if all(value in (None, one[name]) for name, value in wanted.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHubs:
    """connection_string: of AMQP without TLS, for any hub. ca: a file, the authority of what `tls_port` and `wss_port` show."""

    host: str
    port: int
    tls_port: int
    ws_port: int
    wss_port: int
    ca: str
    key_name: str
    key: str
    token: str
    connection_string: str
    hubs: list[str]
    control: Control
    process: subprocess.Popen[str]


@contextmanager
def running(*arguments: str) -> Iterator[EventHubs]:
    """A server of one's own, for whoever needs two namespaces, another key or other limits."""
    with served("leasehold_emulators.eventhubs", *arguments) as (said, process):
        yield EventHubs(**said | {"control": Control(said["control"])}, process=process)


@pytest.fixture(scope="session")
def eventhubs_server() -> Iterator[EventHubs]:
    hubs = ",".join(f"{name}:{partitions}" for name, partitions in HUBS.items())
    with running("--hubs", hubs, "--groups", "sinks") as server:
        yield server


@pytest.fixture
def eventhubs(eventhubs_server: EventHubs) -> Iterator[EventHubs]:
    """Empty hubs `raw-event` and `transformed-event` of 4 partitions with a consumer group `sinks`, no faults, no connections."""
    eventhubs_server.control.reset()
    yield eventhubs_server
    eventhubs_server.control.reset()
