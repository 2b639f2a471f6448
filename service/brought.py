"""What an import brings: the input read as it was told to be, or the documents in the lease container itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leases.exported import groups_in
from leases.foreign import Document, candidates, documents_in, leases_among
from leases.migration import Candidate
from leases.store import LeaseStore, SharedContainer, TimedStore
from service.alive import Held
from service.errors import NothingToImport
from service.pipeline import Pipeline

Source = Literal["leasehold", "dotnet", "java"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """text: what INPUT holds; None to read the lease container itself. prefix: what the ids of the documents begin with.

    mode: of the pipeline's feed, in .NET's words. now_us: wall clock, microseconds since 1970. force: also move back, and take
    what another feed's name stands over.
    """

    pipeline: Pipeline
    source: Source
    text: str | None = None
    prefix: str | None = None
    mode: str | None = None
    now_us: int = 0
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """is_complete: whether these were all leases of the pipeline, as it says itself."""

    candidates: Sequence[Candidate]
    is_complete: bool = False


async def brought(order: Import, store: LeaseStore) -> Brought:
    """Raises NothingToImport, InvalidDocument, StoreUnavailable."""
    if order.source == "leasehold":
        return _restored(order)
    prefix, leases = leases_among(await _documents(order, store), order.prefix)
    found = candidates(
        leases, pipeline=order.pipeline.name, is_java=order.source == "java", prefix=prefix, mode=order.mode
    )
    if not found:
        where = "the lease container" if order.text is None else "the input"
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
            f"the input was exported with feed {theirs.feed!r}, and pipeline '{name}' reads {ours.feed!r}: where both tell the"
            " same events at the same positions, say --force"
        )
    found = group.candidates
    if theirs.sink != ours.sink:  # what one sink keeps in a lease means nothing to another
        found = [replace(each, lease=each.lease and replace(each.lease, sink_state="")) for each in found]
    return Brought(candidates=found, is_complete=group.info.complete)


def recent(order: Import, found: Brought, duration_s: float) -> dict[str, str]:
    """Of a file, which cannot be watched: document -> its owner, where that wrote within the lease duration, if clocks agree."""
    since = order.now_us - int(duration_s * 1e6)
    return {
        each.document: each.owner
        for each in found.candidates
        if order.text is not None and each.owner is not None and (each.written_us or 0) > since
    }


async def held(order: Import, store: LeaseStore) -> Mapping[str, Held]:
    """Document -> whose it is, of those in the lease container that somebody owns. Raises StoreUnavailable."""
    if order.source == "leasehold" or order.text is not None:
        return {}
    return {
        str(each.get("id")): Held(owner, (each.get("timestamp"), each.get("_etag")))
        for each in await _documents(order, store)
        if isinstance(owner := each.get("Owner"), str) and owner
    }


async def _documents(order: Import, store: LeaseStore) -> Sequence[Document]:
    if order.text is not None:
        return documents_in(order.text)
    shared = store.store if isinstance(store, TimedStore) else store
    if not isinstance(shared, SharedContainer):
        raise NothingToImport("name an INPUT: this lease store holds no documents of other processors to read instead")
    return await shared.documents(order.prefix or "")
