"""A directory in which hosts of a scenario run, on leases in SQLite, and how they are started and ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.scenarios.grounds import is_locked
from lab.scenarios.host import Host, Process
from patience import Failed
from plugins_cli import leases_in

from leasehold.leases.lease import Lease

TESTS = Path(__file__).parents[2]
LEASES = {"type": "sqlite", "path": "leases.db", "duration_s": 6, "balance_s": 1, "call_timeout_s": 3}


class HostRoom:
    """Implements scenarios.cases.Stage. A subclass defines `settings`."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        paths = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
        self.environment = {**os.environ, **paths, **environment}
        self._hosts: set[Host] = set()
        self._is_closed = False

    def settings(self, host: str) -> Path:
        """The file with the settings of a host, written now."""
        raise NotImplementedError

    @contextmanager
    def running(self, name: str, *roles: str, armed: str | None = None) -> Iterator[Host]:
        if self._is_closed:
            raise Failed("told to end")
        host = Host(self, name, self.settings(name), armed, until_idle=True)
        self._hosts.add(host)
        try:
            yield host
        finally:
            host.end()
            self._hosts.discard(host)

    def see_end(self, host: Process) -> None:
        if (code := host.ended()) != 0:
            raise Failed(f"host {host.name} ended with {code}: {host.words}")

    def leases(self, role: str) -> list[Lease]:
        return leases_in(self.directory / "leases.db", role)

    def locked(self) -> list[str]:
        return ["leases.db"] if is_locked(self.directory / "leases.db") else []

    def close(self) -> None:
        """Its hosts end, and no other starts."""
        self._is_closed = True
        for host in list(self._hosts):
            host.end()
