"""Hints: why another host should read the leases now, instead of at its next look.

Hints only make hosts sooner. They may be lost, late or repeated, because hosts read the leases anyway: at every look, as
sessions and the bell show (docs/protocol.md, S14). No safety rests on one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from leasehold.leases.errors import StoreError
from leasehold.leases.store import Hint, LeaseStore

HINTS_MAX = 32
"""More different ones at a time become one for all hosts."""


class Hints:
    """Hints of this process for other hosts. Those that wait for an earlier one to be sent are sent together, once each."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._waiting: dict[Hint, None] = {}
        self._added = asyncio.Event()

    def add(self, hint: Hint) -> None:
        self._waiting[hint] = None
        self._added.set()

    async def send(self) -> None:
        """Raises StoreUnavailable, StoreAmbiguous; then the hints are lost."""
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
