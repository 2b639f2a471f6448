"""Checkpoints for readers outside: where a feed's own tools look for the position of a reader."""

from __future__ import annotations

from typing import Literal, Protocol

Outcome = Literal["written", "unchanged", "outdated"]
"""unchanged: nothing to do. outdated: what is there counts more resets than the lease."""


class OutsideCheckpoints(Protocol):
    """Those of one pipeline. title: one of them, for people. interval_s: how often a partition's is written at most."""

    interval_s: float

    @property
    def title(self) -> str: ...

    def name_of(self, partition: str) -> str: ...

    async def write(self, partition: str, position: str | None, generation: int) -> Outcome:
        """Raises StoreError, PipelineError."""
        ...

    async def count(self) -> int:
        """How many partitions have one. Raises as `write` does."""
        ...

    async def close(self) -> None: ...
