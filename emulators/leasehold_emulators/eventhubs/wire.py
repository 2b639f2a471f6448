"""What a connection needs from its surroundings: an edge with sockets, or a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Wire(Protocol):
    @property
    def is_full(self) -> bool:
        """Whether written data has to wait. As soon as it need not, the wire calls `Connection.pump`."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Close once all that was written is sent."""

    def abort(self) -> None:
        """Close at once, without sending the rest."""

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Call `act` after the delay, even if the connection is gone by then."""
