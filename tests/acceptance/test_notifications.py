"""Hosts that share, sleep past their leases, die and stop: their notifications agree with their logs and with the leases."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from patience import until
from plugins_cli import Command, Commands, leases_in
from plugins_hosts import freeze

PARTITIONS = 6
SETTINGS = """
leases: {type: sqlite, path: leases.db, balance_s: 1, duration_s: 15}
host: {name: "${HOST}"}
api: {enabled: false}
log: {format: json, file: "${HOST}.log"}
notifications: "${NOTIFIED}"
pipelines:
  - name: words
    feed: {type: files, path: "words-*.jsonl"}
    sink: {type: log, path: words}
    batch_age_max_s: 0.2
"""
WATCH = """
import json, os, threading
from dataclasses import asdict
from leasehold import Notifications

def note(event):
    line = json.dumps({"event": type(event).__name__, **asdict(event)}, default=str)
    with open(f"{event.host}.notes", "a") as notes:
        print(line, file=notes, flush=True)

async def note_on_the_loop(self, event):
    note(event)

class Plain(Notifications):
    def on_lease_acquired(self, event): note(event)
    def on_lease_released(self, event): note(event)
    def on_lease_lost(self, event): note(event)
    def on_batch_delivered(self, event): note(event)

class Coroutines(Notifications):
    on_lease_acquired = on_lease_released = on_lease_lost = on_batch_delivered = note_on_the_loop

class Blocked(Plain):
    def on_lease_acquired(self, event):
        note(event)
        threading.Event().wait()
"""
ENDS = ("LeaseReleased", "LeaseLoss")


class Group:
    def __init__(self, directory: Path, leasehold: Commands) -> None:
        self.directory = directory
        self.leasehold = leasehold
        (directory / "hosts.yaml").write_text(SETTINGS)
        (directory / "watch.py").write_text(WATCH)
        for number in range(PARTITIONS):
            (directory / f"words-{number}.jsonl").write_text('{"word": "apple"}\n' * 3)

    def run(self, name: str, notified: str) -> Command:
        return self.leasehold("run", "hosts.yaml", env={"HOST": name, "NOTIFIED": f"watch:{notified}"})

    def append(self) -> None:
        for number in range(PARTITIONS):
            with (self.directory / f"words-{number}.jsonl").open("a") as words:
                words.write('{"word": "cherry"}\n')

    def lines(self, file: str) -> list[dict[str, Any]]:
        path = self.directory / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def tenures_in_notes(self, name: str) -> dict[str, list[tuple[str, int]]]:
        """partition -> when its tenures began and how they ended, with their epochs."""
        tenures: dict[str, list[tuple[str, int]]] = {}
        for line in self.lines(f"{name}.notes"):
            if line["event"] in ("LeaseAcquired", *ENDS):
                what = "acquired" if line["event"] == "LeaseAcquired" else line["reason"]
                tenures.setdefault(line["partition"], []).append((what, line["epoch"]))
        return tenures

    def tenures_in_log(self, name: str) -> dict[str, list[tuple[str, int]]]:
        words = {"released": "stopped"}
        tenures: dict[str, list[tuple[str, int]]] = {}
        for line in self.lines(f"{name}.log"):
            if line["event"] == "lease acquired":
                tenures.setdefault(line["partition"], []).append(("acquired", line["epoch"]))
            elif line["event"] == "lease released":
                reason = words.get(line["reason"], line["reason"])
                tenures.setdefault(line["partition"], []).append((reason, line["epoch"]))
        return tenures

    @property
    def shares(self) -> Counter[str | None]:
        return Counter(lease.owner for lease in leases_in(self.directory / "leases.db", "words"))

    def wait_for_shares(self, **shares: int) -> None:
        until(lambda: self.shares == shares, f"shares of {shares}", self.seen)

    def seen(self) -> str:
        logs = [f"{log}:\n{log.read_text()[-3000:]}" for log in sorted(self.directory.glob("*.log"))]
        return "\n".join([str(self.shares), *logs])


@pytest.fixture
def group(tmp_path: Path, leasehold: Commands) -> Group:
    return Group(tmp_path, leasehold)


def test_notifications_agree_with_logs_and_leases_while_hosts_sleep_die_and_stop(group: Group) -> None:
    a = group.run("a", "Coroutines")
    group.wait_for_shares(a=PARTITIONS)
    b = group.run("b", "Plain")
    group.wait_for_shares(a=3, b=3)
    freeze(a.process, group.directory, "a")
    group.wait_for_shares(b=PARTITIONS)
    a.process.send_signal(signal.SIGCONT)
    group.append()
    group.wait_for_shares(a=3, b=3)
    b.process.send_signal(signal.SIGKILL)
    b.process.wait()
    group.wait_for_shares(a=PARTITIONS)
    group.append()
    until(lambda: sum(x["events"] for x in group.lines("a.notes") if "events" in x) >= PARTITIONS, "batches")
    a.interrupt()
    assert a.ended() == 0, a.err

    assert group.tenures_in_notes("a") == group.tenures_in_log("a")
    for partition, logged in group.tenures_in_log("b").items():
        noted = group.tenures_in_notes("b")[partition]
        assert logged[: len(noted)] == noted, "a host that is killed may leave its last events behind"
    reasons = Counter(line["reason"] for line in group.lines("a.notes") if line["event"] in ENDS)
    assert (reasons["stolen"], reasons["stopped"]) == (3, PARTITIONS)
    assert {line["taken_by"] for line in group.lines("a.notes") if line["event"] == "LeaseLoss"} == {"b"}
    last = {line["partition"]: line for line in group.lines("a.notes") if line["event"] == "LeaseReleased"}
    for lease in leases_in(group.directory / "leases.db", "words"):
        ended = last[lease.partition]
        assert (ended["epoch"], ended["continuation"]) == (lease.epoch, lease.continuation)
    batches = [line for name in "ab" for line in group.lines(f"{name}.notes") if line["event"] == "BatchDelivered"]
    assert sum(batch["events"] for batch in batches) <= PARTITIONS * 5
    ends = {(batch["partition"], batch["to"]) for batch in batches}
    assert len(ends) == len(batches), "no batch is delivered twice"
    for name in "ab":
        assert not [line for line in group.lines(f"{name}.log") if line["event"].startswith("notification")]


def test_a_callback_that_blocks_for_ever_delays_neither_a_handoff_nor_a_stop(group: Group) -> None:
    a = group.run("a", "Blocked")
    group.wait_for_shares(a=PARTITIONS)
    b = group.run("b", "Plain")
    group.wait_for_shares(a=3, b=3)
    a.interrupt()
    assert a.ended() == 0, a.err
    group.wait_for_shares(b=PARTITIONS)
    assert len(group.lines("a.notes")) == 1
    (dropped,) = [line for line in group.lines("a.log") if line["event"] == "notifications dropped"]
    tenures = sum(map(len, group.tenures_in_log("a").values()))
    assert dropped["waits_for"] == "on_lease_acquired"
    assert dropped["count"] >= tenures
    b.interrupt()
    assert b.ended() == 0, b.err
