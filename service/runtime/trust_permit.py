"""Leave to send, as long as a lease's trust window is open."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable

from leases.clock import Clock
from leases.keeper import OwnedLease
from pipeline.errors import NotTrusted

SUSPENDED_POLL_S = 0.1


class TrustPermit:
    """Implements pipeline.sink.Permit. suspended: told whenever somebody has to wait."""

    def __init__(self, owned: OwnedLease, clock: Clock, suspended: Callable[[], None]) -> None:
        self._owned = owned
        self._clock = clock
        self._suspended = suspended

    def check(self) -> None:
        if not self._owned.is_trusted:
            raise NotTrusted(
                f"the trust window of lease '{self._owned.lease.partition}' is closed: nothing may be sent"
            )

    def granted(self) -> Awaitable[None]:
        warnings.warn("Permit.granted is now called wait_until_granted", DeprecationWarning, stacklevel=2)
        return self.wait_until_granted()

    async def wait_until_granted(self) -> None:
        if self._owned.is_trusted:
            return
        self._suspended()
        while not self._owned.is_trusted:
            await self._clock.sleep(SUSPENDED_POLL_S)
