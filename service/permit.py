"""Permission to send while a lease's trust window is open."""

from __future__ import annotations

from collections.abc import Callable

from leasehold.common.clock import Clock, retry_after_s
from leasehold.leases.errors import StoreError
from leasehold.leases.tenure import WINNING, OwnedLease
from leasehold.pipeline.errors import NotTrusted

SUSPENDED_POLL_S = 0.1


class TrustPermit:
    """Implements leasehold.pipeline.sink.Permit.

    suspended: called whenever a caller has to wait, with True for the first wait since the lease was trusted. restored:
    called once after such waits, when the lease is found to be trusted again.
    """

    def __init__(
        self,
        owned: OwnedLease,
        clock: Clock,
        suspended: Callable[[bool], None],
        restored: Callable[[], None] = lambda: None,
    ) -> None:
        self._owned = owned
        self._clock = clock
        self._suspended = suspended
        self._restored = restored
        self._is_suspended = False

    def check(self) -> None:
        if not self._owned.is_trusted:
            raise NotTrusted(
                f"the trust window of lease '{self._owned.lease.partition}' is closed: nothing may be sent"
            )
        self._note_trust()

    async def wait_until_granted(self) -> None:
        if not self._owned.is_trusted:
            self._note_suspension()
            await self._wait_for_trust()
        self._note_trust()

    async def _wait_for_trust(self) -> None:
        """Raises OwnershipLost, InvalidDocument: work that has swallowed its cancellation must not wait for ever."""
        failures = 0
        while not self._owned.is_trusted:
            pause_s = SUSPENDED_POLL_S
            if self._owned.must_be_won or self._owned.is_lost:  # sooner than idle leases, which wait for their turn
                try:
                    await self._owned.renew()
                    continue
                except StoreError as error:
                    failures += 1
                    pause_s = WINNING.pause_s(failures, 0.0, retry_after_s(error))
            await self._clock.sleep(pause_s)

    def _note_suspension(self) -> None:
        is_first, self._is_suspended = not self._is_suspended, True
        self._suspended(is_first)

    def _note_trust(self) -> None:
        if self._is_suspended:
            self._is_suspended = False
            self._restored()
