"""The bell: a process without a host rings it after it has changed leases or orders. Hosts then read both."""

from __future__ import annotations

from contextlib import suppress

from leasehold.leases.document import INTEGER_MAX, Fields, to_json
from leasehold.leases.errors import InvalidDocument, StoreAmbiguous, StoreConflict, StoreError, StoreMissing
from leasehold.leases.hints import Hints
from leasehold.leases.host_record import BELL_ID
from leasehold.leases.store import LeaseStore, Stored

VERSION = 1
WRITES_MAX = 3


class Bell:
    """One process's way to ring the bell of the group."""

    def __init__(self, store: LeaseStore) -> None:
        self.hints = Hints(store)
        self._store = store
        self._is_rung = False

    def ring(self) -> None:
        """Note that leases or orders have changed: the next `write` shows it."""
        self._is_rung = True

    async def write(self) -> None:
        """Change the bell's document, if it was rung.

        A conflict raises nothing: another process has changed the document meanwhile, and hosts see that change. Raises
        StoreUnavailable, StoreAmbiguous, and StoreMissing if the document was deleted before each of WRITES_MAX writes.
        """
        if not self._is_rung:
            return
        self._is_rung = False
        await self._change()
        with suppress(StoreError):  # hosts see the bell at their next look
            await self.hints.send()

    async def _change(self) -> None:
        for attempt in range(1, WRITES_MAX + 1):
            try:
                await self._write()
            except StoreConflict:
                return
            except (StoreMissing, StoreAmbiguous):
                if attempt == WRITES_MAX:
                    raise
            else:
                return

    async def _write(self) -> None:
        try:
            stored = await self._store.read(BELL_ID)
        except StoreMissing:
            await self._store.create(BELL_ID, _body(1))
            return
        await self._store.replace(BELL_ID, _body(_ring_in(stored) + 1), stored.etag)


def _body(ring: int) -> str:
    return to_json({"version": VERSION, "ring": ring})


def _ring_in(stored: Stored) -> int:
    """The ring in the document; 0 if it is unreadable, because it is replaced then."""
    try:
        fields = Fields.parse(stored.id, stored.body)
        fields.version(VERSION)
        return fields.integer("ring", at_most=INTEGER_MAX - 1)
    except InvalidDocument:
        return 0
