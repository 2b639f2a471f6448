"""The one file with azure-cosmos in it: few requests, on the SDK's own authentication, TLS, endpoints and connections.

The SDK's change feed has continuations of its own, which neither .NET nor KEDA can read, and follows splits automatically. So
its call that reads all documents is used instead: azure-core's public hooks add the change feed's headers to its request, and
take the raw answer before the SDK sees it. What only the SDK can do (turning to another region) is left to it.
`tests/connectors/cosmos/test_client.py` names the part that a new version of the SDK has moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import azure.cosmos
from azure.core import MatchConditions
from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy, CosmosClient
from azure.cosmos.exceptions import CosmosHttpResponseError

from leasehold.common.azure import CosmosAccount, credential_of, tls_of, without_tls_object
from leasehold.common.azure_transport import Transport, Unauthorized
from leasehold.pipeline.connectors.cosmos.change_feed_request import (
    NOT_MODIFIED,
    OK,
    THROTTLED,
    TIMEOUT,
    Ask,
    FeedAnswer,
    refusal,
)
from leasehold.pipeline.connectors.cosmos.point_operations import Write
from leasehold.pipeline.connectors.cosmos.ranges import KeyRange, PhysicalRange
from leasehold.pipeline.errors import FeedError, FeedUnavailable

T = TypeVar("T")
TESTED = "4.17.*"
"""The newest azure-cosmos whose private part is known."""
SESSION_NOT_AVAILABLE, WRITE_FORBIDDEN, ACCOUNT_NOT_FOUND = 1002, 3, 1008


class CosmosContainer:
    """One container, on one client for all its partitions. Raises FeedError and what is below it."""

    def __init__(self, account: CosmosAccount, database: str, container: str, *, timeout_s: float) -> None:
        self.name = f"{account.host}/{database}/{container}"
        self._account = account
        self._database = database
        self._container = container
        self._timeout_s = timeout_s
        self._tls = None if account.ca_file is None else tls_of(account.ca_file)
        self._opening = asyncio.Lock()
        self._client: CosmosClient | None = None
        self._credential: Any = None

    async def read_changes(self, ask: Ask) -> FeedAnswer:
        """Any answer about the container; a 408 if none arrives in time."""
        hooks = _Hooks(ask.headers())
        try:
            async with asyncio.timeout(self._timeout_s):
                container = await self._open()
                items = container.read_all_items(max_item_count=ask.items_max, **hooks.arguments)
                await self._translate(anext(items.by_page(), None))
        except _Intercepted as taken:
            return taken.answer
        except TimeoutError:
            return FeedAnswer(TIMEOUT, {}, f"within {self._timeout_s:g} s".encode())
        raise FeedError(
            f"container {self.name}: this azure-cosmos version bypasses the request hooks and is not supported"
        )

    async def write(self, write: Write) -> FeedAnswer:
        """Upsert, patch or delete one document. Returns any answer about it, also a 429: the SDK does not wait.

        Raises FeedUnavailable if there is no answer, and FeedError.
        """
        return await self._call(self._execute(write))

    async def _execute(self, write: Write) -> FeedAnswer:
        container = await self._open()
        hooks, key = _WriteHooks().arguments, write.key[0] if len(write.key) == 1 else list(write.key)
        try:
            if write.kind == "upsert":
                await container.upsert_item(dict(write.document), no_response=True, **hooks)
            elif write.kind == "patch":
                await container.patch_item(write.id, key, write.patches, no_response=True, **hooks)
            else:
                await container.delete_item(write.id, key, **hooks)
        except _Intercepted as taken:
            if taken.is_of_document:
                return taken.answer
            raise
        return FeedAnswer(OK, {})

    async def list_ranges(self) -> list[PhysicalRange]:
        """The ranges that exist now. Raises FeedError, FeedUnavailable."""
        return [_range(found) for found in await self._call(self._ranges())]

    @property
    def host(self) -> str:
        """The account's host, without a port."""
        return urlsplit(self._account.endpoint).hostname or ""

    async def read_key_paths(self) -> tuple[str, ...]:
        """The paths of the partition key, like /account."""
        properties = await self._call(self._properties())
        return tuple(str(path) for path in properties["partitionKey"]["paths"])

    async def read_rid(self) -> str:
        """The resource id, which a container keeps for as long as it exists."""
        return str((await self._call(self._properties()))["_rid"])

    async def close(self) -> None:
        client, self._client = self._client, None
        credential, self._credential = self._credential, None
        if client is not None:
            await client.close()
        if credential is not None:
            await credential.close()

    async def _ranges(self) -> list[Mapping[str, Any]]:
        container = await self._open()
        # Nothing public returns ids and parents.
        read = getattr(container.client_connection, "_ReadPartitionKeyRanges", None)
        if read is None:
            raise FeedError(
                f"azure-cosmos {azure.cosmos.__version__} lacks _ReadPartitionKeyRanges of its connection, which lists"
                f" the container's ranges: pip install 'azure-cosmos=={TESTED}'"
            )
        pages = read(container.container_link, **_Hooks().arguments)
        return [found async for found in pages]

    async def _properties(self) -> Mapping[str, Any]:
        return cast(Mapping[str, Any], await (await self._open()).read(**_Hooks().arguments))

    async def _call(self, call: Awaitable[T]) -> T:
        what = f"container {self.name}"
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._translate(call)
        except _Intercepted as taken:
            raise refusal(taken.answer, what) from None
        except TimeoutError:
            raise FeedUnavailable(f"{what}: no answer within {self._timeout_s:g} s") from None

    async def _translate(self, call: Awaitable[T]) -> T:
        what = f"container {self.name}"
        try:
            return await call
        except Unauthorized:
            raise refusal(FeedAnswer(401, {}, b"it does not know the key"), what) from None
        except CosmosHttpResponseError as error:
            raise _refused(error, what) from error
        except ClientAuthenticationError as error:
            raise FeedError(
                f"{what}: azure-identity finds no credentials ({_in_line(error)}): check `identity`"
            ) from error
        except (AzureError, OSError) as error:
            raise FeedUnavailable(f"{what} cannot be reached: {_in_line(error)}") from error

    async def _open(self) -> ContainerProxy:
        async with self._opening:
            if self._client is None:
                transport = Transport(self._tls, is_opening=True)
                client = CosmosClient(
                    self._account.endpoint,
                    credential=self._account.key or self._identity(),
                    retry_connect=0,  # the SDK turns to another region all the same; then we pause
                    retry_read=0,
                    read_timeout=self._timeout_s,
                    connection_timeout=self._timeout_s,
                    transport=transport,
                )
                try:
                    await self._translate(client.__aenter__())
                    transport.is_opening = False
                except BaseException:
                    await client.close()
                    raise
                self._client = client
        return self._client.get_database_client(self._database).get_container_client(self._container)

    def _identity(self) -> Any:
        if self._credential is None:
            self._credential = credential_of(self._account.identity)
        return self._credential


class ScratchContainer(CosmosContainer):
    """A temporary container for probes of the service: `create` it, and `remove` it at the end. Its partition key is /pk."""

    async def create(self) -> None:
        await self._open()
        await self._call(self._in_database().create_container(self._container, PartitionKey("/pk")))

    async def remove(self) -> None:
        await self._open()
        await self._call(self._in_database().delete_container(self._container))

    async def create_document(self, document: dict[str, Any]) -> FeedAnswer:
        """Create a document unless one has its id. Raises FeedUnavailable, FeedError."""
        return await self._judge((await self._open()).create_item(document))

    async def replace_document(self, document: dict[str, Any], etag: str) -> FeedAnswer:
        """Replace a document if it still has that ETag. Raises FeedUnavailable, FeedError."""
        match = MatchConditions.IfNotModified
        replacing = (await self._open()).replace_item(document["id"], document, etag=etag, match_condition=match)
        return await self._judge(replacing)

    async def write_together(self, documents: Sequence[dict[str, Any]]) -> None:
        """Write documents of one key in one transaction. Raises FeedUnavailable, FeedError."""
        steps = [("upsert", (document,)) for document in documents]
        await self._call((await self._open()).execute_item_batch(steps, documents[0]["pk"]))

    async def count_documents(self, id: str) -> int:
        """How many documents of that id a query over all ranges finds. Raises FeedUnavailable, FeedError."""
        container = await self._open()

        async def count_found() -> int:
            parameters: list[dict[str, Any]] = [{"name": "@id", "value": id}]
            found = container.query_items("SELECT c.id FROM c WHERE c.id = @id", parameters=parameters)
            return len([each async for each in found])

        return await self._call(count_found())

    def _in_database(self) -> Any:
        assert self._client is not None, "it is open"
        return self._client.get_database_client(self._database)

    async def _judge(self, write: Awaitable[Mapping[str, Any]]) -> FeedAnswer:
        """The answer to a write; a conflict is an answer, too."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return FeedAnswer(OK, {"etag": str((await write)["_etag"])})
        except CosmosHttpResponseError as error:
            if error.status_code in (409, 412):
                return FeedAnswer(error.status_code, {})
            raise _refused(error, f"container {self.name}") from error
        except (AzureError, OSError, TimeoutError) as error:
            raise FeedUnavailable(f"container {self.name} cannot be reached: {_in_line(error)}") from error


class _Intercepted(Exception):
    """An answer that bypasses the SDK, which would turn it into something else."""

    def __init__(self, answer: FeedAnswer, *, is_of_document: bool = False) -> None:
        self.answer = answer
        self.is_of_document = is_of_document


class _Hooks:
    """Hooks of one call. Requests of the SDK's own (endpoints, the container's properties) pass, unless they are refused."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self._headers = headers

    @property
    def arguments(self) -> dict[str, Any]:
        return {"raw_request_hook": self._sent, "raw_response_hook": self._came}

    def _sent(self, request: Any) -> None:
        if self._is_for_changes(request.http_request):
            request.http_request.headers.update(self._headers)

    def _came(self, response: Any) -> None:
        answer = _head_of(response)
        is_taken = answer.status in (THROTTLED, 401) or (answer.status in (403, 404) and _is_ours(answer))
        if self._is_for_changes(response.http_request):
            is_taken = _is_ours(answer)
        if is_taken:
            raise _Intercepted(replace(answer, body=response.http_response.body()))

    def _is_for_changes(self, request: Any) -> bool:
        path = request.url.partition("?")[0].rstrip("/")
        return self._headers is not None and request.method == "GET" and path.endswith("/docs")


class _WriteHooks(_Hooks):
    """Hooks of one write: a refusal is an answer."""

    def _came(self, response: Any) -> None:
        if response.http_request.method not in ("POST", "PATCH", "DELETE"):
            super()._came(response)
            return
        answer = _head_of(response)
        if answer.status >= 400 and _is_ours(answer):
            raise _Intercepted(replace(answer, body=response.http_response.body()), is_of_document=True)


def _head_of(response: Any) -> FeedAnswer:
    """The answer without its body, which is read only if it is wanted."""
    answer = response.http_response
    return FeedAnswer(answer.status_code, {name.lower(): value for name, value in answer.headers.items()})


def _is_ours(answer: FeedAnswer) -> bool:
    """Whether the answer is about the container. After one about a region, the SDK turns to another region."""
    if answer.status in (OK, NOT_MODIFIED):
        return True
    if answer.status == 403:
        return answer.substatus not in (WRITE_FORBIDDEN, ACCOUNT_NOT_FOUND)
    if answer.status == 404:
        return answer.substatus != SESSION_NOT_AVAILABLE
    return 400 <= answer.status < 500


def _refused(error: CosmosHttpResponseError, what: str) -> FeedError:
    headers = {str(name).lower(): str(value) for name, value in dict(error.headers or {}).items()}
    return refusal(FeedAnswer(error.status_code or 503, headers, _in_line(error).encode()), what)


def _range(found: Mapping[str, Any]) -> PhysicalRange:
    span = KeyRange(str(found["minInclusive"]).upper(), str(found["maxExclusive"]).upper())
    return PhysicalRange(str(found["id"]), span, tuple(map(str, found.get("parents") or ())))


def _in_line(error: Exception) -> str:
    return " ".join(without_tls_object(error).split())[:300] or type(error).__name__
