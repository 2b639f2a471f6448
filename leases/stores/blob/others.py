"""Other processors' lease blobs, read unchanged: the input of `leasehold leases import`."""

from __future__ import annotations

import asyncio

from leases.errors import StoreMissing, StoreUnavailable
from leases.import_.checkpoint_blobs import CONTENT_BYTES_MAX, Blob, Kind, is_wanted
from leases.stores.blob.codec import FORM
from leases.stores.blob.container import Blob as Found
from leases.stores.blob.container import Container

BLOBS_MAX = 20_000
READS_AT_ONCE_MAX = 8


class OthersBlobs:
    """`service.group.import_sources.BlobSource` over a container. Writes and creates nothing."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._reads = asyncio.Semaphore(READS_AT_ONCE_MAX)

    def __str__(self) -> str:
        return str(self._container.place)

    async def blobs(self, kind: Kind, folder: str) -> list[Blob]:
        """The blobs that may be of that kind. folder: the prefix of their names. Raises StoreUnavailable."""
        try:
            found = await self._container.list_blobs(folder)
        except StoreMissing:
            raise StoreUnavailable(f"{self} is not there: name the one with the old leases") from None
        if len(found) > BLOBS_MAX:
            raise StoreUnavailable(
                f"{self} holds more than {BLOBS_MAX} blobs: say by --prefix in which folder the leases lie"
            )
        wanted = [each for each in found if is_wanted(kind, each.name) and FORM not in each.metadata]
        read = await asyncio.gather(*(self._read(kind, each) for each in wanted))
        return [each for each in read if each is not None]

    async def close(self) -> None:
        await self._container.close()

    async def _read(self, kind: Kind, found: Found) -> Blob | None:
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
        return Blob(
            name=found.name,
            metadata=found.metadata,
            content=None if content is None else content.decode("utf-8", "backslashreplace"),
            mark=found.etag,
            is_leased=found.is_leased,
        )
