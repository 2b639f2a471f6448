"""The lease and all its transitions. Pure: a transition returns a new lease.

                   acquired                     released
        available ----------> owned (epoch e) ----------> available
            ^                  |   |    |  ^                  (handoff_to: reserved for the host that requested it)
            |  acquired by     |   |    +--+ renewed, checkpointed, handoff_requested
            |  another, once   |   |
            +-- its host died -+   +-- closed: its partition was split or merged, and its children take over; or an
                                       operator closed it, and a reset opens it again

`epoch` grows with every change of owner and is passed to the sink, which refuses older ones. `generation` grows only
when an operator moves the position. Only the owner raises `tick`, with each of its writes: by the tick it recognizes a
write whose answer was lost. No host is judged by it: hosts show by their own documents that they live (docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

RESTORED_ABOVE = 1000
"""How far a restored lease's epoch is above the one that was seen: the owner may have raised its epoch since."""
SINK_STATE_BYTES_MAX = 4096
"""A sink's state is stored in the lease document; it is a few numbers, never data."""


class LeaseKey(NamedTuple):
    """What identifies a lease within a container."""

    pipeline: str
    partition: str


@dataclass(frozen=True, slots=True)
class Child:
    """A partition that takes over from a closed one, starting at `continuation`."""

    partition: str
    continuation: str | None
    scope: str | None = None
    begun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One partition of one pipeline."""

    pipeline: str
    partition: str
    owner: str | None = None
    incarnation: str | None = None
    epoch: int = 0
    generation: int = 0
    tick: int = 0
    scope: str | None = None
    continuation: str | None = None
    sink_state: str = ""
    handoff_to: str | None = None
    closed: bool = False
    tombstone: bool = False
    parents: tuple[str, ...] = ()
    children: tuple[Child, ...] = ()
    unknown: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    key: LeaseKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "key", LeaseKey(self.pipeline, self.partition)
        )  # once, because plans read it again and again

    @property
    def tenant(self) -> tuple[str, str] | None:
        """The owner and its incarnation, which is empty if an edited document names none."""
        return None if self.owner is None else (self.owner, self.incarnation or "")

    @property
    def mark(self) -> tuple[object, ...]:
        """Differs after each of the owner's writes."""
        return self.owner, self.incarnation, self.epoch, self.tick

    def is_same_tenure(self, other: Lease) -> bool:
        """Whether both belong to one tenure of one owner. Only this entitles an owner to continue after a conflict."""
        return (self.owner, self.incarnation, self.epoch, self.generation, self.closed) == (
            other.owner,
            other.incarnation,
            other.epoch,
            other.generation,
            other.closed,
        )

    def acquired(self, owner: str, incarnation: str, sink_state: str) -> Lease:
        """Taken, whether it was available, expired or stolen. `sink_state` is the sink's claim for the new epoch."""
        assert not self.closed, "a closed lease has ended, or waits for a reset; it has no owner"
        return replace(
            self,
            owner=owner,
            incarnation=incarnation,
            epoch=self.epoch + 1,
            tick=self.tick + 1,
            sink_state=sink_state,
            handoff_to=None,
        )

    def renewed(self) -> Lease:
        return replace(self, tick=self.tick + 1)

    def checkpointed(self, continuation: str | None, sink_state: str) -> Lease:
        assert len(sink_state.encode()) <= SINK_STATE_BYTES_MAX, "sink state outgrew the lease document"
        return replace(self, tick=self.tick + 1, continuation=continuation, sink_state=sink_state)

    def epoch_raised(self, above: int, sink_state: str) -> Lease:
        """The owner fences its own earlier writes: after an ambiguous send, or if the sink knows a higher epoch."""
        return replace(self, tick=self.tick + 1, epoch=max(self.epoch, above) + 1, sink_state=sink_state)

    def handoff_requested(self, to: str) -> Lease:
        """Another host's request. Like every edit by others, it does not change the tick."""
        return replace(self, handoff_to=to)

    def released(self) -> Lease:
        """Available again, with the same position; reserved for `handoff_to` if a host requested it."""
        return replace(self, owner=None, incarnation=None, tick=self.tick + 1)

    def revoked(self) -> Lease:
        """An operator's release. The owner notices at its next write or scan. It does not change the tick."""
        return replace(self, owner=None, incarnation=None)

    def given_up(self) -> Lease:
        """Available to any host. Like every edit by others, it does not change the tick."""
        return replace(self, owner=None, incarnation=None, handoff_to=None)

    def put_back(self) -> Lease:
        """Recreated as it was before its document was deleted: without an owner, above all epochs used before, with the
        same tick.
        """
        epoch = min(self.epoch + RESTORED_ABOVE, 2**63 - 1)
        return replace(self, owner=None, incarnation=None, handoff_to=None, epoch=epoch)

    def reset(self, continuation: str | None) -> Lease:
        """An operator's new position: a new generation, without the present owner. It reopens a lease that an operator
        closed.
        """
        return replace(
            self,
            closed=self.closed and bool(self.children),
            tombstone=False,
            owner=None,
            incarnation=None,
            generation=self.generation + 1,
            continuation=continuation,
            handoff_to=None,
        )

    def ended(self, continuation: str | None, children: tuple[Child, ...]) -> Lease:
        """Closed for good at its final position; its children start at their own positions."""
        return replace(
            self,
            owner=None,
            incarnation=None,
            tick=self.tick + 1,
            continuation=continuation,
            handoff_to=None,
            closed=True,
            children=children,
        )

    def finished(self, continuation: str | None, *, tombstone: bool) -> Lease:
        """Closed by an operator. The owner notices at its next write. Like every edit by others, it does not change the
        tick.
        """
        assert not (self.closed and self.children), "the children of an ended partition continue it"
        return replace(
            self,
            owner=None,
            incarnation=None,
            continuation=continuation,
            handoff_to=None,
            closed=True,
            tombstone=tombstone,
        )

    def followed_by(self, partitions: Container[str]) -> Lease:
        """It records which children have leases. Like every edit by others, it does not change the tick."""
        children = tuple(replace(child, begun=child.begun or child.partition in partitions) for child in self.children)
        return replace(self, children=children)
