"""Claims, and the newest step of a lease: one rule for a manifest and for a Delta table. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Protocol, TypeVar

from leasehold.pipeline.errors import Fenced, SinkRejected
from leasehold.pipeline.sink import Claim

T = TypeVar("T")


class Head(Protocol):
    """The newest step of a lease that counts: an entry of a manifest, or a record of a Delta table."""

    @property
    def pipeline(self) -> str: ...
    @property
    def partition(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def owner(self) -> str: ...
    @property
    def label(self) -> str:
        """A name for people."""
        ...

    @property
    def position(self) -> str | None: ...
    @property
    def ended(self) -> bool: ...


def carried_over(head: Head, claim: Claim, place: str) -> tuple[str | None, bool]:
    """The position from which a claim continues, and whether its partition has ended. place: the manifest or table.

    Raises Fenced; SinkRejected, also if the folder of the claim's lease is that of another one.
    """
    if (head.pipeline, head.partition) != (claim.pipeline, claim.partition):
        raise SinkRejected(
            f"the folder of partition '{claim.partition}' of pipeline '{claim.pipeline}' is that of partition"
            f" '{head.partition}' of '{head.pipeline}': the file system is case-insensitive. Use another one"
        )
    if claim.epoch < head.epoch:
        raise outranked(claim, head)
    if claim.generation < head.generation:
        raise SinkRejected(
            f"partition '{claim.partition}' of pipeline '{claim.pipeline}' was claimed at generation {claim.generation}, and the"
            f" {place} is at generation {head.generation}: the lease's document was deleted or restored. Reset the lease until"
            " it is of that generation or later"
        )
    is_same = claim.generation == head.generation
    return (head.position, head.ended) if is_same else (claim.continuation, False)


def outranked(claim: Claim | Head, head: Head | None) -> Fenced:
    """head: the step that came between; None if it could not be read."""
    ours = f"partition '{claim.partition}' of pipeline '{claim.pipeline}' was claimed at epoch {claim.epoch}"
    if head is None:
        return Fenced(f"{ours}, and another write came first: take the lease again")
    if head.epoch == claim.epoch:
        return Fenced(f"{ours}, and {head.label} is another attempt's: claim again", epoch=head.epoch)
    return Fenced(f"{ours}, and belongs to '{head.owner}' since epoch {head.epoch}", epoch=head.epoch)


def check_open(head: Head) -> None:
    """Raises SinkRejected if its partition has ended."""
    if head.ended:
        raise SinkRejected(f"partition '{head.partition}' of pipeline '{head.pipeline}' has ended at {head.position!r}")


def checked(value: T, whole: Collection[str], none_too: Collection[str] = ("position",)) -> T:
    """Raises ValueError if a field is not what its name promises. whole: its numbers. none_too: its texts that may be None."""
    for name in (field.name for field in fields(value)):  # type: ignore[arg-type]
        found = getattr(value, name)
        if name in whole:
            is_right = type(found) is int and 0 <= found < 2**63
        elif name == "ended":
            is_right = type(found) is bool
        else:
            is_right = isinstance(found, str | tuple) or (found is None and name in none_too)
        if not is_right:
            raise ValueError(f"its {name} is {found!r}")
    return value
