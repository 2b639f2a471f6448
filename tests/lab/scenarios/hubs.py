"""The bank over Event Hubs: both logs are hubs of the wire server, leases are blobs in Azurite; settings are those of
docs/examples/bank-eventhubs.yaml.

Nothing is ever put back: a case gets new, empty hubs for what its roles make, and a lease store of its own. It reads what the
undisturbed run has made for the roles before.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from lab.scenarios.grounds import PARTITIONS, Breakage, Logs, MakeGround, paged_files, slow_postgres, spread
from plugins_eventhubs import Control, EventHubs, running
from plugins_node import blobs_served

from leasehold.common.azure import storage_account_of
from leasehold.leases.document import decode_lease, lease_prefix
from leasehold.leases.errors import StoreMissing
from leasehold.leases.lease import Lease
from leasehold.leases.stores.blob import BlobContainerAddress, BlobStore, LeaseBlobContainer
from leasehold.pipeline.connectors.eventhubs.position import position_of
from leasehold.pipeline.connectors.targets import target_of

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "bank-eventhubs.yaml"
GROUP = "published"
"""The sinks' consumer group."""
FEED_GROUP = "$Default"
TIMEOUT_S = 2
"""Of a send, in which a lease of a few seconds is renewed: what is lost is given up before it expires."""
TARGETS = tuple(map(str, range(PARTITIONS)))
LEVEL_STOLEN, LINK_STOLEN = "com.microsoft:producer-epoch-stolen", "amqp:link:stolen"
CALL_TIMEOUT_S = 2
"""Of hosts to their leases: Azurite has to get its turn."""
LOOK_TIMEOUT_S = 20


FILES = spread(TARGETS, lambda name: target_of(name, TARGETS, None))


class Hubs:
    """name: of the bank; others may stand on the same servers."""

    files = tuple(FILES.values())
    buffer_bytes: Mapping[str, int] = {"generate": 17_000, "transform": 16_000, "balances": 10_000}
    full = 0.75
    begins_nowhere = True
    dsn = ""

    def __init__(self, directory: Path, name: str, namespace: EventHubs, blobs: str, blob_server: Any) -> None:
        self.environment: Mapping[str, str] = {"BANK_EVENTHUBS": namespace.connection_string, "LEASES_BLOB": blobs}
        self.control: Control = namespace.control
        self._directory = directory
        self._name = name
        self._blobs = blobs
        self._blob_server: subprocess.Popen[Any] = blob_server
        self._hubs = Logs(name, lambda hub: self.control.make_hub(hub, PARTITIONS, [GROUP]))
        self._read: dict[tuple[str, str], list[Any]] = {}
        self.breakages: Mapping[str, Breakage] = {
            "leases away": self._without_leases,
            "hubs cut off": self._cut_off,
            "hubs throttle": partial(self._faulty, [{"do": "throttle", "of": "send"}]),
            "batches cut": partial(self._faulty, [{"do": "cut", "of": "send", "times": 2}, _cut_after(2)]),
            "acks lost": partial(self._faulty, [{"do": "lose_ack", "of": "send", "times": 3}]),
            "links stolen": self._stolen,
        }

    def hub(self, log: str) -> str:
        return self._hubs[log]

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
        settings["leases"] |= {"container": self._container, "balance_s": 1, "call_timeout_s": CALL_TIMEOUT_S}
        for pipeline in settings["pipelines"]:
            if pipeline["feed"]["type"] == "files":
                pipeline["feed"] |= {"poll_interval_s": 0.1}
            if pipeline["sink"]["type"] == "postgres":
                pipeline["sink"] |= {"history": True}
            for side in (pipeline["feed"], pipeline["sink"]):
                if side["type"] == "eventhubs":
                    side |= {"event_hub": self._hubs[side["event_hub"]], "timeout_s": TIMEOUT_S}
        return settings

    def paged(self, feed: dict[str, Any], events: int) -> dict[str, Any]:
        return paged_files(self._directory, feed, events) or {
            **feed,
            "type": "lab.scenarios.slow_hubs:PagedHub",
            "page_events_max": events,
        }

    def slow(self, sink: dict[str, Any], gate: Path) -> dict[str, Any]:
        return slow_postgres(sink, gate) or {**sink, "type": "lab.scenarios.slow_hubs:SlowHub", "gate": str(gate)}

    @property
    def _container(self) -> str:
        return f"leases-{self._name}-{self._hubs.case}"

    def open(self) -> None:
        self._hubs.open()

    def undo(self, stage: Path, roles: Sequence[str]) -> None:
        """Nothing of theirs is in the directory."""

    def put_back(self, roles: Sequence[str]) -> None:
        self._hubs.put_back(roles)

    def leases(self, role: str) -> list[Lease]:
        return asyncio.run(self._leases(role))

    async def _leases(self, role: str) -> list[Lease]:
        place = BlobContainerAddress(container=self._container, creates=False)
        account = storage_account_of(connection_string=self._blobs)
        store = BlobStore(LeaseBlobContainer(account, place, call_timeout_s=LOOK_TIMEOUT_S))
        try:
            documents = await store.list(lease_prefix(role))
        except StoreMissing:  # no host has come so far
            documents = []
        finally:
            await store.close()
        return [decode_lease(document.id, document.body) for document in documents]

    def locked(self) -> list[str]:
        """No process holds anything of another one's."""
        return []

    def events(self, log: str) -> dict[str, list[Any]]:
        """Partitions without events are left out, as an embedded log has none of them."""
        found = {FILES[target]: self._events(self._hubs[log], target) for target in TARGETS}
        return {name: bodies for name, bodies in found.items() if bodies}

    def _events(self, hub: str, target: str) -> list[Any]:
        """What was read before stays as it is."""
        read = self._read.setdefault((hub, target), [])
        read += [json.loads(event.body) for event in self.control.events(hub, target, first=len(read))]
        return list(read)

    def counted(self, positions: Iterable[tuple[str, str | None]]) -> dict[str, int]:
        sequences = {FILES[target]: position_of(position).sequence for target, position in positions}
        return {name: 0 if sequence is None else sequence + 1 for name, sequence in sequences.items()}

    # Faults

    @contextmanager
    def faulty(self, **fault: Any) -> Iterator[Callable[[], int]]:
        """Tells how many calls the fault has taken."""
        number = self.control.fault(**fault)
        try:
            yield lambda: next(int(one["taken"]) for one in self.control.faults() if one["number"] == number)
        finally:
            self.control.heal(number)

    @contextmanager
    def _faulty(self, faults: Sequence[dict[str, Any]]) -> Iterator[None]:
        numbers = [self.control.fault(**fault) for fault in faults]
        try:
            yield
        finally:
            for number in numbers:
                self.control.heal(number)

    @contextmanager
    def _cut_off(self) -> Iterator[None]:
        """Nobody gets through to the namespace."""
        every = ("attach.sender", "attach.receiver", "send", "receive", "management")
        with self._faulty([{"do": "cut", "of": of} for of in every]):
            self.control.cut()
            yield

    @contextmanager
    def _stolen(self) -> Iterator[None]:
        """Receivers by a higher epoch, and the next batches by a higher level."""
        self.control.steal()
        with self._faulty([{"do": "detach", "of": "send", "condition": LEVEL_STOLEN, "times": 3}]):
            yield

    @contextmanager
    def _without_leases(self) -> Iterator[None]:
        """Their server says nothing."""
        self._blob_server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._blob_server.send_signal(signal.SIGCONT)


def _cut_after(times: int) -> dict[str, Any]:
    return {"do": "cut_after", "of": "send", "times": times}


@contextmanager
def served() -> Iterator[MakeGround]:
    with running("--hubs", "none:1") as namespace, blobs_served() as (blobs, process):
        yield lambda directory, name: Hubs(directory, name, namespace, blobs, process)
