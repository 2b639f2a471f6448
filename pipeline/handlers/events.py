"""The argument of handlers that take several events: the events of one key, and how they are acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.event import Receipt
from leasehold.pipeline.tracing import TraceContext


class AckRefused(SinkRejected):
    """An invalid acknowledgement: of an event that is not among these, of one that is acknowledged already, or too late.

    Raised by `Events.ack`. If the handler does not catch it, its partition stops, because another call cannot help.
    """


class Events(Sequence[Mapping[str, Any]]):
    """Consecutive events of one key, in their order: each a row of the transform's output as a dict.

    - `key`: the value of the key column as text; None if it is null.
    - `partition`: the partition of the events.
    - `attempt`: 1 for the first call with the first of these events, 2 for the second, whatever made the first one fail. The
      count starts over with the next claim of the partition.
    - `position`: the position up to which all events of the partition are processed.
    - `trace`, `receipt`: of the batch with the last of these events.
    - `acknowledge`: called with how many of the events, from the first on, are acknowledged by now; returns False if that is too
      late.
    - `is_released`: called for `is_stale`.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        key: str | None,
        partition: str,
        attempt: int = 1,
        position: str | None = None,
        trace: TraceContext | None = None,
        receipt: Receipt | None = None,
        acknowledge: Callable[[int], bool] = lambda count: True,
        is_released: Callable[[], bool] = lambda: False,
    ) -> None:
        self.key = key
        self.partition = partition
        self.attempt = attempt
        self.position = position
        self.trace = trace
        self.receipt = receipt
        self._rows = rows
        self._acknowledge = acknowledge
        self._is_released = is_released
        self._acknowledged = 0

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_stale(self) -> bool:
        """Whether this host has released or lost the partition: its next owner handles these events again, and `ack` raises.

        After a loss, the partition's other work ends first, which takes up to 5 s. An `ack` meanwhile has no effect.
        If a program awaits nothing between this and `ack`, the answer still holds.
        """
        return self._is_released()

    async def ack(self, position: int) -> None:
        """Acknowledge the events up to and including the one whose `sequence` is `position`: they are processed.

        The checkpoint follows once all earlier events of the partition, of any key, are acknowledged too. Await this in the
        handler's event loop; it may be called after the handler has returned. Raises AckRefused.
        """
        count = self._count(position)
        if count <= self._acknowledged:
            raise AckRefused(
                f"position {position} of {self._subject} is acknowledged already: acknowledge each position once, in order"
            )
        if not self._acknowledge(count):
            raise AckRefused(
                f"position {position} of {self._subject} is acknowledged too late: this host has released the partition, and the"
                " next owner processes its events again"
            )
        self._acknowledged = count
        await asyncio.sleep(0)  # after all else, so that `is_stale` holds until here

    def _count(self, position: int) -> int:
        """How many events there are up to that position. Raises AckRefused."""
        places = [place for place, row in enumerate(self._rows, 1) if row.get("sequence") == position]
        if not places:
            found = [row.get("sequence") for row in self._rows]
            lack = (
                "the output has no column `sequence`: select it"
                if found[0] is None
                else f"they are {found[0]} to {found[-1]}: acknowledge the `sequence` of one of them"
            )
            raise AckRefused(f"position {position!r} is not among {self._subject}; {lack}")
        return places[-1]

    @property
    def _subject(self) -> str:
        return f"the {len(self)} events of key {self.key!r} in partition '{self.partition}'"
