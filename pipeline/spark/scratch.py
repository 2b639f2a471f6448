"""Directories for Spark's shuffles and blocks, removed with their process, or by the next start if it was killed.

Each directory holds a file that its process keeps locked, and the JVM with it. The lock says whether the directory is in use;
the process id in its name is for people, because another process may have it tomorrow.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PREFIX = "leasehold-spark-"
_NAME = re.compile(re.escape(PREFIX) + r"\d+-\w+")
_LOCK = "lock"


@dataclass(frozen=True, slots=True)
class Scratch:
    """lock: the descriptor that holds the lock. A child that inherits it holds the lock as well."""

    path: Path
    lock: int

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def make_scratch(parent: str | None = None) -> Scratch:
    """parent: the directory for temporary files, if not given. Raises OSError."""
    folder = Path(parent or tempfile.gettempdir())
    remove_abandoned(folder)
    # It gets its name once it is locked: under that name, a directory without a lock would look abandoned.
    hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}{os.getpid()}-", dir=folder))
    lock = os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return Scratch(hidden.rename(hidden.with_name(hidden.name[1:])), lock)


def remove_abandoned(folder: Path) -> None:
    """Remove this user's directories that no process uses. Anything else of such a name stays, and so does what cannot go."""
    with suppress(OSError), os.scandir(folder) as found:
        for path in [Path(each.path) for each in found if _NAME.fullmatch(each.name)]:
            with suppress(OSError), _held(path):
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold the lock of a directory of ours. Raises OSError if it is not ours, is a link, or is in use."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW, dir_fd=folder)
        try:
            if os.fstat(folder).st_uid != os.getuid():
                raise PermissionError(f"{path} belongs to another user")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(lock)
    finally:
        os.close(folder)
