"""The container: listings with metadata, and conditional writes of single blobs, answered as `leasehold.leases.store` requires.

Requests that were certainly not carried out (429, and 503 if the service reports that it is busy) are retried within
the caller's time. A request that failed because the container is missing is repeated once the container has been
created. Nothing else is retried.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from azure.core import MatchConditions
from azure.core.exceptions import AzureError, HttpResponseError
from azure.storage.blob import BlobProperties
from azure.storage.blob.aio import ContainerClient

from leasehold.common.azure import StorageAccount, storage_code_of, tls_of
from leasehold.leases.errors import StoreAmbiguous, StoreConflict, StoreError, StoreMissing, StoreUnavailable
from leasehold.leases.stores.azure import retrying_for
from leasehold.leases.stores.blob.account import (
    BlobConnection,
    BlobContainerAddress,
    connect,
    is_no_container,
    translated,
)
from leasehold.leases.stores.blob.codec import Packed

T = TypeVar("T")
Call = Callable[[ContainerClient], Awaitable[T]]

PAGE_BLOBS_MAX = 5000
"""The service's maximum."""
RANGE_NOT_THERE = 416
"""The answer for an empty blob, whatever range is requested."""
_ETAG = re.compile(r"(?!\*$)[!#-~]{1,1023}")
_FOLDER = "hdi_isfolder"
"""In the metadata of folders, which accounts with a hierarchical namespace list as blobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlob:
    """A blob as listed or read."""

    name: str
    etag: str
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    size: int = 0
    content: bytes = b""
    is_leased: bool = False


class LeaseBlobContainer:
    """One container of blobs. Raises the errors of `leasehold.leases.store.LeaseStore`.

    call_timeout_s: how long a call may take. Retries happen in the first half of it.
    """

    def __init__(
        self,
        account: StorageAccount,
        place: BlobContainerAddress,
        *,
        call_timeout_s: float = 5.0,
        page_blobs_max: int = PAGE_BLOBS_MAX,
    ) -> None:
        """Raises ValueError if the account's ca_file cannot be used."""
        self._account = account
        self._place = place
        self._call_timeout_s = call_timeout_s
        self._page_blobs_max = page_blobs_max
        self._tls = tls_of(account.ca_file)
        self._connection: BlobConnection | None = None

    @property
    def place(self) -> BlobContainerAddress:
        return self._place

    async def list_blobs(self, prefix: str) -> list[StoredBlob]:
        """Every blob whose name begins with `prefix`, with its metadata but without its content."""
        return await self._run(f"listing '{prefix}'", lambda to: _list_blobs(to, prefix, self._page_blobs_max))

    async def look(self, name: str) -> StoredBlob:
        """A blob with its metadata but without its content."""
        return await self._run(f"reading '{name}'", lambda to: _look_at(to, name))

    async def read(self, name: str, bytes_max: int) -> StoredBlob:
        """A blob with its content. Not much more than `bytes_max` bytes are read."""
        return await self._run(f"reading '{name}'", lambda to: _read(to, name, bytes_max))

    async def create(self, name: str, packed: Packed) -> str:
        """Returns the ETag."""
        condition = {"overwrite": False}  # that is If-None-Match: *
        return await self._run(f"creating '{name}'", lambda to: _put(to, name, packed, condition), is_write=True)

    async def replace(self, name: str, packed: Packed, etag: str) -> str:
        """Returns the new ETag."""
        condition = await self._match(name, etag)
        write = _set if packed.content is None else _put
        return await self._write(name, f"replacing '{name}'", lambda to: write(to, name, packed, condition))

    async def delete(self, name: str, etag: str) -> None:
        condition = await self._match(name, etag)
        await self._write(name, f"deleting '{name}'", lambda to: _delete_blob(to, name, condition))

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _write(self, name: str, doing: str, call: Call[T]) -> T:
        """A write with If-Match gets the same answer for a missing blob as for a changed one; find out which."""
        try:
            return await self._run(doing, call, is_write=True)
        except StoreConflict:
            await self._still_there(name)
            raise

    async def _still_there(self, name: str) -> None:
        """Raises StoreMissing if the blob does not exist."""
        try:
            await self.look(name)
        except StoreMissing:
            raise
        except StoreError:
            return  # only the conflict is certain

    async def _run(self, doing: str, call: Call[T], *, is_write: bool = False) -> T:
        container, is_made = self._ensure_connection().container, False
        while True:
            try:
                with retrying_for(self._call_timeout_s / 2):
                    return await call(container)
            except (AzureError, OSError) as error:
                if is_made or not is_no_container(error):
                    raise translated(error, f"{doing} in {self._place}", is_write=is_write) from error
            await self._make(container)
            is_made = True

    def _ensure_connection(self) -> BlobConnection:
        if self._connection is None:
            try:
                self._connection = connect(self._account, self._place, self._tls, self._call_timeout_s)
            except ValueError as error:
                raise StoreUnavailable(f"{self._place} cannot be reached ({error}): look at its settings") from error
        return self._connection

    async def _make(self, container: ContainerClient) -> None:
        """Create the container, without which the request was not carried out. Raises StoreMissing if it must not be
        created, StoreUnavailable.
        """
        if not self._place.creates:
            raise StoreMissing(f"no leases yet in {self._place}: no host has run this configuration")
        try:
            await container.create_container()
        except (AzureError, OSError) as error:
            if storage_code_of(error) == "ContainerAlreadyExists":
                return  # another host was quicker
            why = translated(error, "creating it", is_write=False)
            raise StoreUnavailable(f"{self._place} does not exist and cannot be created ({why}): create it") from error

    async def _match(self, name: str, etag: str) -> dict[str, Any]:
        """An invalid ETag would match everything, or break the request."""
        if not _ETAG.fullmatch(etag):
            await self.look(name)
            raise StoreConflict(f"blob '{name}' was changed by another writer: read it again")
        return {"etag": f'"{etag}"', "match_condition": MatchConditions.IfNotModified}


# The calls of the SDK


async def _list_blobs(to: ContainerClient, prefix: str, page_blobs_max: int) -> list[StoredBlob]:
    found = to.list_blobs(name_starts_with=prefix, include=["metadata"], results_per_page=page_blobs_max)
    return [blob_of(one) async for one in found if _FOLDER not in (one.metadata or {})]


async def _look_at(to: ContainerClient, name: str) -> StoredBlob:
    return blob_of(await to.get_blob_client(name).get_blob_properties())


async def _read(to: ContainerClient, name: str, bytes_max: int) -> StoredBlob:
    """Metadata, ETag and content of the same moment: they arrive with the first answer, which holds all permitted
    content.
    """
    try:
        stream = await to.get_blob_client(name).download_blob(offset=0, length=bytes_max + 1)
        return blob_of(stream.properties, content=await stream.readall())
    except HttpResponseError as error:
        if error.status_code != RANGE_NOT_THERE:
            raise
    return await _look_at(to, name)


async def _put(to: ContainerClient, name: str, packed: Packed, condition: Mapping[str, Any]) -> str:
    options: dict[str, Any] = {"overwrite": True, **condition}
    client = to.get_blob_client(name)
    content = packed.content or b""
    return _etag(await client.upload_blob(content, metadata=dict(packed.metadata), **options), name)


async def _set(to: ContainerClient, name: str, packed: Packed, condition: Mapping[str, Any]) -> str:
    """Not Put Blob: with soft delete, that would keep every version of every lease."""
    return _etag(await to.get_blob_client(name).set_blob_metadata(dict(packed.metadata), **condition), name)


async def _delete_blob(to: ContainerClient, name: str, condition: Mapping[str, Any]) -> None:
    await to.get_blob_client(name).delete_blob(delete_snapshots="include", **condition)


def blob_of(properties: BlobProperties, content: bytes = b"") -> StoredBlob:
    return StoredBlob(
        name=str(properties.name),
        etag=str(properties.etag).strip('"'),
        metadata={key.lower(): value or "" for key, value in (properties.metadata or {}).items()},
        size=properties.size or 0,
        content=content,
        is_leased=properties.lease.state == "leased",
    )


def _etag(answer: Mapping[str, Any], name: str) -> str:
    """The ETag in the answer to a write."""
    etag = str(answer.get("etag") or "").strip('"')
    if not etag:
        raise StoreAmbiguous(f"writing '{name}' was answered without an ETag: it may or may not have been done")
    return etag
