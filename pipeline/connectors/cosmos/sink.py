"""The sink `cosmos`: documents upserted, patched or deleted, by many point operations at a time.

It uses no transactional batches: each has one partition key value, and one throttled operation would fail its whole batch.
Python's SDK lacks the bulk mode of others; point operations cost the same request units, and each has its own answer.
So a request of this sink is many concurrent point operations, and throttled ones are sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from leasehold.common.azure import CosmosAccount
from leasehold.pipeline.async_sink import AsyncSink, Converted, Entry, Failed, Limits, refused
from leasehold.pipeline.async_sink.json_rows import Content
from leasehold.pipeline.async_sink.request_entry import Destination
from leasehold.pipeline.connectors.cosmos.change_feed_request import THROTTLED, FeedAnswer
from leasehold.pipeline.connectors.cosmos.client import CosmosContainer
from leasehold.pipeline.connectors.cosmos.point_operations import (
    NEXT,
    NO_CONTAINER,
    NOT_DONE,
    OF_CONTENT,
    Missing,
    Write,
    Writing,
    verdict,
)
from leasehold.pipeline.connectors.network import check_unresolvable
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import FeedError, FeedUnavailable, SinkNotFound, SinkRejected, SinkUnavailable
from leasehold.pipeline.values import VALUE_ERRORS

LIMITS = Limits(
    batch_entries_max=25,
    batch_bytes_max=8 * 1024 * 1024,
    entry_bytes_max=2 * 1024 * 1024,
    in_flight_max=4,
    buffered_entries_max=5_000,
)


def cosmos_sink(
    account: CosmosAccount,
    database: str,
    container: str,
    *,
    content: Content = "row",
    operation: str = "operation",
    patch_missing: Missing = "stop",
    limits: Limits = LIMITS,
) -> AsyncSink:
    """Raises ValueError if the limits contradict each other."""
    to = CosmosContainer(account, database, container, timeout_s=limits.request_timeout_s)
    destination = CosmosDestination(to, content=content, operation=operation, patch_missing=patch_missing)
    server = urlsplit(account.endpoint)
    endpoint = Endpoint(
        kind="database",
        system="azure.cosmosdb",
        name=container,
        server=server.hostname,
        port=server.port,
        namespace=database,
        collection=container,
    )
    return AsyncSink(destination, identity=f"cosmos:{to.name}", convert=destination, limits=limits, endpoint=endpoint)


@dataclass(frozen=True, slots=True)
class _Outcome:
    entry: Entry
    is_retried: bool = False
    is_throttled: bool = False
    may_land: bool = False
    retry_after_s: float | None = None
    refused: str | None = None
    is_of_content: bool = False


class CosmosDestination(Destination):
    """Entries are `Write`s, which it makes from rows itself."""

    def __init__(self, container: CosmosContainer, *, content: Content, operation: str, patch_missing: Missing) -> None:
        self._container = container
        self._content: Content = content
        self._operation = operation
        self._patch_missing: Missing = patch_missing
        self._writing: Writing | None = None

    def __call__(self, row: Mapping[str, Any], key: str) -> Converted | None:
        assert self._writing is not None, "call prepare first"
        return self._writing(row, key)

    def check_columns(self, columns: pa.Schema, destination: str) -> None:
        assert self._writing is not None, "call prepare first"
        self._writing.check_columns(columns, destination)

    async def prepare(self) -> None:
        try:
            paths = await self._container.read_key_paths()
        except FeedUnavailable as error:
            if await check_unresolvable(self._container.host):
                raise SinkNotFound(f"{error}: its host does not exist: look at `endpoint`") from error
            raise SinkUnavailable(str(error), retry_after_s=error.retry_after_s) from error
        except FeedError as error:
            raise SinkRejected(str(error)) from error
        self._writing = Writing(content=self._content, operation=self._operation, key_paths=paths)

    async def submit(self, entries: Sequence[Entry]) -> Failed:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(entry), name=f"write {entry.key}") for entry in entries]
        outcomes = [task.result() for task in tasks]
        if fatal := [outcome for outcome in outcomes if outcome.refused]:
            if not all(outcome.is_of_content for outcome in fatal):
                raise SinkRejected(str(fatal[0].refused))
            raise refused(str(fatal[0].refused), *(outcome.entry for outcome in fatal))
        failed = [outcome for outcome in outcomes if outcome.is_retried]
        return Failed(
            [outcome.entry for outcome in failed],
            retry_after_s=max((outcome.retry_after_s or 0.0 for outcome in failed), default=0.0) or None,
            is_throttled=any(outcome.is_throttled for outcome in failed),
            may_land=any(outcome.may_land for outcome in failed),
        )

    async def close(self) -> None:
        await self._container.close()

    async def _one(self, entry: Entry) -> _Outcome:
        write: Write = entry.value
        try:
            answer = await self._container.write(write)
        except FeedUnavailable as error:
            return _Outcome(entry, is_retried=True, may_land=True, retry_after_s=error.retry_after_s)
        except FeedError as error:
            return _Outcome(entry, refused=str(error))
        except Exception as error:  # the SDK's own checks; the other writes of the request continue
            what = f"azure-cosmos refuses to {write.kind} document {write.id!r} of entry {entry.key}"
            return _Outcome(
                entry, refused=f"{what}: {type(error).__name__}: {error}", is_of_content=isinstance(error, VALUE_ERRORS)
            )
        found = verdict(write, answer, self._patch_missing)
        if found == "refused":
            is_of_content = answer.status in OF_CONTENT and answer.substatus != NO_CONTAINER
            return _Outcome(entry, refused=self._refused(entry, write, answer), is_of_content=is_of_content)
        return _Outcome(
            entry,
            is_retried=found == "retry",
            is_throttled=found == "retry" and answer.status == THROTTLED,
            may_land=found == "retry" and answer.status not in NOT_DONE,
            retry_after_s=answer.retry_after_s,
        )

    def _refused(self, entry: Entry, write: Write, answer: FeedAnswer) -> str:
        status = f"{answer.status}/{answer.substatus}" if answer.substatus else str(answer.status)
        return (
            f"container {self._container.name} refuses to {write.kind} document {write.id!r} of entry {entry.key} with"
            f" {status} ({answer.message}): {NEXT.get(answer.status, 'correct what it names')}"
        )
