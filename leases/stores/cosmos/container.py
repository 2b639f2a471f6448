"""The container in Cosmos DB: five calls with ETags and its change feed, answered as `leasehold.leases.store` requires.

Requests that were certainly not carried out (429, 449) are retried within the caller's time; nothing else is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from azure.core import MatchConditions
from azure.core.exceptions import AzureError
from azure.cosmos.exceptions import CosmosHttpResponseError, CosmosResourceNotFoundError

from leasehold.common.azure import CosmosAccount, tls_of
from leasehold.common.cancellation import await_shielded
from leasehold.leases.errors import StoreAmbiguous, StoreConflict, StoreError, StoreMissing, StoreUnavailable
from leasehold.leases.side_by_side import run_side_by_side
from leasehold.leases.stores.azure import retrying_for
from leasehold.leases.stores.cosmos.connection import (
    CosmosConnection,
    CosmosContainerAddress,
    connect,
    is_gone,
    translated,
)
from leasehold.leases.stores.cosmos.documents import PARTITION_KEY, Document

T = TypeVar("T")
Call = Callable[[CosmosConnection], Awaitable[T]]

PAGE_ITEMS_MAX = 1000
OPENING_SHARE = 0.9
"""The share of a call's time for opening: an opening that gives up has a better message than a call that is cut off."""
_BY_PREFIX = "SELECT * FROM c WHERE STARTSWITH(c.id, @id)"
_COUNT_BY_PREFIX = "SELECT VALUE COUNT(c.id) FROM c WHERE STARTSWITH(c.id, @id)"
"""Answered from the index alone, because the counted property is that of the filter."""
_BY_ID = "SELECT * FROM c WHERE c.id = @id"
_ETAG = re.compile(r"(?!\*$)[!-~][ -~]{0,1023}")
_CONTINUATION = re.compile(r'"?([0-9]{1,19})"?')
_TOKEN = re.compile(r"[^ ]*(?: [0-9]{1,19}:[0-9]{1,19})+", re.ASCII)
_RANGE_GONE = (400, 410)
"""The statuses that answer a continuation of a range, or of a container, that no longer exists."""
_SESSION = re.compile(r"([^:]+):(?:[^#]*#)?([0-9]{1,19})(?:#.*)?")
"""The token in an answer of one range: the range, and the number of the last write that the answering replica has."""


class LeaseContainer:
    """One container of leases. Raises the errors of `leasehold.leases.store.LeaseStore`.

    call_timeout_s: how long a call may take. Retries happen in the first half of it.
    """

    def __init__(self, account: CosmosAccount, place: CosmosContainerAddress, *, call_timeout_s: float = 5.0) -> None:
        """Raises ValueError if the account's ca_file cannot be used."""
        self._account = account
        self._place = place
        self._call_timeout_s = call_timeout_s
        self._tls = tls_of(account.ca_file)
        self._connections: list[CosmosConnection] = []
        self._connection: CosmosConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._refused: StoreError | None = None
        self._keys: dict[str, str] = {}

    async def query(self, prefix: str) -> list[Document]:
        """Every document whose id starts with `prefix`, by one query."""
        return await self._run(f"listing '{prefix}'", lambda to: self._query(to, _BY_PREFIX, prefix))

    async def count(self, prefix: str) -> int:
        """How many documents there are, by one query, which the SDK sends to one range after another if there are several."""
        return await self._run(f"counting '{prefix}'", lambda to: self._count(to, prefix))

    async def read_changes(self, since: str | None) -> tuple[list[Document], str] | None:
        """The newest version of every document that was written since a token, and the next token; None in the
        cases of `LeaseStore.read_changes`.
        """
        return await self._run("reading changes", lambda to: self._changes(to, since))

    async def read(self, id: str) -> Document:
        return await self._run(f"reading '{id}'", lambda to: self._read(to, id))

    async def look_for(self, id: str) -> bool:
        try:
            await self.read(id)
        except StoreMissing:
            return False
        return True

    async def create(self, document: Document) -> str:
        """Returns the ETag."""
        return await self._run(f"creating '{document['id']}'", lambda to: self._create(to, document), is_write=True)

    async def replace(self, document: Document, etag: str) -> str:
        """Returns the new ETag."""
        await self._match(str(document["id"]), etag)
        return await self._run(
            f"replacing '{document['id']}'", lambda to: self._replace(to, document, etag), is_write=True
        )

    async def delete(self, id: str, etag: str) -> None:
        await self._match(id, etag)
        await self._run(f"deleting '{id}'", lambda to: self._delete(to, id, etag), is_write=True)

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        self._connection = None
        while self._connections:
            await self._connections.pop().close()

    async def _run(self, doing: str, call: Call[T], *, is_write: bool = False) -> T:
        connection = await self._connect()
        try:
            with retrying_for(self._call_timeout_s / 2):
                return await call(connection)
        except (AzureError, OSError) as error:
            if is_gone(error):
                self._connection = None  # other calls may still use it; `close` closes it
            raise translated(error, f"{doing} in {self._place}", is_write=is_write) from error

    async def _connect(self) -> CosmosConnection:
        """The connection. If finding an identity is slow, a caller may time out; the opening continues for the next
        callers.
        """
        try:
            async with asyncio.timeout(self._call_timeout_s * OPENING_SHARE):
                while self._connection is None:
                    if self._opening is None:
                        self._opening = asyncio.create_task(self._open(), name=f"opening {self._place}")
                        self._opening.add_done_callback(self._opened)
                    await await_shielded(self._opening)
        except TimeoutError:
            raise self._refused or StoreUnavailable(
                f"opening {self._place} takes longer than {self._call_timeout_s:g} s: it continues, and the next call may find"
                " it open; look at the endpoint, or raise call_timeout_s"
            ) from None
        return self._connection

    async def _open(self) -> None:
        self._connection = await connect(self._account, self._place, self._tls, self._call_timeout_s)
        self._connections.append(self._connection)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        """Keep the reason of a failure for the next caller that times out; there may be no caller left now."""
        self._opening = None
        if not opening.cancelled():
            error = opening.exception()
            self._refused = error if isinstance(error, StoreError) else None

    async def _match(self, id: str, etag: str) -> None:
        """An invalid ETag would match everything, or break the request."""
        if not _ETAG.fullmatch(etag):
            await self.read(id)
            raise StoreConflict(f"document '{id}' was changed by another writer: read it again")

    # The calls of the SDK

    async def _query(self, to: CosmosConnection, query: str, value: str) -> list[Document]:
        parameters: list[dict[str, object]] = [{"name": "@id", "value": value}]
        items = to.proxy.query_items(query, parameters=parameters, max_item_count=PAGE_ITEMS_MAX)
        found: list[Document] = [item async for item in items]
        if to.has_own_keys:
            self._keys |= {str(item["id"]): str(item.get(PARTITION_KEY)) for item in found}
        return found

    async def _count(self, to: CosmosConnection, prefix: str) -> int:
        items = to.proxy.query_items(_COUNT_BY_PREFIX, parameters=[{"name": "@id", "value": prefix}])
        counts: list[Any] = [item async for item in items]
        if len(counts) != 1 or type(counts[0]) is not int:
            raise StoreUnavailable(f"counting '{prefix}' was answered with {counts!r:.100}, and not with a number")
        return int(counts[0])

    async def _changes(self, to: CosmosConnection, since: str | None) -> tuple[list[Document], str] | None:
        """By the change feed, one request for each range, as a rule.

        Each range numbers its writes in the order in which all its replicas carry them out. A continuation is such a
        number, and never above that of the last write on the replica that answered, even if others have more. So it covers
        no write that was not shown. After a split or a merge, a continuation of the former range is invalid. A container
        whose keys are not its ids may have two documents with one id, which only a listing shows.
        """
        if to.has_own_keys:
            return None
        if since is None:
            begin = _token(to.rid, await self._find_ends(to))
            return None if _ends_in(begin, to.rid) is None else ([], begin)
        if (known := _ends_in(since, to.rid)) is None:
            return None
        found = await run_side_by_side(
            list(known.items()), lambda each: self._changes_of(to, *each), doing="reading changes of range"
        )
        documents: dict[str, Document] = {}
        ends: dict[str, int] = {}
        for range_id, changed in zip(known, found, strict=True):
            if changed is None:
                return None
            documents |= {str(each["id"]): each for each in changed[0]}
            ends[range_id] = changed[1]
        return list(documents.values()), _token(to.rid, ends)

    async def _find_ends(self, to: CosmosConnection) -> dict[str, int]:
        """The number of the last write of each range. The SDK asks one range after another."""
        ends: dict[str, int] = {}

        def note(headers: Mapping[str, str], _: object) -> None:
            place, end = (
                _SESSION.fullmatch(headers.get("x-ms-session-token", "")),
                _write_number(headers.get("etag", "")),
            )
            if place is not None and end is not None:
                ends[place[1]] = end

        async for _ in to.proxy.query_items_change_feed(start_time="Now", response_hook=note):
            return {}  # not a change feed that begins now
        return ends

    async def _changes_of(self, to: CosmosConnection, range_id: str, after: int) -> tuple[list[Document], int] | None:
        """What was written to a range after the write `after`, up to the range's last write at the first request; and the
        number of the last write that was read. None if the range is gone, or has fewer writes than were read before.

        It reads no further, because under constant writes there are always more.
        """
        found: list[Document] = []
        end: int | None = None
        while True:
            try:
                page, covered, last = await _page(to, range_id, after)
            except CosmosHttpResponseError as error:
                if error.status_code in _RANGE_GONE:
                    return None
                raise
            if end is None and last is not None and last < after:
                return None  # another container of that name, or a replica that is far behind
            found += page
            after = after if covered is None else covered
            end = last if end is None else end
            if not page or covered is None or (end is not None and covered >= end):
                return found, after

    async def _read(self, to: CosmosConnection, id: str) -> Document:
        try:
            return await to.proxy.read_item(id, self._key(id))
        except CosmosResourceNotFoundError:
            # If keys are not ids, they may be anything: older leases of .NET's have a GUID.
            for item in await self._query(to, _BY_ID, id) if to.has_own_keys else ():
                return item
            raise

    async def _create(self, to: CosmosConnection, document: Document) -> str:
        name = str(document["id"])
        if not to.has_own_keys:
            return _etag(await to.proxy.create_item(dict(document), no_response=True), name)
        if await self._query(to, _BY_ID, name):  # under another key, it could be created a second time
            raise StoreConflict(f"document '{name}' exists already: read it")
        self._keys[name] = name
        return _etag(await to.proxy.create_item({**document, PARTITION_KEY: name}, no_response=True), name)

    async def _replace(self, to: CosmosConnection, document: Document, etag: str) -> str:
        name = str(document["id"])
        body = {PARTITION_KEY: self._key(name), **document} if to.has_own_keys else dict(document)
        condition = MatchConditions.IfNotModified
        return _etag(
            await to.proxy.replace_item(name, body, etag=etag, match_condition=condition, no_response=True), name
        )

    async def _delete(self, to: CosmosConnection, id: str, etag: str) -> None:
        if to.has_own_keys:
            await self._query(to, _BY_ID, id)
        await to.proxy.delete_item(id, self._key(id), etag=etag, match_condition=MatchConditions.IfNotModified)

    def _key(self, id: str) -> str:
        """A document's partition key: its id, unless another one was seen."""
        return self._keys.get(id, id)


async def _page(to: CosmosConnection, range_id: str, after: int) -> tuple[list[Document], int | None, int | None]:
    """The next documents of a range, the number of the last write that they cover, and that of the range's last write.

    The SDK's change feed reads until there is nothing left, which never happens under constant writes. So this calls its
    method that reads all documents, and a hook of azure-core adds the change feed's headers to the request.
    """
    headers: dict[str, str] = {}

    def ask(request: Any) -> None:
        if request.http_request.url.partition("?")[0].rstrip("/").endswith("/docs"):
            request.http_request.headers.update(
                {
                    "A-IM": "Incremental Feed",
                    "If-None-Match": f'"{after}"',
                    "x-ms-documentdb-partitionkeyrangeid": range_id,
                }
            )

    def note(found: Mapping[str, str], _: object) -> None:
        headers.update({"etag": found.get("etag", ""), "session": found.get("x-ms-session-token", "")})

    items = to.proxy.read_all_items(max_item_count=PAGE_ITEMS_MAX, raw_request_hook=ask, response_hook=note)
    found: list[Document] = []
    async for page in items.by_page():
        found = [item async for item in page]
        break
    place = _SESSION.fullmatch(headers["session"])
    return found, _write_number(headers["etag"]), None if place is None else int(place[2])


def _token(rid: str, ends: Mapping[str, int]) -> str:
    return " ".join([rid, *(f"{range_id}:{number}" for range_id, number in sorted(ends.items()))])


def _ends_in(token: str, rid: str) -> dict[str, int] | None:
    """range -> the last write that the token covers; None if it is not a token of this container."""
    if not _TOKEN.fullmatch(token):
        return None
    pairs = (end.split(":") for end in token.split(" ")[1:])
    ends = {range_id: int(number) for range_id, number in pairs}
    return ends if token == _token(rid, ends) else None


def _write_number(continuation: str) -> int | None:
    """The number of the last write that a continuation covers; None if it is not one."""
    found = _CONTINUATION.fullmatch(continuation)
    return None if found is None else int(found[1])


def _etag(answer: Mapping[str, object], id: str) -> str:
    """The ETag in the answer to a write: in the document, if the service returns it anyway, or in the headers."""
    headers: Mapping[str, str] = getattr(answer, "get_response_headers", dict)()
    etag = answer.get("_etag") or headers.get("etag")
    if not isinstance(etag, str) or not etag:
        raise StoreAmbiguous(f"writing '{id}' was answered without an ETag: it may or may not have been done")
    return etag
