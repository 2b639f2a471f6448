"""The age of the oldest event that is not delivered, beside the truth: hosts start, pause, fail, replay, and take over."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from plugins_cli import START_S, Command, Commands, until
from prometheus_client.parser import text_string_to_metric_families

from pipeline.connectors.log.store import Log
from pipeline.publishing_writer import PUBLISHED_SCHEMA

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]

PARTITIONS = ("p0", "p1", "p2", "p3")
EVERY_S = 0.2
APART_S_MAX = 1.0
SHARED_S = 1.5
"""How old the positions may be that a host answers by, with what it takes to answer: events may have been delivered since."""
SETTINGS = """
leases: {{type: sqlite, path: state/leases.db, duration_s: 10, renew_s: 3, balance_s: 1}}
host: {{name: {host}}}
api: {{port: 0, metrics_partitions: 100}}
log: {{format: json}}
pipelines:
  - name: paced
    feed: {{type: log, path: state/paced}}
    batch_events_max: 5
    sink: {{type: python, handler: "paced:Handler"}}
"""
HANDLER = """
import json, os, time
from leasehold import SinkUnavailable

class Handler:
    def open(self, context): pass

    def process(self, context, table):
        if os.path.exists("away"):
            raise SinkUnavailable("the destination is away")
        if os.path.exists("refuses"):
            raise ValueError("the destination refuses this")
        if os.path.exists("slow"):
            time.sleep(0.2)
        with open(f"new-{context.partition}", "w") as file:
            json.dump([context.generation, table["sequence"][-1].as_py()], file)
        os.replace(f"new-{context.partition}", f"delivered-{context.partition}")

    def close(self, context, reason): pass
"""


class Paced:
    """A log that gets an event in each partition every EVERY_S seconds, and what is delivered of it.

    generations: of the leases, where they were reset.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.generations = dict.fromkeys(PARTITIONS, 0)
        self._times: dict[str, list[float]] = {partition: [] for partition in PARTITIONS}
        self._log = Log(folder / "state" / "paced", now=lambda: self._now)
        self._now = datetime.now(UTC)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._append)
        self._log.prepare()
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._log.close()

    def _append(self) -> None:
        event = pa.Table.from_pylist([{"body": b"{}", "properties": []}], schema=PUBLISHED_SCHEMA)
        while not self._is_over.wait(EVERY_S):
            for partition in PARTITIONS:
                self._now = datetime.now(UTC)
                self._log.partition(partition, new=True).append(event)
                self._times[partition].append(self._now.timestamp())

    @property
    def truth(self) -> float:
        """Now minus the time of the first event that is not delivered."""
        firsts = [
            self._times[partition][count:] for partition in PARTITIONS if (count := self._delivered(partition)) >= 0
        ]
        return max((time.time() - waiting[0] for waiting in firsts if waiting), default=0.0)

    def _delivered(self, partition: str) -> int:
        path = self.folder / f"delivered-{partition}"
        generation, last = json.loads(path.read_text()) if path.exists() else (0, -1)
        return last + 1 if generation == self.generations[partition] else 0


class Group:
    """Hosts by name, and what they say beside the truth."""

    def __init__(self, paced: Paced, leasehold: Commands) -> None:
        self.paced = paced
        self.hosts: dict[str, Command] = {}
        self._truths: deque[tuple[float, float]] = deque()
        self._leasehold = leasehold
        (paced.folder / "paced.py").write_text(HANDLER)

    def start(self, name: str) -> None:
        (self.paced.folder / f"{name}.yaml").write_text(SETTINGS.format(host=name))
        command = self.hosts[name] = self._leasehold("run", f"{name}.yaml")
        until(lambda: command.found(r'"url": "(http://[^"]+)"'), START_S, "the API listens")

    def ask(self, name: str, path: str, method: str = "GET", **more: Any) -> httpx.Response:
        url = str(self.hosts[name].found(r'"url": "(http://[^"]+)"'))
        return httpx.request(method, url.rstrip("/") + path, timeout=20, **more)

    def owned(self, name: str) -> int:
        return int(self.ask(name, f"/api/leases?owner={name}").json()["total"])

    def switch(self, fault: str, *, on: bool) -> None:
        path = self.paced.folder / fault
        path.touch() if on else path.unlink()

    def compare(self, seconds: float, *, metrics: bool = True, may_be_unknown: bool = False) -> float:
        """Compare for so long what all hosts say. metrics: what they expose too. Returns the largest age that was true."""
        until_at, most, known = time.monotonic() + seconds, 0.0, 0
        while time.monotonic() < until_at:
            for name in self.hosts:
                before = self._look()
                answer = self.ask(name, "/api/lag?unit=seconds")
                if answer.status_code != 200:
                    assert may_be_unknown, answer.text
                    continue
                self._check(f"host {name}", answer.json()["seconds"], before)
                most, known = max(most, before), known + 1
            if metrics:
                before = self._look()
                ages = [age for name in self.hosts for age in self._exposed(name)]
                self._check("metrics", max(ages, default=None), before)
            time.sleep(0.2)
        assert known, "the lag in seconds was never known"
        return most

    def _exposed(self, name: str) -> list[float]:
        """Of each partition that the host owns, as it sees them at the scrape."""
        families = text_string_to_metric_families(self.ask(name, "/metrics").text)
        return [s.value for f in families if f.name == "leasehold_partition_lag_seconds" for s in f.samples]

    def _look(self) -> float:
        now, truth = time.monotonic(), self.paced.truth
        self._truths.append((now, truth))
        while self._truths[0][0] < now - SHARED_S:
            self._truths.popleft()
        return truth

    def _check(self, what: str, said: float | None, before: float) -> None:
        """What was said must be no less than what was or is true, and no more than what was true a moment ago."""
        now = self._look()
        lately = max(truth for _, truth in self._truths)
        assert said is not None, f"{what}: unknown, and the truth is {before} to {now}"
        text = f"{what}: {said}, and the truth is {before} to {now}, lately {lately}"
        assert min(before, now) - APART_S_MAX <= said <= lately + APART_S_MAX, text

    def settle(self) -> None:
        until(lambda: self.paced.truth < 1, 60, "everything is delivered")


@pytest.fixture
def group(tmp_path: Path, leasehold: Commands) -> Iterator[Group]:
    (tmp_path / "state").mkdir()
    paced = Paced(tmp_path)
    try:
        yield Group(paced, leasehold)
    finally:
        paced.close()


def test_the_age_of_the_oldest_event_is_within_a_second_of_the_truth(group: Group) -> None:
    until(lambda: group.paced.truth > 4, 20, "events wait")

    group.switch("slow", on=True)
    group.start("a")
    assert group.compare(4, metrics=False, may_be_unknown=True) > 3
    group.switch("slow", on=False)
    group.start("b")
    until(lambda: group.owned("a") == group.owned("b") == 2, 60, "the hosts share the leases")
    group.settle()
    group.compare(4)

    group.ask("a", "/api/pipelines/paced/pause", "POST", json={})
    assert group.compare(5, metrics=False) > 3
    group.ask("b", "/api/pipelines/paced/resume", "POST", json={})
    group.settle()

    group.switch("away", on=True)
    assert group.compare(5) > 3
    group.switch("away", on=False)
    group.settle()

    group.switch("refuses", on=True)
    assert group.compare(6, metrics=False) > 4
    group.switch("refuses", on=False)
    group.settle()

    group.switch("slow", on=True)
    lease = group.ask("a", "/api/leases/paced/p0")
    headers = {"If-Match": lease.headers["etag"]}
    for _ in range(50):  # the lease moves with every batch
        answer = group.ask("a", "/api/leases/paced/p0/continuation", "PUT", json={"to": "earliest"}, headers=headers)
        if answer.status_code != 412:
            break
        headers = {"If-Match": group.ask("a", "/api/leases/paced/p0").headers["etag"]}
    assert answer.status_code == 200, answer.text
    group.paced.generations["p0"] = answer.json()["after"]["generation"]
    assert group.compare(6, metrics=False) > 15
    group.switch("slow", on=False)
    group.settle()

    until(lambda: group.owned("b") == 2, 60, "the hosts share the leases")
    os.killpg(group.hosts.pop("b").process.pid, signal.SIGKILL)
    assert group.compare(5, metrics=False) > 3
    until(lambda: group.owned("a") == 4, 60, "the other host takes over")
    group.compare(2)
    group.settle()
    group.compare(2)
