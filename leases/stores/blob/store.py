"""A lease store in Azure Blob Storage: one blob for each document, all read by one listing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

from leasehold.leases.document import BODY_BYTES_MAX
from leasehold.leases.errors import StoreConflict, StoreMissing, StoreUnavailable
from leasehold.leases.import_.checkpoint_blobs import CONTENT_BYTES_MAX, Kind, is_wanted
from leasehold.leases.import_.checkpoint_blobs import CheckpointBlob as OthersBlob
from leasehold.leases.store import LeaseStore, Stored
from leasehold.leases.stores.blob.codec import (
    FORM,
    Packed,
    blob_name,
    blob_prefixes,
    body_in,
    id_of,
    is_content,
    others_in,
    packed,
    too_large,
)
from leasehold.leases.stores.blob.container import LeaseBlobContainer, StoredBlob

READS_AT_ONCE_MAX = 8
OTHERS_MAX = 20_000
NOTHING: Mapping[str, str] = MappingProxyType({})


class BlobStore(LeaseStore):
    """Bodies are in the blobs' metadata. The few that are too large for that are read individually after the listing.

    Every write keeps metadata that is not ours. A foreign blob in the place of a lease is unreadable, and is never
    overwritten.

    Not guaranteed: that a page of a listing reflects the same moment as the page before it. A single blob always
    reflects one moment.
    """

    def __init__(self, container: LeaseBlobContainer) -> None:
        self._container = container
        self._others: dict[str, tuple[str, Mapping[str, str]]] = {}
        self._reads = asyncio.Semaphore(READS_AT_ONCE_MAX)

    async def list(self, prefix: str) -> list[Stored]:
        named = {
            found: blob
            for begun in blob_prefixes(prefix)
            for blob in await self._container.list_blobs(begun)
            if (found := id_of(blob.name)) is not None and found.startswith(prefix)
        }
        stored = await asyncio.gather(*(self._read_stored(name, blob) for name, blob in named.items()))
        return sorted((each for each in stored if each is not None), key=lambda each: each.id)

    async def read(self, id: str) -> Stored:
        stored = await self._read_stored(id, await self._container.look(blob_name(id)))
        if stored is None:
            raise StoreMissing(f"document '{id}' does not exist: it was deleted while it was read")
        return stored

    async def create(self, id: str, body: str) -> str:
        return await self._container.create(blob_name(id), packed(body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        others = self._others_of(id, etag)
        wanted = packed(body)
        wanted = Packed(metadata={**others, **wanted.metadata}, content=wanted.content)
        new = await self._container.replace(blob_name(id), wanted, etag)
        self._keep(id, new, others)
        return new

    async def delete(self, id: str, etag: str) -> None:
        await self._container.delete(blob_name(id), etag)

    async def close(self) -> None:
        await self._container.close()

    async def _read_stored(self, id: str, blob: StoredBlob) -> Stored | None:
        """None for a blob that was deleted while it was being read."""
        if is_content(blob.metadata):
            if blob.size > BODY_BYTES_MAX:
                return Stored(id, too_large(blob.name), blob.etag)
            try:
                async with self._reads:
                    blob = await self._container.read(blob.name, BODY_BYTES_MAX)
            except StoreMissing:
                return None
        self._keep(id, blob.etag, others_in(blob.metadata))
        return Stored(id, body_in(blob.name, blob.metadata, blob.content), blob.etag)

    def _keep(self, id: str, etag: str, others: Mapping[str, str]) -> None:
        """Remember other programs' metadata; nearly always there is none."""
        if others:
            self._others[id] = etag, others
        else:
            self._others.pop(id, None)

    def _others_of(self, id: str, etag: str) -> Mapping[str, str]:
        seen, others = self._others.get(id, ("", NOTHING))
        return others if seen == etag else NOTHING


class OthersBlobs:
    """Other processors' lease blobs, for `leasehold leases import` and `export`. The container must exist."""

    def __init__(self, container: LeaseBlobContainer) -> None:
        self._container = container
        self._reads = asyncio.Semaphore(READS_AT_ONCE_MAX)

    def __str__(self) -> str:
        return str(self._container.place)

    async def list_blobs(self, kind: Kind, folder: str) -> list[OthersBlob]:
        """The blobs that may be of that kind. folder: the prefix of their names. Raises StoreUnavailable."""
        try:
            found = await self._container.list_blobs(folder)
        except StoreMissing:
            raise StoreUnavailable(f"{self} does not exist: name the container with the old leases") from None
        if len(found) > OTHERS_MAX:
            raise StoreUnavailable(
                f"{self} holds more than {OTHERS_MAX} blobs: name the folder of the leases with --prefix"
            )
        wanted = [each for each in found if is_wanted(kind, each.name) and FORM not in each.metadata]
        read = await asyncio.gather(*(self._read(kind, each) for each in wanted))
        return [each for each in read if each is not None]

    async def write(self, name: str, content: str) -> None:
        """Creates or overwrites a blob. Raises StoreConflict if a running host has it, StoreUnavailable, StoreAmbiguous."""
        blob = Packed(metadata={}, content=content.encode())
        try:
            found = await self._container.look(name)
        except StoreMissing:
            await self._create(name, blob)
            return
        if found.is_leased:
            raise StoreConflict(f"blob '{name}' is leased by a running host: stop it, and run the command again")
        await self._container.replace(name, blob, found.etag)

    async def _create(self, name: str, blob: Packed) -> None:
        try:
            await self._container.create(name, blob)
        except StoreMissing:
            raise StoreUnavailable(f"{self} does not exist: create it, or name the container of the old host") from None

    async def close(self) -> None:
        await self._container.close()

    async def _read(self, kind: Kind, found: StoredBlob) -> OthersBlob | None:
        """None for a blob that was deleted meanwhile, or that is too large or empty."""
        content = None
        if kind == "eventprocessorhost":
            if not 0 < found.size <= CONTENT_BYTES_MAX:
                return None
            try:
                async with self._reads:
                    content = (await self._container.read(found.name, CONTENT_BYTES_MAX)).content
            except StoreMissing:
                return None
        return OthersBlob(
            name=found.name,
            metadata=found.metadata,
            content=None if content is None else content.decode("utf-8", "backslashreplace"),
            mark=found.etag,
            is_leased=found.is_leased,
        )
