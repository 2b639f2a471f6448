"""What connectors share: how long to wait, whether waiting is useless, and directories that outlive a loss of power."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from leasehold.common.clock import Backoff, retry_after_s
from pipeline.errors import FeedUnavailable

# How long a reader waits before it tries again, and when it has waited long enough to say so.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """first_s, longest_s: between tries, doubled each time, with jitter; `retry_after_s` where the source names one.

    patience_s: how long nothing may succeed before the error reaches the caller.
    """

    first_s: float = 0.1
    longest_s: float = 10.0
    patience_s: float = 30.0
    rng: random.Random = field(default_factory=random.Random)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic

    def jittered(self, seconds: float) -> float:
        return seconds * (0.5 + self.rng.random() / 2)


class Patience:
    """One reader's. `pause` after each failure, `served` after each success."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._failures = 0
        self._since = 0.0

    def served(self) -> None:
        self._failures = 0

    async def pause(self, error: FeedUnavailable) -> None:
        """Raises the error once patience is used up, or where waiting as long as the source asks for would use it up."""
        pauses = self._pauses
        now = pauses.monotonic()
        self._since = now if self._failures == 0 else self._since
        self._failures += 1
        at_least_s = retry_after_s(error) * (1 + pauses.rng.random() / 10)
        backoff = Backoff(first_s=pauses.first_s, max_s=pauses.longest_s)
        pause = backoff.pause_s(self._failures, pauses.rng.random(), at_least_s)
        if now + pause - self._since > pauses.patience_s:
            raise error
        await pauses.sleep(pause)


_NO_SUCH_NAME = tuple(getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, name))

_WRONG_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)


def is_of_path(error: BaseException | None) -> bool:
    """Whether a directory cannot be there: its path or its permissions have to change. A full disk may be freed."""
    return isinstance(error, OSError) and error.errno in _WRONG_PATH


def sync_directory(directory: Path) -> None:
    """Its entries outlive a loss of power from now on. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


async def check_unresolvable(host: str) -> bool:
    """Asks the resolver. A name server that is away is an outage, and not the name's fault.

    host: a name or a number, without a port.
    """
    return await asyncio.get_running_loop().run_in_executor(None, is_nowhere_at_once, host)


def is_nowhere_at_once(host: str) -> bool:
    """The same, in the caller's thread."""
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        return error.errno in _NO_SUCH_NAME
    return False
