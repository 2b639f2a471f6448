"""Pods that share the bank: containers of an image, with leases in blobs, PostgreSQL reached by TCP, and the logs on a volume
that all pods mount."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from containers import STATE, TOKEN, Image, Pod
from lab.scenarios.chaos_wire import Wire
from onlooker import loop_beside
from patience import PATIENCE_S, until
from plugins_cli import events_in
from plugins_hosts import PARTITIONS, PIPELINES, Bank
from plugins_node import blobs_served, free_port

from leasehold.leases.timing import Timing

LEASES = PARTITIONS * len(PIPELINES)
TIMING = Timing(balance_s=2)
USER = "1000690000:0"
"""Such as OpenShift chooses: neither the image nor a runtime has put it in /etc/passwd."""


@contextmanager
def by_tcp(socket: str, address: str = "127.0.0.1") -> Iterator[int]:
    """The port behind which a server's Unix socket is."""
    with loop_beside() as loop:
        wire = Wire(socket)
        asyncio.run_coroutine_threadsafe(wire.listen((address, 0)), loop).result(PATIENCE_S)
        yield wire.port
        loop.call_soon_threadsafe(wire.close)


@contextmanager
def served_bank(folder: Path, postgres: Any, owner: str) -> Iterator[tuple[Bank, dict[str, str]]]:
    """A bank in a directory of this user's (as "10001:10001"), and the environment of its pods.

    Azurite and PostgreSQL are there meanwhile."""
    volume = folder / "volume"
    volume.mkdir()
    bank = Bank(volume, postgres, TIMING)
    os.chown(volume, *map(int, owner.split(":")))
    with by_tcp(postgres.socket) as port, blobs_served() as (blobs, _):
        dsn = f"host=127.0.0.1 port={port} user=postgres dbname={postgres.name} sslmode=disable gssencmode=disable"
        yield bank, {"LEASES_BLOB": blobs, "LEASEHOLD_POSTGRES_DSN": dsn}


@dataclass(kw_only=True)
class BankInPods:
    """spark: the section of that name, if not the bank's own. user: as in Image.command."""

    bank: Bank
    image: Image
    folder: Path
    environment: Mapping[str, str]
    spark: Mapping[str, Any] | None = None
    user: str | None = None
    pods: dict[str, Pod] = field(default_factory=dict)

    def start(self, *names: str) -> None:
        for name in names:
            self.begin(name)
        for name in names:
            self.pods[name].until("/health/ready", PATIENCE_S)

    def begin(self, name: str) -> Pod:
        """One that is not ready yet."""
        port, settings = free_port(), self.folder / name
        settings.mkdir(exist_ok=True)
        (settings / "leasehold.yaml").write_text(yaml.safe_dump(self._settings(name, port)))
        (settings / "readers").write_text(TOKEN)
        output = self.folder / f"{name}.said"
        state = self.bank.directory
        pod = Pod(
            self.image,
            settings,
            port=port,
            output=output,
            host=name,
            state=state,
            user=self.user,
            environment=self.environment,
        )
        self.pods[name] = pod
        return pod

    def _settings(self, name: str, port: int) -> dict[str, Any]:
        """The bank's, with leases that pods can share, and every file on the volume."""
        settings: dict[str, Any] = yaml.safe_load(self.bank.settings_of(name).read_text())
        intervals = {key: settings["leases"][key] for key in ("duration_s", "balance_s")}
        settings["leases"] = {
            "type": "blob",
            "connection_string": "${LEASES_BLOB}",
            "container": "leases",
            **intervals,
        }
        settings["spark"] = dict(self.spark or settings["spark"])
        settings["api"] = {"host": "0.0.0.0", "port": port, "readers": "/etc/leasehold/readers"}
        settings["log"] = {"format": "json"}
        for side in (pipeline[key] for pipeline in settings["pipelines"] for key in ("feed", "sink")):
            if "path" in side:
                side["path"] = f"/{STATE}/{side['path']}"
        return settings

    def leases(self, of: str) -> dict[tuple[str, str], dict[str, Any]]:
        """As a pod tells them."""
        return {(each["pipeline"], each["partition"]): each for each in self.pods[of].items("/api/leases?limit=100")}

    def is_shared_by(self, *names: str) -> bool:
        """Evenly, as each of them says: over all pipelines, and in each one."""
        return all(_are_even(list(self.leases(name).values()), names) for name in names)

    def delivers(self, events: int = 100) -> None:
        before = self.bank.delivered()
        until(lambda: self.bank.delivered() > before + events, f"{events} more events delivered")

    def settle(self) -> None:
        self.bank.settle()

    def assert_no_batch_twice_or_dropped(self, *owners: str) -> None:
        """By the sink's history, in which each of these has a part. And every balance is exact."""
        self.bank.assert_exact()
        steps = self.bank.steps()
        assert max(Counter((step.partition, step.start) for step in steps).values()) == 1
        assert {step.owner for step in steps} == set(owners)

    def assert_each_transaction_once_in_both_logs(self) -> None:
        for name in ("raw-event", "transformed-event"):
            events = events_in(self.bank.directory / name)
            assert sum(map(len, events.values())) == self.bank.written

    def close(self) -> None:
        self.bank.close()
        for pod in self.pods.values():
            pod.end()


def _are_even(leases: list[dict[str, Any]], names: tuple[str, ...]) -> bool:
    parts = [[each for each in leases if each["pipeline"] == name] for name in PIPELINES]
    shares = [Counter(each["owner"] for each in part) for part in (leases, *parts)]
    counts = [[share[name] for name in names] for share in shares]
    return len(leases) == LEASES == sum(counts[0]) and all(max(each) - min(each) <= 1 for each in counts)
