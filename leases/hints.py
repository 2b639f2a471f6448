"""Hints: reasons for another host to read the leases now, instead of at its next look.

Hints only make hosts act sooner. They may be lost, late or repeated, because every look shows the hosts' documents and the
bell, and those show when to read the leases (docs/protocol.md, S14). No safety rests on hints.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from leasehold.leases.errors import StoreError
from leasehold.leases.store import Hint, LeaseStore

HINTS_MAX = 32
"""If more different hints wait than this, one hint for all hosts replaces them."""


class Hints:
    """Hints of this process for other hosts. Those that are added while others are being sent follow together, each once."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._waiting: dict[Hint, None] = {}
        self._added = asyncio.Event()

    def add(self, hint: Hint) -> None:
        self._waiting[hint] = None
        self._added.set()

    async def send(self) -> None:
        """Send the hints that wait. If this raises StoreUnavailable or StoreAmbiguous, they are lost."""
        hints, self._waiting = tuple(self._waiting), {}
        self._added.clear()
        if hints:
            await self._store.notify(hints if len(hints) <= HINTS_MAX else (Hint(),))

    async def keep_sending(self) -> None:
        """Never returns. A hint that cannot be sent is dropped: hosts look soon."""
        while True:
            await self._added.wait()
            with suppress(StoreError):
                await self.send()
