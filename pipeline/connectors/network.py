"""Addresses and paths: whether it is useless to wait for one, and directories that survive a loss of power."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

from leasehold.common.addresses import is_nowhere_at_once

_WRONG_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)


def is_of_path(error: BaseException | None) -> bool:
    """Whether waiting does not help a directory: its path or permissions have to change. A full disk may be freed."""
    return isinstance(error, OSError) and error.errno in _WRONG_PATH


def sync_directory(directory: Path) -> None:
    """Make the directory's entries survive a loss of power. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


async def check_unresolvable(host: str) -> bool:
    """Whether the resolver knows that the host does not exist. It does not know that while its name server is away.

    host: a name or a number, without a port.
    """
    return await asyncio.get_running_loop().run_in_executor(None, is_nowhere_at_once, host)
