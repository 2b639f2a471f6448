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
import psycopg
import pyarrow as pa
import pytest
from patience import until
from plugins_cli import Command, Commands
from plugins_pg import Postgres
from prometheus_client.parser import text_string_to_metric_families

from leasehold.pipeline.connectors.log.store import Log
from leasehold.pipeline.publishing_writer import PUBLISHED_SCHEMA

pytestmark = pytest.mark.timeout(600)

PARTITIONS = ("p0", "p1", "p2", "p3")
EVERY_S = 0.2
APART_S_MAX = 1.0
SHARED_S = 1.5
"""How old the positions may be that a host answers by, with what it takes to answer: events may have been delivered since."""
BEAT_S = 2.88
"""How often owners report (docs/decisions/0021)."""
LATE_S = 7.0
"""How old a report may be if the lease is behind what is delivered: 6 seconds at most, and what it takes to answer."""
SETTINGS = """
leases: {{type: sqlite, path: state/leases.db{leases}}}
host: {{name: {host}}}
api: {{port: 0, metrics_partitions: 100}}
log: {{format: json}}
pipelines:
  - name: paced
    feed: {{type: log, path: state/paced}}
    batch_events_max: 5
    sink: {sink}
"""
SHORT = ", balance_s: 1"
PYTHON_SINK = '{type: python, handler: "paced:Handler", gets: table}'
POSTGRES_SINK = (
    "{type: postgres, dsn: '${LEASEHOLD_POSTGRES_DSN}',"
    " merge: 'INSERT INTO delivered SELECT partition, max(sequence) FROM batch GROUP BY partition"
    " ON CONFLICT (p) DO UPDATE SET s = excluded.s'}"
)
TABLES = """
CREATE TABLE delivered (p text PRIMARY KEY, s bigint NOT NULL);
CREATE TABLE fault (is_away boolean NOT NULL, slow_s float NOT NULL);
INSERT INTO fault VALUES (false, 0);
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE now fault%ROWTYPE;
BEGIN
    SELECT * INTO now FROM fault;
    IF now.is_away THEN RAISE EXCEPTION 'the destination is away'; END IF;
    PERFORM pg_sleep(now.slow_s);
    RETURN NULL;
END $$;
CREATE TRIGGER fail BEFORE INSERT ON delivered FOR EACH STATEMENT EXECUTE FUNCTION fail();
"""
HANDLER = """
import json, os, time
from leasehold import SinkUnavailable

import leasehold

class Handler(leasehold.Handler):

    def process(self, table, context):
        if os.path.exists("away"):
            raise SinkUnavailable("the destination is away")
        if os.path.exists("refuses"):
            raise ValueError("the destination refuses this")
        if os.path.exists("slow"):
            time.sleep(float(open("slow").read()))
        with open(f"new-{context.partition}", "w") as file:
            json.dump([context.lease.generation, table["sequence"][-1].as_py()], file)
        os.replace(f"new-{context.partition}", f"delivered-{context.partition}")

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

    sink, leases, lateness_s = PYTHON_SINK, SHORT, 0.0
    """lateness_s: how late others may know what an owner has delivered."""

    def __init__(self, paced: Paced, leasehold: Commands) -> None:
        self.paced = paced
        self.hosts: dict[str, Command] = {}
        self._truths: deque[tuple[float, float]] = deque()
        self._leasehold = leasehold
        (paced.folder / "paced.py").write_text(HANDLER)

    def start(self, name: str) -> None:
        (self.paced.folder / f"{name}.yaml").write_text(SETTINGS.format(host=name, sink=self.sink, leases=self.leases))
        command = self.hosts[name] = self._leasehold("run", f"{name}.yaml")
        until(lambda: command.found(r'"url": "(http://[^"]+)"'), "the API listens")

    def ask(self, name: str, path: str, method: str = "GET", **more: Any) -> httpx.Response:
        url = str(self.hosts[name].found(r'"url": "(http://[^"]+)"'))
        return httpx.request(method, url.rstrip("/") + path, timeout=20, **more)

    def owned(self, name: str) -> int:
        return int(self.ask(name, f"/api/leases?owner={name}").json()["total"])

    def switch(self, fault: str, *, on: bool, batch_s: float = 0.2) -> None:
        """batch_s: for how long the fault "slow" delays each batch."""
        path = self.paced.folder / fault
        if on:
            path.with_suffix(".new").write_text(str(batch_s))
            path.with_suffix(".new").rename(path)
        else:
            path.unlink()

    def compare(self, seconds: float, *, metrics: bool = True, may_be_unknown: bool = False) -> float:
        """Compare for so long what all hosts say. metrics: what they expose too. Returns the largest age that was true.

        may_be_unknown: for a moment, as by a host that has just started. It is waited for until one of them knows.
        """
        if may_be_unknown:
            until(lambda: any(map(self._knows, self.hosts)), "a host knows the lag")
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
                self._check("metrics", max(ages, default=None), before, lateness_s=0.0)
            if known:
                before = self._look()
                ages = [age for name in self.hosts for age in self._exposed(name, "leasehold_lag_seconds")]
                if ages or not may_be_unknown:
                    self._check("leasehold_lag_seconds", max(ages, default=None), before, grown_s=SHARED_S)
            time.sleep(0.2)
        assert known, "the lag in seconds was never known"
        return most

    def _knows(self, name: str) -> bool:
        return self.ask(name, "/api/lag?unit=seconds").status_code == 200

    def _exposed(self, name: str, metric: str = "leasehold_partition_lag_seconds") -> list[float]:
        """By default of each partition that the host owns, as it sees them at the scrape."""
        families = text_string_to_metric_families(self.ask(name, "/metrics").text)
        return [s.value for f in families if f.name == metric for s in f.samples]

    def _look(self) -> float:
        now, truth = time.monotonic(), self.paced.truth
        self._truths.append((now, truth))
        while self._truths[0][0] < now - SHARED_S - self.lateness_s:
            self._truths.popleft()
        return truth

    def _check(
        self, what: str, said: float | None, before: float, *, lateness_s: float | None = None, grown_s: float = 0.0
    ) -> None:
        """What was said must be no less than what was or is true, and no more than what was true a moment ago.

        What is known late must lie between what was true meanwhile. An event that had waited for longer than a heartbeat counts
        as waiting still. On a busy machine looks are rare, and until the next one an event may have waited on.

        grown_s: for how long an event that others have delivered may seem to wait, because a measurement is shared.
        """
        now, at = self._look(), time.monotonic()
        lateness_s = self.lateness_s if lateness_s is None else lateness_s
        lately = [(then, truth) for then, truth in self._truths if then >= at - SHARED_S - lateness_s]
        least = min(truth for _, truth in lately) if lateness_s else min(before, now)
        nexts = [*(then for then, _ in lately[1:]), at]
        most = max(
            truth + (at if lateness_s and truth > BEAT_S else after) - then
            for (then, truth), after in zip(lately, nexts, strict=True)
        )
        assert said is not None, f"{what}: unknown, and the truth is {before} to {now}"
        text = f"{what}: {said}, and the truth is {before} to {now}, lately {least} to {most}"
        assert least - APART_S_MAX <= said <= most + grown_s + APART_S_MAX, text

    def settle(self) -> None:
        until(lambda: self._look() < 1, "everything is delivered")


class KeptPositions(Paced):
    """What is delivered, by the destination."""

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        self.database = psycopg.connect(postgres.dsn, autocommit=True)
        self.database.execute(TABLES)
        super().__init__(folder)

    def close(self) -> None:
        super().close()
        self.database.close()

    def _delivered(self, partition: str) -> int:
        found = self.database.execute("SELECT s FROM delivered WHERE p = %s", (partition,)).fetchone()
        return 0 if found is None else int(found[0]) + 1


class KeepingGroup(Group):
    """Its sink keeps the positions, so that leases may be behind what is delivered."""

    sink, leases, lateness_s = POSTGRES_SINK, "", LATE_S

    def compare_dead(self, seconds: float, dead_at: float) -> None:
        """What the others say of a host that died then. What it delivered after its last report counts as waiting."""
        while time.monotonic() < dead_at + seconds and self.owned("a") < len(PARTITIONS):
            before = self.paced.truth
            said = [
                self.ask("a", "/api/lag?unit=seconds").json()["seconds"],
                *self._exposed("a", "leasehold_lag_seconds"),
            ]
            now, dead_s = self._look(), time.monotonic() - dead_at
            if dead_s > LATE_S and min(before, now) > 0:  # until then the others need not know
                text = f"{dead_s} s after its death: {said}, and the truth is {before} to {now}"
                assert all(before - APART_S_MAX <= each <= now + BEAT_S + 2 * APART_S_MAX for each in said), text
            time.sleep(0.2)


@pytest.fixture
def group(tmp_path: Path, leasehold: Commands) -> Iterator[Group]:
    (tmp_path / "state").mkdir()
    paced = Paced(tmp_path)
    try:
        yield Group(paced, leasehold)
    finally:
        paced.close()


def test_the_age_of_the_oldest_event_is_within_a_second_of_the_truth(group: Group) -> None:
    until(lambda: group.paced.truth > 4, "events wait")

    group.switch(
        "slow", on=True, batch_s=0.8
    )  # a fifth faster than events arrive, so that they wait until the lag is known
    group.start("a")
    assert group.compare(4, metrics=False, may_be_unknown=True) > 3
    group.switch("slow", on=False)
    group.start("b")
    until(lambda: group.owned("a") == group.owned("b") == 2, "the hosts share the leases")
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

    until(lambda: group.owned("b") == 2, "the hosts share the leases")
    os.killpg(group.hosts.pop("b").process.pid, signal.SIGKILL)
    assert group.compare(5, metrics=False) > 3
    until(lambda: group.owned("a") == 4, "the other host takes over")
    group.compare(2)
    group.settle()
    group.compare(2)


def test_the_age_is_known_in_time_with_a_sink_that_keeps_its_positions(
    tmp_path: Path, leasehold: Commands, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_POSTGRES_DSN", postgres.dsn)
    (tmp_path / "state").mkdir()
    paced = KeptPositions(tmp_path, postgres)
    try:
        group = KeepingGroup(paced, leasehold)
        check_kept_positions(group, paced)
    finally:
        paced.close()


def check_kept_positions(group: KeepingGroup, paced: KeptPositions) -> None:
    group.start("a")
    group.start("b")
    until(lambda: group.owned("a") == group.owned("b") == 2, "the hosts share the leases")
    group.settle()
    group.compare(LATE_S + 3)

    group.ask("a", "/api/pipelines/paced/pause", "POST", json={})
    assert group.compare(5, metrics=False, may_be_unknown=True) > 3
    paced.database.execute("UPDATE fault SET slow_s = 0.5")
    group.ask("b", "/api/pipelines/paced/resume", "POST", json={})
    group.compare(5, metrics=False, may_be_unknown=True)
    paced.database.execute("UPDATE fault SET slow_s = 0")
    group.settle()

    paced.database.execute("UPDATE fault SET is_away = true")
    assert group.compare(20, metrics=False, may_be_unknown=True) > 15
    paced.database.execute("UPDATE fault SET is_away = false")
    group.settle()
    group.compare(3.5, metrics=False)  # the lease may be behind for longer than the owner's report

    os.killpg(group.hosts.pop("b").process.pid, signal.SIGKILL)
    group.compare_dead(30, time.monotonic())
    until(lambda: group.owned("a") == 4, "the other host takes over")
    group.settle()
    group.compare(LATE_S + 3)
