"""What a claim makes of the position that a lease has: one rule for a manifest and for a Delta table. Pure."""

from __future__ import annotations

from typing import Protocol

from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.sink import Claim


class Head(Protocol):
    """The newest step of a lease that counts: an entry of a manifest, or a record of a Delta table."""

    @property
    def pipeline(self) -> str: ...
    @property
    def partition(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def position(self) -> str | None: ...
    @property
    def ended(self) -> bool: ...


def check_folder(head: Head, claim: Claim) -> None:
    """Raises SinkRejected if the folder of the claim's lease is that of another one."""
    if (head.pipeline, head.partition) != (claim.pipeline, claim.partition):
        raise SinkRejected(
            f"the folder of partition '{claim.partition}' of pipeline '{claim.pipeline}' is that of partition"
            f" '{head.partition}' of '{head.pipeline}': the file system is case-insensitive. Use another one"
        )


def carried_over(head: Head, claim: Claim, place: str) -> tuple[str | None, bool]:
    """The position from which a claim continues, and whether its partition has ended. place: the manifest or table. Raises
    SinkRejected.
    """
    if claim.generation < head.generation:
        raise SinkRejected(
            f"partition '{claim.partition}' of pipeline '{claim.pipeline}' was claimed at generation {claim.generation}, and the"
            f" {place} is at generation {head.generation}: the lease's document was deleted or restored. Reset the lease until"
            " it is of that generation or later"
        )
    is_same = claim.generation == head.generation
    return (head.position, head.ended) if is_same else (claim.continuation, False)


def check_open(head: Head) -> None:
    """Raises SinkRejected if its partition has ended."""
    if head.ended:
        raise SinkRejected(f"partition '{head.partition}' of pipeline '{head.pipeline}' has ended at {head.position!r}")
