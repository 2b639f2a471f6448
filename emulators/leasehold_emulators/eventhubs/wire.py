"""What a connection can do to the world: an edge of sockets, or a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Wire(Protocol):
    @property
    def is_full(self) -> bool:
        """Whether what was written waits: `Connection.pump` is called once it does not."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """After what was written."""

    def abort(self) -> None:
        """At once."""

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Also when the connection is gone by then."""
