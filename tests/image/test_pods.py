"""A day of pods: three containers of the image share the bank, a fourth joins, one is killed, one is told to stop as a rolling
update tells it. Seen through REST and on the dashboard; balances and logs are exact, and the position history has every batch
once.

Leases are blobs in Azurite, PostgreSQL is reached by TCP, and the logs lie on a volume that all pods mount.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from containers import HOSTS, STATE, TOKEN, Image, Pod
from onlooker import Onlooker, loop_beside, onlooker
from plugins_cli import events_in, until
from plugins_hosts import PARTITIONS, PIPELINES, TIMING, Bank, Step
from plugins_node import blobs_served, free_port
from scenarios.chaos_wire import Wire

pytestmark = pytest.mark.timeout(1800)

START_S = 400
"""Four hosts start their Sparks on two cores, perhaps beside others."""
GRACE_S = 60
LEASES = PARTITIONS * len(PIPELINES)
PICTURE = Path(__file__).parents[2] / "build" / "dashboard" / "pods.png"
FIRST, STAYS, NEXT, JOINS = HOSTS
"""The first is killed and the next one stops in order: both after the fourth has joined."""


@contextmanager
def by_tcp(socket: str) -> Iterator[int]:
    """The port behind which a server's Unix socket is."""
    with loop_beside() as loop:
        wire = Wire(socket)
        asyncio.run_coroutine_threadsafe(wire.listen(), loop).result(10)
        yield wire.port
        loop.call_soon_threadsafe(wire.close)


@dataclass
class Day:
    """What was seen. took: seconds from what happened to when it showed. shown: what the dashboard then told of moves, newest
    first."""

    bank: Bank
    image: Image
    dashboard: Onlooker
    folder: Path
    environment: Mapping[str, str]
    pods: dict[str, Pod] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    shown: dict[str, list[str]] = field(default_factory=dict)
    hosts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    owned_by_next: dict[tuple[str, str], int] = field(default_factory=dict)
    code: int | None = None
    steps: list[Step] = field(default_factory=list)

    def start(self, *names: str) -> None:
        for name in names:
            self.pods[name] = self._started(name)
        for name in names:
            self.pods[name].until("/health/ready", START_S)

    def _started(self, name: str) -> Pod:
        port, settings = free_port(), self.folder / name
        settings.mkdir()
        (settings / "leasehold.yaml").write_text(yaml.safe_dump(self._settings(name, port)))
        (settings / "readers").write_text(TOKEN)
        output = self.folder / f"{name}.said"
        state = self.bank.directory
        return Pod(self.image, settings, port=port, output=output, host=name, state=state, environment=self.environment)

    def _settings(self, name: str, port: int) -> dict[str, Any]:
        """The bank's, with leases that pods can share, and every file on the volume."""
        settings: dict[str, Any] = yaml.safe_load(self.bank.settings_of(name).read_text())
        intervals = {key: settings["leases"][key] for key in ("duration_s", "renew_s", "balance_s")}
        settings["leases"] = {
            "type": "blob",
            "connection_string": "${LEASES_BLOB}",
            "container": "leases",
            **intervals,
        }
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

    def see(self, what: str, *names: str) -> None:
        """That these have all leases, evenly: as they tell, and as the dashboard shows."""
        self.took[what] = until(lambda: self.is_shared_by(*names), START_S, what)
        self.shown[what] = self.dashboard.sees(dict.fromkeys(names, LEASES // len(names)), START_S)

    def delivers(self, events: int = 100) -> None:
        before = self.bank.delivered()
        until(lambda: self.bank.delivered() > before + events, START_S, f"{events} more events delivered")

    def close(self) -> None:
        self.bank.close()
        for pod in self.pods.values():
            pod.end()


def _are_even(leases: list[dict[str, Any]], names: tuple[str, ...]) -> bool:
    parts = [[each for each in leases if each["pipeline"] == name] for name in PIPELINES]
    shares = [Counter(each["owner"] for each in part) for part in (leases, *parts)]
    counts = [[share[name] for name in names] for share in shares]
    return len(leases) == LEASES == sum(counts[0]) and all(max(each) - min(each) <= 1 for each in counts)


@pytest.fixture(scope="module")
def day(image: Image, tmp_path_factory: pytest.TempPathFactory, postgres_of_module: Any) -> Iterator[Day]:
    folder = tmp_path_factory.mktemp("pods")
    volume = folder / "volume"
    volume.mkdir()
    bank = Bank(volume, postgres_of_module)
    os.chown(volume, image.user, image.user)
    with by_tcp(postgres_of_module.socket) as port, blobs_served() as (blobs, _), onlooker() as dashboard:
        dsn = f"host=127.0.0.1 port={port} user=postgres dbname={postgres_of_module.name} sslmode=disable gssencmode=disable"
        day = Day(bank, image, dashboard, folder, {"LEASES_BLOB": blobs, "LEASEHOLD_POSTGRES_DSN": dsn})
        try:
            _lived(day)
            yield day
        finally:
            day.close()


def _lived(day: Day) -> None:
    bank = day.bank
    bank.write(40)
    day.start(FIRST, STAYS, NEXT)
    day.dashboard.open(f"http://127.0.0.1:{day.pods[STAYS].port}/", TOKEN)
    day.see("three share", FIRST, STAYS, NEXT)
    bank.keep_writing(20, every_s=0.5)
    day.delivers()
    day.start(JOINS)
    day.see("the fourth shares", *HOSTS)
    day.hosts["joined"] = day.pods[JOINS].items("/api/hosts")
    day.delivers()
    day.pods[FIRST].send(signal.SIGKILL)
    day.see("the dead one's leases are taken", STAYS, NEXT, JOINS)
    day.hosts["killed"] = day.pods[JOINS].items("/api/hosts")
    day.delivers()
    day.owned_by_next = {key: each["epoch"] for key, each in day.leases(JOINS).items() if each["owner"] == NEXT}
    day.pods[NEXT].send(signal.SIGTERM)
    day.see("the stopped one's leases are taken", STAYS, JOINS)
    day.code = day.pods[NEXT].ended(GRACE_S)
    day.delivers()
    bank.settle(START_S)
    day.steps = bank.steps()
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    day.dashboard.picture(PICTURE)


def test_every_pod_answers_for_the_group(day: Day) -> None:
    assert {each["name"] for each in day.hosts["joined"]} == set(HOSTS)
    assert [each["name"] for each in day.hosts["joined"] if each["this"]] == [JOINS]


def test_a_pod_that_was_killed_is_seen_to_be_dead(day: Day) -> None:
    assert {each["name"] for each in day.hosts["killed"] if each["live"]} == {STAYS, NEXT, JOINS}


def test_the_dashboard_of_one_pod_shows_what_moves_without_being_loaded_again(day: Day) -> None:
    assert day.dashboard.complaints == []
    joined, killed, stopped = (day.shown[what] for what in list(day.shown)[1:])
    assert any(move.endswith(f"→ {JOINS}") for move in joined), joined
    assert any(move.startswith(f"{FIRST} →") for move in Counter(killed) - Counter(joined)), killed
    assert any(move.startswith(f"{NEXT} →") for move in Counter(stopped) - Counter(killed)), stopped


def test_what_a_stopped_pod_owned_moves_once_and_before_it_would_expire(day: Day) -> None:
    assert day.code == 0, day.pods[NEXT].said
    assert day.owned_by_next
    now = day.leases(JOINS)
    assert {key: now[key]["epoch"] - epoch for key, epoch in day.owned_by_next.items()} == dict.fromkeys(
        day.owned_by_next, 1
    )
    assert day.took["the stopped one's leases are taken"] < TIMING.duration_s


def test_no_pod_but_the_killed_one_was_stolen_from(day: Day) -> None:
    for name in (STAYS, NEXT, JOINS):
        assert '"reason": "stolen"' not in day.pods[name].said
        assert '"reason": "lost"' not in day.pods[name].said


def test_balances_are_exact_and_no_batch_is_repeated_or_dropped(day: Day) -> None:
    day.bank.assert_exact()
    begun = Counter((step.partition, step.start) for step in day.steps)
    assert max(begun.values()) == 1
    assert {step.owner for step in day.steps} == set(HOSTS)


def test_every_transaction_is_in_both_logs_once(day: Day) -> None:
    for name in ("raw-event", "transformed-event"):
        events = events_in(day.bank.directory / name)
        assert sum(map(len, events.values())) == day.bank.written
