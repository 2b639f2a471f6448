"""The code of the previous release, built from its commit, and groups in which its hosts and new ones meet.

The wheel is built once and unpacked in build/releases/COMMIT. Hosts of that release run with the Python and the packages of
.venv, and with these modules before ours.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from lab.scenarios.chaos_host import events_in
from patience import Failed, until

from leasehold.leases.document import decode_lease, lease_prefix
from leasehold.leases.lease import Lease
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.log.feed import Forgotten, LogReader

COMMIT = "e6e9e0eda6a8430b645bb4fec3eaddf1d3521896"
"""Release 0.2.0, without sessions."""
TESTS = Path(__file__).parents[2]
ROOT = TESTS.parent
PACKAGES = ("leasehold", "leases", "pipeline", "service")
PIPELINE = "copy"
FILES = 6
WRITTEN_EVERY_S = 0.1
SEEN_EVERY_S = 0.2
RUN = "from leasehold.service.__main__ import main; main()"


def unpacked() -> Path:
    """The directory with that release's packages. Raises Failed."""
    place = ROOT / "build/releases" / COMMIT
    if place.exists():
        return place
    archive = subprocess.run(["git", "archive", "--format=zip", COMMIT], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise Failed(
            f"commit {COMMIT} (release 0.2.0) is not in this clone ({archive.stderr.decode().strip()}): fetch the whole history,"
            " with `git fetch --unshallow`, or in a workflow with `fetch-depth: 0` of actions/checkout"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as directory:
        source, modules = Path(directory) / "source", Path(directory) / "modules"
        with zipfile.ZipFile(io.BytesIO(archive.stdout)) as packed:
            packed.extractall(source)
        with zipfile.ZipFile(_built(source)) as wheel:
            wheel.extractall(modules)
        with suppress(FileExistsError, OSError):  # another process was quicker
            modules.rename(place)
    return place


def _built(source: Path) -> Path:
    """The wheel. Without the network, if the build backend was fetched before."""
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "build", "--quiet", "--wheel", "--out-dir", str(source / "dist")]
    done = subprocess.run([*command, "--offline"], cwd=source, capture_output=True, text=True, check=False)
    if done.returncode:
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"the wheel of release 0.2.0 cannot be built: {done.stderr}")
    (wheel,) = (source / "dist").glob("*.whl")
    return wheel


def environment(modules: Path | None) -> dict[str, str]:
    """modules: of a release; None for the code of this tree."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "PYTHONPATH": str(modules or TESTS)}


def imported_from(modules: Path | None, directory: Path) -> set[Path]:
    """Where a process of that release finds our packages."""
    code = f"import {', '.join(PACKAGES)}; print(*[x.__path__[0] for x in ({', '.join(PACKAGES)})], sep='\\n')"
    found = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=directory,
        env=environment(modules),
        capture_output=True,
        text=True,
        check=True,
    )
    return {Path(line).parent for line in found.stdout.splitlines()}


class Host:
    """A process with the pipeline. modules: those of a release; None for the code of this tree, with sessions."""

    def __init__(self, bank: Bank, name: str, modules: Path | None) -> None:
        self.name = name
        self.is_old = modules is not None
        self.log = bank.directory / f"{name}.log"
        self._errors = bank.directory / f"{name}.stderr"
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", RUN, "run", str(bank.settings_of(name))],
                cwd=bank.directory,
                env=environment(modules),
                stderr=errors,
                start_new_session=True,
            )

    def said(self, event: str) -> list[dict[str, Any]]:
        return [each for each in events_in(self.log) if each["event"] == event]

    @property
    def words(self) -> str:
        """The last that it said."""
        said = [str(event) for event in events_in(self.log)[-3:]]
        return " | ".join([*said, *self._errors.read_text().splitlines()[-3:]])

    def stop(self) -> int:
        """Its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


@dataclass
class Seen:
    """What an observer of the lease store saw. early: leases that sessions judged while an old host lived.

    ownerless_s: the longest time that a lease had no live owner.
    """

    early: list[str] = field(default_factory=list)
    ownerless_s: dict[str, float] = field(default_factory=dict)
    looks: int = 0


class Bank:
    """Files that grow, copied into a log exactly once, by hosts over one lease container in SQLite."""

    def __init__(self, directory: Path, intervals: Mapping[str, float]) -> None:
        self.directory = directory
        self.hosts: dict[str, Host] = {}
        self.seen = Seen()
        self.is_rolling = True
        self._intervals = dict(intervals)
        self._written = Counter[int]()
        self._writes, self._ends = threading.Event(), threading.Event()
        self._tasks = [threading.Thread(target=each, daemon=True) for each in (self._keep_writing, self._keep_looking)]
        for number in range(FILES):
            (directory / f"events-{number}.jsonl").touch()
        for task in self._tasks:
            task.start()

    def settings_of(self, host: str) -> Path:
        settings = {
            "leases": {"path": "leases.db", **self._intervals},
            "host": {"name": host},
            "log": {"format": "json", "file": f"{host}.log"},
            "api": {"enabled": False},
            "pipelines": [
                {
                    "name": PIPELINE,
                    "feed": {"type": "files", "path": "events-*.jsonl"},
                    "sink": {"type": "log", "path": "copied"},
                }
            ],
        }
        path = self.directory / f"{host}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    # Hosts

    def start(self, name: str, modules: Path | None = None) -> Host:
        """Returns once it has started. Raises Failed."""
        host = self.hosts[name] = Host(self, name, modules)
        try:
            until(lambda: host.said("host started"), f"host {name} starts")
        except Failed as error:
            raise Failed(f"{error}: {host.words}") from None
        return host

    def alive(self) -> dict[str, Host]:
        return {name: host for name, host in self.hosts.items() if host.process.poll() is None}

    def close(self) -> None:
        self._ends.set()
        for host in self.hosts.values():
            host.kill()
        for task in self._tasks:
            task.join(10)

    # Leases

    def leases(self) -> dict[str, Lease]:
        return {lease.partition: lease for lease in asyncio.run(self._read_leases())}

    async def _read_leases(self) -> list[Lease]:
        store = SqliteStore(self.directory / "leases.db")
        try:
            return await _leases_in(store)
        finally:
            await store.close()

    def documents(self, prefix: str) -> dict[str, dict[str, Any]]:
        async def read() -> dict[str, dict[str, Any]]:
            store = SqliteStore(self.directory / "leases.db")
            try:
                return {stored.id: json.loads(stored.body) for stored in await store.list(prefix)}
            finally:
                await store.close()

        return asyncio.run(read())

    def is_shared(self, *names: str) -> bool:
        """By all of these hosts, and by no other."""
        owners = Counter(lease.owner for lease in self.leases().values())
        return sum(owners.values()) == FILES and owners.keys() == {*names}

    def _keep_looking(self) -> None:
        asyncio.run(self._look())

    async def _look(self) -> None:
        """Until the end."""
        store: SqliteStore | None = None
        without: dict[str, float] = {}
        while not self._ends.wait(SEEN_EVERY_S):
            if store is None and not (self.directory / "leases.db").exists():
                continue
            store = store or SqliteStore(self.directory / "leases.db")
            before = {name for name, host in self.alive().items() if host.is_old}
            leases = await _leases_in(store)
            alive = self.alive()
            old = before & alive.keys()
            now = time.monotonic()
            for lease in leases:
                if self.is_rolling and lease.by_session and old:
                    self.seen.early.append(f"{lease.partition} of '{lease.owner}' while {sorted(old)} lived")
                if lease.owner in alive or not alive or not self.is_rolling:
                    without.pop(lease.partition, None)
                    continue
                for_s = now - without.setdefault(lease.partition, now)
                self.seen.ownerless_s[lease.partition] = max(self.seen.ownerless_s.get(lease.partition, 0.0), for_s)
            self.seen.looks += 1
        if store is not None:
            await store.close()

    # Events

    def write(self) -> None:
        """From now on, until `settle`."""
        self._writes.set()

    def settle(self) -> None:
        """Write no more, and see everything delivered. Raises Failed."""
        self._writes.clear()
        time.sleep(2 * WRITTEN_EVERY_S)  # the line that is being written
        until(lambda: self.delivered() >= self.written, f"{self.written} events are delivered")

    @property
    def written(self) -> int:
        return self._written.total()

    def _keep_writing(self) -> None:
        while not self._ends.wait(WRITTEN_EVERY_S):
            if self._writes.is_set():
                self._append()

    def _append(self) -> None:
        for number in range(FILES):
            with (self.directory / f"events-{number}.jsonl").open("a") as file:
                file.write(json.dumps({"file": number, "n": self._written[number]}) + "\n")
            self._written[number] += 1

    def delivered(self) -> int:
        return sum(map(len, self.arrived().values()))

    def arrived(self) -> dict[int, list[int]]:
        """File -> the numbers of its events, in the order of the log."""
        found = defaultdict[int, list[int]](list)
        if (self.directory / "copied").exists():
            for body in _bodies(LogReader(self.directory / "copied")):
                found[body["file"]].append(body["n"])
        return found

    def assert_exact(self) -> None:
        """0 lost, 0 duplicated, in order. Raises Failed."""
        arrived = self.arrived()
        for number in range(FILES):
            if arrived[number] != list(range(self._written[number])):
                lost = {*range(self._written[number])} - {*arrived[number]}
                twice = [n for n, count in Counter(arrived[number]).items() if count > 1]
                raise Failed(f"file {number}: lost {sorted(lost)[:9]}, duplicated {twice[:9]}, or out of order")


async def _leases_in(store: SqliteStore) -> list[Lease]:
    return [decode_lease(stored.id, stored.body) for stored in await store.list(lease_prefix(PIPELINE))]


def _bodies(reader: LogReader) -> Iterable[dict[str, int]]:
    for partition in reader.partitions():
        for found in reader.read(partition, 0):
            if isinstance(found, Forgotten):
                raise Failed(f"the log has dropped events of partition {partition}")
            yield from map(json.loads, found["body"].to_pylist())
