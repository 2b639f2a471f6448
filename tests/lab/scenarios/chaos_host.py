"""`leasehold run` as a process that is meant to live on, with its Java, and a wire of its own to PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from lab.scenarios.chaos_wire import Wire

DATABASE = "bank"
ANSWER_S = 5


class Failed(NamedTuple):
    """Why a partition stands still. failures: how many in a row."""

    host: str
    partition: str
    failures: int
    error: str


class Host:
    """told: somebody has seen to it that it ends. is_frozen: by SIGSTOP, until the one who did it lets it go on.

    environment: what its settings need of it besides.
    """

    def __init__(self, name: str, directory: Path, wire: Wire, environment: Mapping[str, str]) -> None:
        self.name = name
        self._environment = environment
        self.wire = wire
        self.told = self.is_frozen = self._has_started = False
        self._log = directory / f"{name}.log"
        self._errors = directory / f"{name}.stderr"
        self._from = self._log.stat().st_size if self._log.exists() else 0
        self._process: asyncio.subprocess.Process | None = None
        self._family: set[psutil.Process] = set()

    async def start(self, settings: Path) -> None:
        leasehold = str(Path(sys.executable).with_name("leasehold"))
        with self._errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                leasehold,
                "run",
                str(settings),
                env={
                    **os.environ,
                    **self._environment,
                    "LEASEHOLD_POSTGRES_DSN": f"service={DATABASE}",
                    "PGSERVICEFILE": str(self._service()),
                },
                stderr=errors,
                start_new_session=True,
            )

    def _service(self) -> Path:
        """To the group all wires lead to one and the same place: the address is a part of what leases belong to."""
        path = self._log.with_suffix(".pgservice")
        told = {"host": "127.0.0.1", "port": self.wire.port, "user": "postgres", "dbname": DATABASE}
        lines = [f"{name}={value}" for name, value in {**told, "sslmode": "disable", "gssencmode": "disable"}.items()]
        path.write_text("\n".join([f"[{DATABASE}]", *lines, ""]))
        return path

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "not started"
        return self._process

    @property
    def is_up(self) -> bool:
        """There, and nobody has told it to end."""
        return self._process is not None and self._process.returncode is None and not self.told

    @property
    def has_started(self) -> bool:
        self._has_started = self._has_started or any(event["event"] == "host started" for event in self.events)
        return self._has_started

    @property
    def events(self) -> list[dict[str, Any]]:
        """What this process has logged; another one of its name may have done so before."""
        return events_in(self._log, self._from)

    def failures_of(self, role: str) -> list[Failed]:
        """Why partitions of a pipeline stand still, as REST tells it. A host's REST speaks for the whole group."""
        with suppress(ValueError):
            items = json.loads(self._get("/api/pipelines"))["items"]
            found = [each for item in items if item["name"] == role for each in item["failures"]]
            return [Failed(each["host"], each["partition"], each["failures"], each["error"]) for each in found]
        return []

    def _get(self, path: str) -> str:
        """Nothing if it does not answer."""
        url = next((event["url"] for event in self.events if "url" in event), None)
        if url is None:
            return ""
        with suppress(OSError), urllib.request.urlopen(url.rstrip("/") + path, timeout=ANSWER_S) as answer:
            return str(answer.read().decode())
        return ""

    @property
    def words(self) -> str:
        """The last that it said."""
        said = [str(event.get("what") or event["event"]) for event in self.events[-2:]]
        return " | ".join([*said, *self._errors.read_text().splitlines()[-4:]])

    def send(self, number: signal.Signals) -> None:
        self._note_family()
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill_java(self) -> bool:
        """Whether it had one."""
        self._note_family()
        java = [each for each in self._family if each.is_running() and each.name() == "java"]
        for each in java:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        return bool(java)

    async def ended(self) -> int:
        """Its exit code."""
        return await self.process.wait()

    async def end(self) -> None:
        """With all that it has started. Java has a session of its own."""
        if self._process is None:
            return
        self._note_family()
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        for each in self._family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        await self._process.wait()
        psutil.wait_procs(self._family, 10)

    def _note_family(self) -> None:
        if self.process.returncode is not None:
            return
        with suppress(psutil.NoSuchProcess):
            self._family |= set(psutil.Process(self.process.pid).children(recursive=True))


def events_in(log: Path, since: int = 0) -> list[dict[str, Any]]:
    """since: bytes to skip. A last line that is being written is left out."""
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_bytes()[since:].splitlines() if line.endswith(b"}")]
