"""Outside checkpoints: positions that are also written to the place where a feed's own tools look for them."""

from __future__ import annotations

from typing import Literal, Protocol

Outcome = Literal["written", "unchanged", "outdated"]
"""unchanged: nothing to do. outdated: the stored checkpoint counts more resets than the lease."""


class OutsideCheckpoints(Protocol):
    """The checkpoints of one pipeline. title: what one is called, for people. interval_s: the shortest time between two writes
    for one partition."""

    interval_s: float

    @property
    def title(self) -> str: ...

    def name_of(self, partition: str) -> str: ...

    async def write(self, partition: str, position: str | None, generation: int) -> Outcome:
        """Raises StoreError, PipelineError."""
        ...

    async def count(self) -> int:
        """How many partitions have a checkpoint. Raises as `write` does."""
        ...

    async def close(self) -> None: ...
