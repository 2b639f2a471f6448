"""The lease, and every change it can go through. All pure: a change returns a new lease.

               acquired                     released
    available ----------> owned (epoch e) ----------> available
        ^                  |   |    |  ^                  (handoff_to: for the one who asked)
        |  acquired by     |   |    +--+ renewed, checkpointed, handoff_requested
        |  another, once   |   |
        +-- expired -------+   +-- closed: its partition was split or merged, its children take over; or an operator said
                                   that it is done, and then a reset opens it again

`epoch` grows with every change of owner and travels to the sink, which refuses older ones. `generation` grows only when an
operator moves the position. `tick` is moved by the owner alone, on each renewal and checkpoint: whoever sees it stand still
for a lease duration on its own clock may take the lease (protocol.md, "Rules that hold for every lease").
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

RESTORED_ABOVE = 1000
"""How far the epoch of a lease that is put back lies above the one that was seen: its owner may have raised it since."""
SINK_STATE_BYTES_MAX = 4096
"""A sink's state crosses the lease document; it is a few numbers, never data."""


@dataclass(frozen=True, slots=True)
class Child:
    """A partition that takes over from a closed one, starting at `continuation`. scope: as its lease's will be.

    begun: its lease has been made. One that is missing then was deleted, and does not begin as if nothing of it were done.
    """

    partition: str
    continuation: str | None
    scope: str | None = None
    begun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One partition of one pipeline.

    owner and incarnation: host name, and one id per start of that host's process; None where available.
    scope: which part of the source the partition is, in the words of its feed (opaque); None where the name says it all. It
    outlives the partition in the source: what was split or merged there is still found by it.
    continuation: position up to which everything is delivered, opaque; None is the feed's beginning.
    sink_state: what the pipeline's sink keeps with the lease (opaque, at most SINK_STATE_BYTES_MAX bytes).
    tombstone: an operator closed it, and its document stays: a partition that comes back under the name is not read.
    handoff_to: the host that asked for the lease, and for which it stays reserved once released.
    unknown: fields of the document that this version does not know; they are written back as they were.
    """

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

    @property
    def key(self) -> tuple[str, str]:
        return self.pipeline, self.partition

    def is_same_tenure(self, other: Lease) -> bool:
        """Whether both are one owner's one tenure. Nothing else entitles an owner to go on after a conflict."""
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
        """Renewed too: a busy lease needs no write of its own to stay alive."""
        assert len(sink_state.encode()) <= SINK_STATE_BYTES_MAX, "sink state outgrew the lease document"
        return replace(self, tick=self.tick + 1, continuation=continuation, sink_state=sink_state)

    def epoch_raised(self, above: int, sink_state: str) -> Lease:
        """The owner fences its own earlier self: after an ambiguous send, or when the sink knows a higher epoch."""
        return replace(self, tick=self.tick + 1, epoch=max(self.epoch, above) + 1, sink_state=sink_state)

    def handoff_requested(self, to: str) -> Lease:
        """Somebody else's wish. It leaves the tick alone, or a dead owner would look alive."""
        return replace(self, handoff_to=to)

    def released(self) -> Lease:
        """Available again, position kept; reserved for `handoff_to` where somebody asked."""
        return replace(self, owner=None, incarnation=None, tick=self.tick + 1)

    def revoked(self) -> Lease:
        """An operator's release: the owner finds out at its next write. As every edit of others, it leaves the tick alone."""
        return replace(self, owner=None, incarnation=None)

    def put_back(self) -> Lease:
        """As it was seen before its document was deleted, nobody's, under epochs that were never used. Its tick stays."""
        epoch = min(self.epoch + RESTORED_ABOVE, 2**63 - 1)
        return replace(self, owner=None, incarnation=None, handoff_to=None, epoch=epoch)

    def reset(self, continuation: str | None) -> Lease:
        """An operator's new position: a new generation, and the present owner out. It opens what an operator had closed."""
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
        """Closed for good at its final position; its children start where they say."""
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
        """Closed by an operator: the owner finds out at its next write. As every edit of others, it leaves the tick alone."""
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
        """It remembers which of its children have their leases. As every edit of others, it leaves the tick alone."""
        children = tuple(replace(child, begun=child.begun or child.partition in partitions) for child in self.children)
        return replace(self, children=children)
