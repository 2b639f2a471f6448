"""A process of a scenario, `leasehold run` above all: what it is told, what it says, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from patience import PATIENCE_S, Failed, until

from leasehold.pipeline.crash_point import VARIABLE

END_S = 2 * PATIENCE_S
"""On a machine that is busy with other things, too."""


@dataclass(frozen=True, slots=True)
class Batch:
    """As the API tells it. order: when it was delivered."""

    host: str
    partition: str
    epoch: int
    start: str | None
    to: str
    events: int
    order: str


class Premises(Protocol):
    """Where a host works: the directory of its log, and the environment of its process."""

    @property
    def directory(self) -> Path: ...

    @property
    def environment(self) -> dict[str, str]: ...


class Process:
    """A host, whatever program it is. command: its program and arguments; armed: its crash point."""

    def __init__(self, premises: Premises, name: str, command: Sequence[str], armed: str | None) -> None:
        self.name = name
        self.log = premises.directory / f"{name}.log"
        self._errors = premises.directory / f"{name}.stderr"
        environment = {**premises.environment, **({VARIABLE: armed} if armed else {})}
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(command, env=environment, stderr=errors, start_new_session=True)

    def ended(self, within_s: float = END_S) -> int:
        """Its exit code. Raises Failed."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"host {self.name} did not end within {within_s:g} s: {self.words}") from None

    def frozen(self) -> None:
        """Returns once it has stopped itself. Raises Failed where it ends instead; `--until-idle` ends it some time."""
        until(self._is_frozen, f"host {self.name} freezes")

    def _is_frozen(self) -> bool:
        found, status = os.waitpid(self.process.pid, os.WUNTRACED | os.WNOHANG)
        if found and not os.WIFSTOPPED(status):
            self.process.returncode = os.waitstatus_to_exitcode(status)
            raise Failed(f"the point was not reached: exit code {self.process.returncode}")
        return bool(found)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    @property
    def words(self) -> str:
        """The last that it said."""
        log = self.log.read_text().splitlines()[-3:] if self.log.exists() else []
        return " | ".join([*log, *self._errors.read_text().splitlines()[-3:]])


class Host(Process):
    """`leasehold run` with some of the pipelines."""

    def __init__(self, bank: Premises, name: str, settings: Path, armed: str | None, until_idle: bool) -> None:
        leasehold = str(Path(sys.executable).with_name("leasehold"))
        command = [leasehold, "run", str(settings), *(["--until-idle"] if until_idle else [])]
        super().__init__(bank, name, command, armed)

    def said(self, event: str) -> int:
        """How often it has logged that."""
        return self.log.read_text().count(f'"event": "{event}"') if self.log.exists() else 0

    # What its API tells

    @property
    def is_ready(self) -> bool:
        return self._url is not None and self._metric("leasehold_ready") == 1

    @property
    def buffer_bytes(self) -> float:
        """What it has read and not delivered."""
        return self._metric("leasehold_buffer_bytes")

    def leases_owned(self, role: str) -> int:
        return int(self._metric(f'leasehold_leases_owned{{pipeline="{role}"}}'))

    def batches(self, role: str) -> list[Batch]:
        """Its own ones, oldest first."""
        items = json.loads(self._get(f"/api/batches?pipeline={role}"))["items"]
        found = [
            Batch(item["host"], item["partition"], item["epoch"], item["from"], item["to"], item["events"], item["at"])
            for item in items
            if item["host"] == self.name
        ]
        return sorted(found, key=lambda batch: batch.order)

    def _metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self._get("/metrics"), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def _get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"{self._url}{path}", timeout=PATIENCE_S) as answer:
                return str(answer.read().decode())
        except OSError as error:
            raise Failed(f"host {self.name} does not answer {path}: {error}; {self.words}") from error

    @property
    def _url(self) -> str | None:
        found = re.search(r'"url": "(http[^"]+)"', self.log.read_text()) if self.log.exists() else None
        return found and found[1]
