"""The base class of handlers that keep something for each lease."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasehold.pipeline.handlers.changes import Context
    from leasehold.pipeline.sink import CloseReason


class Handler:
    """One object for each lease. Its methods are called one at a time; with `parallel`, `process` for many keys at a time.

    Define `process`. Each method may be `def` or `async def`.

    A plain method runs in a thread. `close` follows every `open` that returned.
    """

    def open(self, context: Context) -> Awaitable[None] | None:
        """The lease was acquired."""
        return None

    def process(self, changes: Any, context: Context) -> Awaitable[None] | None:
        """Process a batch, at least once. It counts as processed when this returns. Raise `Retry` to get it again."""
        raise NotImplementedError

    def close(self, context: Context, reason: CloseReason) -> Awaitable[None] | None:
        """The lease is released or lost, or the partition has ended or failed."""
        return None
