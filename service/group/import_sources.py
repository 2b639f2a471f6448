"""What an import reads: its input, the lease store's documents, or another processor's blobs; and which owners are alive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeVar

from leasehold.common.clock import Clock
from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.import_.checkpoint_blobs import CheckpointBlob, Deployment, Kind, blobs_of, deployments
from leasehold.leases.import_.cosmos_import import Document, candidates, documents_in, leases_among
from leasehold.leases.import_.export_format import groups_in
from leasehold.leases.import_.plan import Candidate
from leasehold.leases.store import LeaseStore
from leasehold.leases.timing import Timing
from leasehold.service.errors import NothingToImport
from leasehold.service.pipeline import PipelineParts

Source = Literal["leasehold", "dotnet", "java", "eventprocessorhost", "checkpointstore"]
KINDS: Mapping[Source, Kind] = {"eventprocessorhost": "eventprocessorhost", "checkpointstore": "checkpointstore"}
"""Sources that are blobs."""
CLAIM_S = 60.0
"""Other processors renew or claim their leases at least this often: consumers over a checkpoint store every 10 or 30 s."""
K = TypeVar("K", bound=Hashable)
FAILED_LOOKS_MAX = 5
"""This many failed looks in a row end a watch. Fewer are repeated, because the watch may be a minute old by then."""
MOMENT_S = 0.001
"""A shorter sleep may leave the clock where it is."""


class Holder(NamedTuple):
    """owner: of a lease. mark: what the owner changes to show that it is alive.

    document: the ETag of the host document that shows it for a host of ours; None if that document is gone.

    lasts_s: how long the owner may be silent; None if it does not specify that.
    """

    owner: str
    mark: tuple[object, ...]
    document: str | None = None
    lasts_s: float | None = None

    def is_moved_since(self, before: Holder) -> bool:
        """Whether the owner has shown that it is alive. A document that is gone shows nothing."""
        return (self.owner, self.mark) != (before.owner, before.mark) or self.document not in (None, before.document)


class BlobSource(Protocol):
    """A container with other processors' blobs. Raises StoreError."""

    async def list_blobs(self, kind: Kind, folder: str) -> Sequence[CheckpointBlob]: ...

    async def write(self, name: str, content: str) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """text: the contents of INPUT; None to read the lease store itself, or `blobs`. prefix: how the ids of the documents
    begin, or the folder that the blobs are in.

    mode: of the pipeline's feed, in .NET's words. now_us: wall clock, microseconds since 1970. force: also move back, and take
    leases exported from another feed.
    """

    pipeline: PipelineParts
    source: Source
    text: str | None = None
    blobs: BlobSource | None = None
    prefix: str | None = None
    mode: str | None = None
    now_us: int = 0
    force: bool = False

    @property
    def watch_s(self) -> float:
        """How long to watch owners that do not specify how long they may be silent."""
        return CLAIM_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """is_complete: whether these were all leases of the pipeline, according to the input.

    busy: documents that certainly have a live owner, and that owner. notes: remarks for people.
    """

    candidates: Sequence[Candidate]
    is_complete: bool = False
    busy: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    notes: tuple[str, ...] = ()


async def read_source(order: Import, store: LeaseStore) -> Brought:
    """Raises NothingToImport, InvalidDocument, StoreUnavailable."""
    if order.source == "leasehold":
        return _restored(order)
    if order.source in KINDS:
        found_there = await _read_deployment(order)
        notes = [f"the leases are read from '{found_there.folder}'"] if found_there.folder else []
        notes += [
            f"partition '{name}' was never checkpointed, and begins at the feed's `start`"
            for name in found_there.without
        ]
        return Brought(candidates=found_there.candidates, busy=found_there.busy, notes=tuple(notes))
    prefix, leases = leases_among(await _read_documents(order, store), order.prefix)
    found = candidates(
        leases, pipeline=order.pipeline.name, is_java=order.source == "java", prefix=prefix, mode=order.mode
    )
    if not found:
        where = "the lease store" if order.text is None else "the input"
        raise NothingToImport(f"{where} holds no leases" + (f" whose ids begin with '{prefix}'" if prefix else ""))
    return Brought(candidates=found)


def _restored(order: Import) -> Brought:
    if order.text is None:
        raise NothingToImport("name an INPUT: a file that `leasehold leases export` has written")
    name, ours, groups = order.pipeline.name, order.pipeline.identity, groups_in(order.text)
    if name not in groups:
        raise NothingToImport(
            f"the input has no pipeline '{name}': it has {', '.join(sorted(groups)) or 'none at all'}"
        )
    group, theirs = groups[name], groups[name].info.identity
    if theirs.feed != ours.feed and not order.force:
        raise NothingToImport(
            f"the input was exported with feed {theirs.feed!r}, and pipeline '{name}' reads {ours.feed!r}: if both have the"
            " same events at the same positions, use --force"
        )
    found = group.candidates
    if theirs.sink != ours.sink:  # what one sink keeps in a lease means nothing to another
        found = [replace(each, lease=each.lease and replace(each.lease, sink_state="")) for each in found]
    return Brought(candidates=found, is_complete=group.info.complete)


def recent(order: Import, found: Brought, duration_s: float) -> dict[str, str]:
    """For a file, which cannot be watched: document -> its owner, if that one wrote within `duration_s` and clocks agree."""
    since = order.now_us - int(duration_s * 1e6)
    return {
        each.document: each.owner
        for each in found.candidates
        if order.text is not None and each.owner is not None and (each.written_us or 0) > since
    }


async def read_held(order: Import, store: LeaseStore) -> Mapping[str, Holder]:
    """Document -> its owner, for owned documents in the lease store. Raises StoreUnavailable."""
    if order.source == "leasehold" or order.text is not None:
        return {}
    if order.source in KINDS:
        owners = (await _read_deployment(order)).owners
        return {name: Holder(owner, (mark,)) for name, (owner, mark) in owners.items()}
    return {
        str(each.get("id")): Holder(owner, (each.get("timestamp"), each.get("_etag")))
        for each in await _read_documents(order, store)
        if isinstance(owner := each.get("Owner"), str) and owner
    }


async def _read_documents(order: Import, store: LeaseStore) -> Sequence[Document]:
    if order.text is not None:
        return documents_in(order.text)
    found = await store.documents(order.prefix or "")
    if found is None:
        raise NothingToImport("name an INPUT: this lease store holds no documents of other processors to read instead")
    return found


async def _read_deployment(order: Import) -> Deployment:
    """The deployment in the order's folder, or the only one. Raises NothingToImport, InvalidDocument, StoreUnavailable."""
    kind, folder = KINDS[order.source], order.prefix and order.prefix.strip("/")
    if order.text is not None:
        blobs: Sequence[CheckpointBlob] = blobs_of(documents_in(order.text))
    elif order.blobs is not None:
        blobs = await order.blobs.list_blobs(kind, _as_named(kind, f"{folder}/") if folder else "")
    else:
        raise NothingToImport("name an INPUT, or the blob container that the old leases are in: --container")
    found = deployments(kind, blobs, pipeline=order.pipeline.name)
    if folder:
        found = {name: each for name, each in found.items() if name == _as_named(kind, folder)}
    if not found:
        where = "the container" if order.text is None else "the input"
        raise NothingToImport(f"{where} holds no leases of that kind" + (f" in '{folder}'" if folder else ""))
    if len(found) > 1:
        shown = ", ".join(f"'{name}'" for name in sorted(found)[:8])
        raise NothingToImport(f"there are leases in {len(found)} folders ({shown}): choose one by --prefix")
    [deployment] = found.values()
    return deployment


def _as_named(kind: Kind, folder: str) -> str:
    """All names of a checkpoint store are in lower case."""
    return folder.lower() if kind == "checkpointstore" else folder


# Which leases move while they are watched: how a process without a host distinguishes live owners from dead ones.


async def find_alive(
    look: Callable[[], Awaitable[Mapping[K, Holder]]], *, clock: Clock, timing: Timing, lasts_s: float
) -> dict[K, str]:
    """The owner of each lease that moved before it had expired. Leases that were released meanwhile are left out.

    lasts_s: how long an owner may be silent if it does not specify that.

    No clock of another machine is used (docs/protocol.md), so a dead owner costs a whole duration, and one look. Time in which
    nothing could be read does not count. After it, the leases are watched for at least a grace period, because the owners may
    have had the same outage. Raises what `look` raises, and StoreUnavailable after FAILED_LOOKS_MAX failures.
    """
    began = clock.monotonic()
    before = await look()
    read_at, failures = clock.monotonic(), 0
    still = {key: _Still(held, read_at, held.lasts_s or lasts_s) for key, held in before.items()}
    found: dict[K, str] = {}
    while (ends := max((each.expires_at for each in still.values()), default=began)) > began:
        await clock.sleep(min(timing.handoff_poll_s, max(MOMENT_S, ends - clock.monotonic())))
        began = clock.monotonic()
        try:
            now = await look()
        except StoreUnavailable:
            failures += 1
            if failures == FAILED_LOOKS_MAX:
                raise
            unread_s, read_at = clock.monotonic() - read_at, clock.monotonic()
            grace_s = timing.looks.grace_s
            still = {key: each.after_outage(unread_s, read_at, grace_s) for key, each in still.items()}
            continue
        read_at, failures = clock.monotonic(), 0
        still = {
            key: each.seen(now[key], read_at)
            for key, each in still.items()
            if key in now and not now[key].is_moved_since(each.held)
        }
        found = {key: now[key].owner for key in before.keys() - still.keys() if key in now}
    return found


class _Still(NamedTuple):
    """A lease that has not moved, and since when."""

    held: Holder
    since: float
    lasts_s: float

    @property
    def expires_at(self) -> float:
        """A look that begins then, and sees no move, shows that the lease has expired."""
        return self.since + self.lasts_s

    def seen(self, now: Holder, at: float) -> _Still:
        """If the host's document is gone now, the time starts again: a beat may have been written in between."""
        return self if now.document == self.held.document else self._replace(held=now, since=at)

    def after_outage(self, unread_s: float, now: float, grace_s: float) -> _Still:
        """Without the time of the outage, as hosts count it (`leasehold.leases.expiry`)."""
        not_before = now + grace_s - self.lasts_s
        return self._replace(since=min(max(self.since + unread_s, not_before), now))
