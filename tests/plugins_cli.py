"""The command `leasehold`, run as users run it: as processes, whose output, exit codes and remains tests look at."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest
from patience import PATIENCE_S

from leasehold.leases.document import decode_lease, lease_prefix
from leasehold.leases.lease import Lease
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.log import LogChangeFeed

LEASEHOLD = str(Path(sys.executable).with_name("leasehold"))


def _heed_interrupts() -> None:
    """A shell that runs tests in the background ignores interrupts, and its descendants would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Command:
    """`leasehold ARGUMENTS` as a process of its own, in a session of its own, so that what it leaves behind can be told."""

    def __init__(
        self, *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None, program: str = LEASEHOLD
    ) -> None:
        self.process = subprocess.Popen(
            [program, *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONFAULTHANDLER": "1", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )
        self._family: set[psutil.Process] = set()
        self._out: list[str] = []
        self._err: list[str] = []
        self._readers = [
            threading.Thread(target=lines.extend, args=(stream,), daemon=True)
            for lines, stream in ((self._out, self.process.stdout), (self._err, self.process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def out(self) -> str:
        return "".join(self._out)

    @property
    def err(self) -> str:
        return "".join(self._err)

    def found(self, pattern: str) -> str | None:
        """What the group of `pattern` matches in what it has said so far."""
        match = re.search(pattern, self.out + self.err)
        return match and match[1]

    def interrupt(self) -> None:
        """As Ctrl-C in a terminal: every process of the foreground group gets it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self, within_s: float = PATIENCE_S) -> int:
        """Its exit code. Where it does not end, what each of its threads is at is told."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # for faulthandler
            self._readers[1].join(PATIENCE_S)
            pytest.fail(f"has not ended within {within_s:g} s: {self.process.args}\n{self.out}{self.err}")
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code

    def has_java(self) -> bool:
        """Whether its Spark has been started; what it has started so far is noted for `left_behind`."""
        with suppress(psutil.NoSuchProcess):
            self._family |= set(psutil.Process(self.process.pid).children(recursive=True))
        return any("org.apache.spark" in told for told in _told(self._family))

    def left_behind(self) -> list[str]:
        """Processes of its session that are still there, and those that `has_java` noted (Java has its own session)."""
        return _told({*self._family, *filter(self._is_of_session, psutil.process_iter())})

    def _is_of_session(self, process: psutil.Process) -> bool:
        try:
            return os.getsid(process.pid) == self.process.pid
        except ProcessLookupError:
            return False

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)


def _told(processes: Iterable[psutil.Process]) -> list[str]:
    """The command lines of those that are there."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found


class Commands(Protocol):
    def __call__(
        self, *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Command:
        """Starts `leasehold ARGUMENTS`, in the test's directory where not told otherwise."""
        ...


@pytest.fixture
def leasehold(tmp_path: Path) -> Iterator[Commands]:
    yield from _started_in(tmp_path, LEASEHOLD)


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Commands]:
    """`python ARGUMENTS`, likewise."""
    yield from _started_in(tmp_path, sys.executable)


def _started_in(folder: Path, program: str) -> Iterator[Commands]:
    commands: list[Command] = []

    def start(*arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Command:
        commands.append(Command(*arguments, cwd=cwd or folder, env=env, program=program))
        return commands[-1]

    yield start
    for command in commands:
        command.end()


def leases_in(file: Path, *pipelines: str) -> list[Lease]:
    async def read() -> list[Lease]:
        store = SqliteStore(file)
        try:
            documents = [document for name in pipelines for document in await store.list(lease_prefix(name))]
        finally:
            await store.close()
        return [decode_lease(document.id, document.body) for document in documents]

    return asyncio.run(read())


def _body(row: dict[str, Any]) -> Any:
    return json.loads(row["body"])


def events_in(log: Path, told: Callable[[dict[str, Any]], Any] = _body) -> dict[str, list[Any]]:
    """partition -> its events in an embedded log, as `told` tells each row: by default their bodies, which are JSON."""

    async def read() -> dict[str, list[Any]]:
        feed = LogChangeFeed(log)
        try:
            return {found.name: await bodies(feed, found.name) for found in await feed.partitions()}
        finally:
            await feed.close()

    async def bodies(feed: LogChangeFeed, partition: str) -> list[Any]:
        latest, found = await feed.latest(partition), []
        if latest is not None:
            async with aclosing(feed.open(partition, None)) as pages:
                async for page in pages:
                    found += [told(row) for row in page.events.to_pylist()]
                    if feed.compare(page.to, latest) >= 0:  # somebody may have written since
                        break
        return found

    return asyncio.run(read()) if log.exists() else {}
