"""This host's name: its own among all that run now, and the same again after a restart.

A host that comes back under its name takes its leases back at once; under a new one it would wait for them to expire. So the
default is the machine's name (in Kubernetes the pod's), and processes that share a machine count up: `laptop`, `laptop-2`. Each
holds a lock on its number for as long as it lives, however it ends.

Two containers on one machine's network share its name, but no locks: give them names (`host.name: ${POD_NAME}`). Where they
meet, both report it.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from service.settings import HostSettings

MACHINE_NAME_MAX = 120
"""Leaves room for a number within the 128 characters of a host name."""


@contextmanager
def host_name(settings: HostSettings, *, machine: str | None = None, folder: Path | None = None) -> Iterator[str]:
    """The name, which is this process's until the context ends. machine, folder: this machine's, where not given."""
    if settings.name is not None:
        yield settings.name
        return
    name = re.sub(r"[^A-Za-z0-9._-]", "-", machine or socket.gethostname()).lstrip("._-")[:MACHINE_NAME_MAX] or "host"
    with ExitStack() as held:
        try:
            number = held.enter_context(_number(name, folder or _own_folder()))
        except OSError:  # a read-only file system: a container of its own, as a rule
            number = 1
        yield name if number == 1 else f"{name}-{number}"


@contextmanager
def _number(name: str, folder: Path) -> Iterator[int]:
    """The lowest number that no other process holds. Raises OSError."""
    for number in count(1):
        descriptor = os.open(folder / f"{name}-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            yield number
        finally:
            os.close(descriptor)
        return


def _own_folder() -> Path:
    """A folder that no other user can put anything into. Raises OSError."""
    folder = Path(tempfile.gettempdir()) / f"leasehold-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder
