"""The documents of a pipeline in a lease store: what is copied, what is left to do, and what must not be overwritten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from leasehold.leases.bootstrap import decode_info, info_id
from leasehold.leases.document import advised, decode_lease, encode_lease, lease_prefix, parsed, partition_of
from leasehold.leases.dotnet import DOCUMENT
from leasehold.leases.errors import InvalidDocument, StoreMissing
from leasehold.leases.lease import Lease
from leasehold.leases.moves import Move
from leasehold.leases.pause_orders import Control, control_id, decode_control
from leasehold.leases.store import LeaseStore, Stored
from leasehold.service.errors import NotNow
from leasehold.service.texts import counted

Step = Literal["copy", "continue", "release", "nothing"]
"""What is left to do for a pipeline: all of it, the rest, to lift the mark of the target, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The lease stores. is_unique: whether no other store has the target's name."""

    source: str
    target: str
    is_unique: bool = True


@dataclass(frozen=True, slots=True)
class Documents:
    """All documents of one pipeline. order: an operator's, or the mark of a copy."""

    pipeline: str
    info: Stored | None = None
    leases: tuple[Stored, ...] = ()
    order: Control | None = None
    order_etag: str | None = None

    @property
    def move(self) -> Move | None:
        """The mark of a copy."""
        return None if self.order is None else self.order.move

    @property
    def are_missing(self) -> bool:
        return self.info is None and self.order is None and not self.leases

    @property
    def by_id(self) -> Mapping[str, Stored]:
        """The documents that are copied. An order is not copied: the mark takes its place."""
        return {stored.id: stored for stored in ((() if self.info is None else (self.info,)) + self.leases)}


async def read_documents(store: LeaseStore, pipeline: str) -> Documents:
    """Empty if there is no container. Raises StoreUnavailable, and InvalidDocument for an order that cannot be read."""
    try:
        leases = await store.list(lease_prefix(pipeline))
        info, order = await read_document(store, info_id(pipeline)), await read_document(store, control_id(pipeline))
    except StoreMissing:
        return Documents(pipeline)
    if order is None:
        return Documents(pipeline, info, tuple(leases))
    return Documents(pipeline, info, tuple(leases), decode_control(order.id, order.body), order.etag)


async def read_document(store: LeaseStore, id: str) -> Stored | None:
    """None if it does not exist. Raises StoreUnavailable."""
    try:
        return await store.read(id)
    except StoreMissing:
        return None


def wanted_in(source: Documents) -> dict[str, str]:
    """Id -> body of each document in the target: leases without an owner, with their epochs, generations and lineage.

    Raises InvalidDocument for a lease that cannot be read, because it may hold the only position of its partition.
    """
    wanted = {} if source.info is None else {source.info.id: source.info.body}
    if source.info is not None:
        decode_info(source.info.id, source.info.body)
    return wanted | {stored.id: encode_lease(_lease(stored, source.pipeline).given_up()) for stored in source.leases}


def _lease(stored: Stored, pipeline: str) -> Lease:
    try:
        return decode_lease(stored.id, stored.body)
    except InvalidDocument as error:
        raise advised(error, pipeline, partition_of(stored.id)) from None


def is_same(id: str, a: str, b: str) -> bool:
    """Whether two bodies of a document mean the same. Stores may change its text; that of Cosmos DB adds a field of .NET's."""
    if a == b:
        return True
    if "/leases/" not in id:
        return parsed(id, a) == parsed(id, b)
    return _without_origin(id, a) == _without_origin(id, b)


def _without_origin(id: str, body: str) -> Lease | None:
    try:
        lease = decode_lease(id, body)
    except InvalidDocument:
        return None
    return replace(lease, unknown={name: value for name, value in lease.unknown.items() if name != DOCUMENT})


def step_of(source: Documents, target: Documents, names: Names) -> Step:
    """Raises NotNow if the target is not empty, or the marks are of another copy."""
    move, theirs = source.move, target.move
    if source.order is not None and move is not None and move.side == "target":
        raise NotNow(move.why(source.pipeline, source.order.at))
    if target.order is not None and theirs is not None and not _are_of_one_copy(move, theirs):
        why = theirs.why(target.pipeline, target.order.at)
        raise NotNow(f"{names.target} belongs to another copy ({why}): name an empty lease store")
    if move is None or theirs is None:
        return _step_without_mark(source, target, names)
    return "release" if move.state == "done" else "continue"


def _are_of_one_copy(move: Move | None, theirs: Move) -> bool:
    """theirs: the target's mark. If both configurations name one store, it is that store's mark as a source."""
    return move is not None and move.copy == theirs.copy and theirs.side == "target"


def _step_without_mark(source: Documents, target: Documents, names: Names) -> Step:
    """What is left to do if one of the stores has no mark."""
    if source.order is not None and source.move is not None:
        return _step_of_mark(source, source.order, source.move, target, names)
    if not target.are_missing:
        raise NotNow(
            f"{names.target} has documents of pipeline '{target.pipeline}' already ({counted(len(target.leases), 'lease')}):"
            f" name an empty lease store. Nothing was copied from {names.source}"
        )
    return "copy"


def _step_of_mark(source: Documents, order: Control, move: Move, target: Documents, names: Names) -> Step:
    """What is left to do if only the source has a mark."""
    if move.other != names.target:
        raise NotNow(move.why(source.pipeline, order.at))
    if move.state == "done":
        if source.leases and not target.leases:
            raise NotNow(
                f"the leases of pipeline '{source.pipeline}' were moved to {move.other}, where they are missing now"
            )
        if not (names.is_unique or _has_continued(source, target)):
            raise NotNow(move.why(source.pipeline, order.at))
        return "nothing"
    if not target.are_missing:
        raise NotNow(
            f"{names.target} has documents of pipeline '{target.pipeline}' already ({counted(len(target.leases), 'lease')}),"
            " and no mark of this copy. Give the copy up with --cancel, and name an empty lease store"
        )
    return "continue"


def _has_continued(source: Documents, target: Documents) -> bool:
    """Whether the target has each lease of the source, at the same or a higher (generation, epoch), which never decreases."""
    there = target.by_id
    for stored in source.leases:
        ours = decode_lease(stored.id, stored.body)
        theirs = _without_origin(stored.id, there[stored.id].body) if stored.id in there else None
        if theirs is None or (theirs.generation, theirs.epoch) < (ours.generation, ours.epoch):
            return False
    return True


def step_of_replay(source: Documents, target: Documents, names: Names, *, pipeline: Step) -> Step:
    """As `step_of`, for the leases of a replay. pipeline: what is left to do for the leases of its pipeline.

    If the pipeline has kept dead letters only since it was copied, the target's leases of the replay are the later ones.
    """
    is_copied = pipeline in ("release", "nothing")
    if is_copied and source.move is None and (not source.leases or not target.are_missing):
        return "nothing"
    return step_of(source, target, names)


def require_not_ahead(there: Stored, wanted: str, target_name: str) -> None:
    """Check that no host has worked on the target's lease, which another process made under the mark. Raises NotNow."""
    if "/leases/" not in there.id:
        return
    theirs, ours = _without_origin(there.id, there.body), decode_lease(there.id, wanted)
    if theirs is not None and (theirs.generation, theirs.epoch) > (ours.generation, ours.epoch):
        raise NotNow(
            f"lease '{ours.partition}' of pipeline '{ours.pipeline}' in {target_name} is ahead (generation"
            f" {theirs.generation}, epoch {theirs.epoch}): a host has worked on it. Compare the positions in both stores"
        )


def require_unused(there: Stored, target_name: str) -> None:
    """Check that a lease which the source lacks was never owned, so that it may be removed. Raises NotNow."""
    lease = _without_origin(there.id, there.body)
    if lease is not None and lease.epoch:
        raise NotNow(
            f"lease '{lease.partition}' of pipeline '{lease.pipeline}' in {target_name} does not exist in the source, and"
            " had an owner: find out which host made it"
        )
