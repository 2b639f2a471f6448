"""`leasehold demo --fail NAME`: one host of the bank fails in a process of its own, and the demo's host recovers from it.

The event generator, the stream processor and the view generator are hosts of one pipeline each. The hosts before the failing one
finish their work. The failing host is killed after it has stored a batch, and before it has checkpointed its position. Or it is
stopped with a batch in hand, and continues after its partitions have a new owner.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from leasehold.service.errors import ServiceError

PARTS = {"generate": "event-generator", "transform": "stream-processor", "balances": "view-generator"}
"""Pipeline -> the host that runs it alone, in the order of the stream."""
CRASH_POINT = "LEASEHOLD_CRASH_POINT"
LOOK_S = 0.1
BATCH_EVENTS = 100
"""Few, so that something is left to do when a part fails."""

FailureName = Literal["event-generator-crash", "stream-processor-crash", "view-generator-crash", "duplicated-consumer"]


class DemoFailed(ServiceError):
    """The demo did not finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFailure:
    """- `pipeline`: the one whose host fails. `armed`: its crash point.
    - `what`: what happens to the host, in words.
    """

    pipeline: str
    armed: str
    what: str

    @property
    def part(self) -> str:
        return PARTS[self.pipeline]

    @property
    def freezes(self) -> bool:
        return self.armed.endswith("SIGSTOP")


_KILLED = "was killed (SIGKILL) after it had stored a batch, and before it could checkpoint its position"
FAILURES: dict[FailureName, PlannedFailure] = {
    "event-generator-crash": PlannedFailure(pipeline="generate", armed="appended:2", what=_KILLED),
    "stream-processor-crash": PlannedFailure(pipeline="transform", armed="appended:2", what=_KILLED),
    "view-generator-crash": PlannedFailure(pipeline="balances", armed="committed:2", what=_KILLED),
    "duplicated-consumer": PlannedFailure(
        pipeline="transform",
        armed="before append:2:SIGSTOP",
        what="was stopped (SIGSTOP) with a batch in hand, and does not know that its leases expire",
    ),
}


@dataclass(frozen=True, slots=True)
class Bank:
    """directory: of the demo, with bank.yaml. stop: set when the user wants to stop."""

    directory: Path
    environment: Mapping[str, str]
    stop: asyncio.Event
    say: Callable[[str], None]

    @asynccontextmanager
    async def failed(self, failure: PlannedFailure) -> AsyncIterator[Victim]:
        """The failing host, killed or frozen. It is killed when the context exits. Raises DemoFailed."""
        for pipeline, part in PARTS.items():
            if pipeline == failure.pipeline:
                break
            self.say(f"{part}: runs pipeline {pipeline} in a process of its own, to its end")
            with self._started(pipeline, {}) as victim:
                if (code := await victim.changed()) != 0:
                    raise DemoFailed(f"{part} ended with exit code {code}: {victim.words}")
        self.say(f"{failure.part}: runs pipeline {failure.pipeline} in a process of its own")
        with self._started(failure.pipeline, {CRASH_POINT: failure.armed}) as victim:
            code = await victim.changed()
            if code != -(signal.SIGSTOP if failure.freezes else signal.SIGKILL):
                raise DemoFailed(
                    f"{failure.part} ended with exit code {code} before it could fail: use an empty directory, because nothing"
                    f" may be processed before ({victim.words})"
                )
            yield victim

    @contextmanager
    def _started(self, pipeline: str, environment: Mapping[str, str]) -> Iterator[Victim]:
        part = PARTS[pipeline]
        settings = yaml.safe_load((self.directory / "bank.yaml").read_text())
        mine = [each for each in settings["pipelines"] if each["name"] == pipeline]
        settings["pipelines"] = [{**each, "batch_events_max": BATCH_EVENTS} for each in mine]
        settings |= {"host": {"name": part}, "api": {"enabled": False}, "log": {"file": f"{part}.log"}}
        file = self.directory / f"{part}.yaml"
        file.write_text(yaml.safe_dump(settings))
        process = subprocess.Popen(  # noqa: S603  # this program
            [sys.executable, "-m", "leasehold", "run", "--until-idle", str(file)],
            env={**os.environ, **self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield Victim(process, self.directory / f"{part}.log", self.stop)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


class Victim:
    """A host in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, stop: asyncio.Event) -> None:
        self._process = process
        self._log = log
        self._stop = stop

    async def changed(self) -> int:
        """Wait until it ends or stops itself. Returns its exit code, or minus the signal. Raises DemoFailed if the user stops."""
        while (code := self._look()) is None and not self._stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), LOOK_S)
        if code is None or self._stop.is_set():
            raise DemoFailed("stopped before the failure was shown")
        return code

    def _look(self) -> int | None:
        """Its exit code, or minus the signal; None if nothing has changed."""
        found, status = os.waitpid(self._process.pid, os.WUNTRACED | os.WNOHANG)
        if not found:
            return None
        if os.WIFSTOPPED(status):
            return -os.WSTOPSIG(status)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    @property
    def words(self) -> str:
        """The last line of its log."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return lines[-1] if lines else f"{self._log} is empty"
