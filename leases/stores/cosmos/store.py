"""A lease store in a Cosmos DB container, which .NET's and Java's processors and KEDA can read too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from leasehold.leases.bootstrap import decode_info, encode_info, info_id
from leasehold.leases.document import decode_lease, lease_prefix
from leasehold.leases.dotnet import document_id, encode, marker_id
from leasehold.leases.errors import InvalidDocument, StoreAmbiguous, StoreConflict, StoreUnavailable
from leasehold.leases.store import ChangedDocuments, LeaseStore, Stored
from leasehold.leases.stores.cosmos.container import LeaseContainer
from leasehold.leases.stores.cosmos.documents import (
    OWN,
    Document,
    Family,
    info_document_id,
    is_made_anew,
    lease_of,
    lease_stored,
    leases_stored,
    over_unreadable,
    own_id,
    own_stored,
)


class Monitored(Protocol):
    """The container whose changes a pipeline reads, as needed to name its leases. Calls raise StoreUnavailable."""

    @property
    def mode(self) -> str:
        """`leasehold.leases.dotnet.INCREMENTAL` or `FULL_FIDELITY`."""
        ...

    async def read_lease_prefix(self) -> str:
        """As made by `leasehold.leases.dotnet.lease_prefix`."""
        ...


class CosmosStore(LeaseStore):
    """Leases of the pipelines in `monitored` are .NET's documents; all others are documents of our own.

    .NET's marker (`{prefix}.info`: all leases exist) is created once a pipeline's `info` reports that its first round
    is complete. If it exists when `info` is created, it is trusted: partitions without a lease are then new and begin
    at their beginning. .NET's lock is ignored. `info` is found by the prefix of the leases' ids, so a pipeline with
    another name that uses these leases learns whose they are.

    Not guaranteed: an account with several write regions has no compare-and-swap. A container whose time to live
    removes documents is refused.
    """

    def __init__(
        self,
        container: LeaseContainer,
        monitored: Mapping[str, Monitored] | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._container = container
        self._monitored = dict(monitored or {})
        self._families: dict[str, Family] = {}
        self._now = now

    async def list(self, prefix: str) -> list[Stored]:
        found: list[Stored] = []
        within = [name for name in self._monitored if prefix.startswith(lease_prefix(name))]
        for pipeline in within or [name for name in self._monitored if lease_prefix(name).startswith(prefix)]:
            family = await self._family(pipeline)
            found += leases_stored(family, await self._container.query(document_id(family.prefix, "")))
        if not within:
            found += await self._own(prefix)
        return sorted((stored for stored in found if stored.id.startswith(prefix)), key=lambda stored: stored.id)

    async def read_changes(self, prefix: str, since: str | None = None) -> ChangedDocuments | None:
        """By the container's change feed: one request for each of its physical partitions, however many leases it has.

        A listing that follows a token misses nothing, because the reads of one client never go back in time: accounts with
        a weaker consistency than Session are refused.
        """
        changed = await self._container.read_changes(since)
        if changed is None:
            return None
        documents, token = changed
        found = [stored for each in documents for stored in await self._list_document(each)]
        return ChangedDocuments([stored for stored in found if stored.id.startswith(prefix)], token)

    async def count(self, prefix: str) -> int | None:
        """None for leases in .NET's form, because other documents may be among them."""
        if any(
            prefix.startswith(lease_prefix(name)) or lease_prefix(name).startswith(prefix) for name in self._monitored
        ):
            return None
        return await self._container.count(own_id(prefix))

    async def read(self, id: str) -> Stored:
        if (lease := lease_of(id, self._monitored)) is None:
            return own_stored(await self._container.read(await self._own_id(id)), id)
        family = await self._family(lease[0])
        return lease_stored(family, [await self._container.read(document_id(family.prefix, lease[1]))])

    async def create(self, id: str, body: str) -> str:
        if (lease := lease_of(id, self._monitored)) is not None:
            return await self._container.create(await self._lease_document(id, body, lease[0]))
        return await self._container.create(await self._own_document(id, await self._mark_info(id, body, is_new=True)))

    async def replace(self, id: str, body: str, etag: str) -> str:
        if (lease := lease_of(id, self._monitored)) is not None:
            return await self._container.replace(await self._lease_document(id, body, lease[0], is_new=False), etag)
        return await self._container.replace(await self._own_document(id, await self._mark_info(id, body)), etag)

    async def delete(self, id: str, etag: str) -> None:
        if (lease := lease_of(id, self._monitored)) is None:
            return await self._container.delete(await self._own_id(id), etag)
        family = await self._family(lease[0])
        return await self._container.delete(document_id(family.prefix, lease[1]), etag)

    async def documents(self, prefix: str) -> Sequence[Document]:
        """The stored documents of any program."""
        return await self._container.query(prefix)

    async def close(self) -> None:
        await self._container.close()

    async def _list_document(self, document: Document) -> Sequence[Stored]:
        """What `list` returns for a document: nothing if it belongs to another program."""
        name, found = str(document["id"]), list[Stored]()
        for pipeline in self._monitored:
            family = await self._family(pipeline)
            if name.startswith(document_id(family.prefix, "")):
                found.append(lease_stored(family, [document]))
            elif name == info_document_id(family):
                return [own_stored(document, info_id(pipeline))]
        return [*found, own_stored(document)] if name.startswith(OWN) else found

    async def _own(self, prefix: str) -> Sequence[Stored]:
        """All documents of ours that are not leases, in any order."""
        infos = {await self._own_id(name): name for name in map(info_id, self._monitored) if name.startswith(prefix)}
        found = [each for each in await self._container.query(own_id(prefix)) if str(each["id"]) not in infos]
        for document in infos:
            found += [each for each in await self._container.query(document) if each["id"] == document]
        return [own_stored(each, infos.get(str(each["id"]))) for each in found]

    async def _own_id(self, id: str) -> str:
        pipeline = self._pipeline_of(id)
        return own_id(id) if pipeline is None else info_document_id(await self._family(pipeline))

    async def _own_document(self, id: str, body: str) -> Document:
        return {"id": await self._own_id(id), "body": body}

    def _pipeline_of(self, id: str) -> str | None:
        """The pipeline whose `info` this is, if its leases are documents of .NET."""
        return next((name for name in self._monitored if info_id(name) == id), None)

    async def _family(self, pipeline: str) -> Family:
        if pipeline not in self._families:
            monitored = self._monitored[pipeline]
            self._families[pipeline] = Family(
                pipeline=pipeline, prefix=await monitored.read_lease_prefix(), mode=monitored.mode
            )
        return self._families[pipeline]

    async def _lease_document(self, id: str, body: str, pipeline: str, *, is_new: bool = True) -> Document:
        family, lease = await self._family(pipeline), decode_lease(id, body)
        document = encode(lease, prefix=family.prefix, now=self._now(), mode=family.mode)
        if is_new or not is_made_anew(lease):
            return document
        return over_unreadable(family, document, await self._container.read(str(document["id"])))

    async def _mark_info(self, id: str, body: str, *, is_new: bool = False) -> str:
        """The body to write: a pipeline's `info` and .NET's marker must agree."""
        if (pipeline := self._pipeline_of(id)) is None:
            return body
        try:
            info = decode_info(id, body)
        except InvalidDocument:
            return body
        marker = marker_id((await self._family(pipeline)).prefix)
        if info.complete:
            await self._mark(marker)
        elif is_new and await self._container.look_for(marker):
            return encode_info(replace(info, complete=True, unused=False))
        return body

    async def _mark(self, marker: str) -> None:
        try:
            await self._container.create({"id": marker})
        except StoreConflict:
            return  # .NET's, or ours from before
        except StoreAmbiguous as error:
            raise StoreUnavailable(str(error)) from error  # the caller's own request was not sent yet
