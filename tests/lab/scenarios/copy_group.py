"""A group of real hosts, `leasehold run` each, that copies files into an embedded log."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from lab.scenarios.host import Host

from leasehold.leases.lease import Lease

PIPELINE = "copy"
COPIED = "copied"
"""The log, in the group's directory."""


class CopyGroup:
    """A subclass defines `leases_settings` and `leases`. A host never has the name of an earlier one."""

    leases_settings: Mapping[str, Any]
    log_level = "info"
    poll_interval_s = 0.5

    def __init__(self, directory: Path, files: int, environment: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.environment = {**os.environ, **(environment or {})}
        self.files = [directory / f"events-{number:02}.jsonl" for number in range(files)]
        self.hosts: dict[str, Host] = {}
        self._names = (f"host-{n}" for n in count(1))

    def leases(self) -> list[Lease]:
        """As the store has them now."""
        raise NotImplementedError

    def start(self) -> str:
        """The new host's name."""
        name = next(self._names)
        file = self.directory / f"{name}.yaml"
        feed = {"type": "files", "path": "events-*.jsonl", "poll_interval_s": self.poll_interval_s}
        settings = {
            "leases": {**self.leases_settings},
            "host": {"name": name},
            "log": {"format": "json", "file": f"{name}.log", "level": self.log_level},
            "api": {"enabled": False},
            "pipelines": [{"name": PIPELINE, "feed": feed, "sink": {"type": "log", "path": COPIED}}],
        }
        file.write_text(yaml.safe_dump(settings))
        self.hosts[name] = Host(self, name, file, None, until_idle=False)
        return name

    def owners(self) -> Counter[str | None]:
        return Counter(lease.owner for lease in self.leases())

    def is_settled(self) -> bool:
        """Whether every host has its share."""
        owners = self.owners()
        shares = [owners[name] for name in self.hosts]
        return sum(shares) == owners.total() == len(self.files) and max(shares) - min(shares) <= 1

    def end(self) -> None:
        for host in self.hosts.values():
            host.end()
