"""This host's name: unique among all hosts of its group, and the same again after a restart.

A host that comes back under its name takes its leases back at once; under a new one it would wait for them to expire. So the
default is the machine's name (in Kubernetes the pod's), and processes that share a machine and a lease store count up:
`laptop`, `laptop-2`. A name that is set (`host.name`) is used as it is. Either way the process locks its name for as long as it
lives, however it ends. So the process that came first keeps it. A later one counts up, or is refused if its name is set.

Containers and machines do not see each other's locks: give each a name (`host.name: ${POD_NAME}`). If two of them have the same
one, `leasehold.leases.membership` decides.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, count
from pathlib import Path

from pydantic import SecretStr

from leasehold.service.config.leases import LeaseSettings
from leasehold.service.config.settings import HostSettings
from leasehold.service.errors import StartFailed

MACHINE_NAME_MAX = 120
"""Leaves room for a number within the 128 characters of a host name."""

CREDENTIALS = {"key", "identity", "ca_file"}
"""Settings of a lease store that do not identify it: hosts of one group may differ in them."""

_descriptors: set[int] = set()


@contextmanager
def host_name(
    host: HostSettings,
    leases: LeaseSettings,
    *,
    role: str = "",
    machine: str | None = None,
    folder: Path | None = None,
) -> Iterator[str]:
    """Reserve a name among the hosts on these leases until the context ends. Raises StartFailed if `host.name` is in use.

    role: a suffix, for a host that may run next to the one of these settings. machine, folder: default to this machine's.
    """
    with ExitStack() as held:
        if not leases.is_shared:
            yield next(_names(host, role, machine))
        else:
            yield _reserve_first(_names(host, role, machine), _group(leases), folder, held)


def _names(host: HostSettings, role: str, machine: str | None) -> Iterator[str]:
    """The names that this host may have, the best first."""
    if host.name is not None:
        return iter([host.name + role])
    name = re.sub(r"[^A-Za-z0-9._-]", "-", machine or socket.gethostname()).lstrip("._-")[:MACHINE_NAME_MAX] or "host"
    return chain([name + role], (f"{name}{role}-{number}" for number in count(2)))


def _group(leases: LeaseSettings) -> str:
    """A short text for the lease store: the same for all hosts on it, and a different one for every other container."""
    place = leases.model_dump(exclude={*LeaseSettings.model_fields, *CREDENTIALS})
    text = json.dumps(place, skipkeys=True, default=_secret_value)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _secret_value(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _reserve_first(names: Iterator[str], group: str, folder: Path | None, held: ExitStack) -> str:
    """The first name that no other process holds. Raises StartFailed if none is left."""
    refusal = ""
    for name in names:
        try:
            held.enter_context(_hold_lock(_lock_file(name, group, folder)))
        except BlockingIOError:
            refusal = (
                f"host.name is '{name}', and {_holder(_lock_file(name, group, folder))} on this machine runs under that name"
                " on the same leases: stop it, or set another host.name here (without host.name, a free name is chosen)"
            )
        except OSError:  # a read-only file system: a container of its own, as a rule
            return name
        else:
            return name
    raise StartFailed(refusal)


def _lock_file(name: str, group: str, folder: Path | None) -> Path:
    """Raises OSError."""
    return (folder or _own_folder()) / f"{name}@{group}.lock"


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of this file, with our process id in it. Raises BlockingIOError if another process holds it; OSError."""
    descriptor = _lock(path)
    _descriptors.add(descriptor)
    try:
        with suppress(OSError):  # a full disk: the lock holds without the id
            os.truncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        _descriptors.discard(descriptor)
        os.close(descriptor)


def _lock(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder removed the file between our open and our lock: lock the next one


def _holder(path: Path) -> str:
    """The process that holds this lock, according to its file."""
    with suppress(OSError):
        if (found := path.read_text(errors="replace")).isdecimal():
            return f"process {found}"
    return "another process"


def _own_folder() -> Path:
    """A folder that no other user can put anything into. Raises OSError."""
    folder = Path(tempfile.gettempdir()) / f"leasehold-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def _close_in_child() -> None:
    """A forked child would hold the name after its parent was killed."""
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()


os.register_at_fork(after_in_child=_close_in_child)
