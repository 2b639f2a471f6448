"""The lease store: five calls over small documents with ETags, and further calls that are optional.

A store knows nothing about leases. It keeps JSON texts under ids and answers every write in one of four ways: done,
`StoreConflict` (or `StoreMissing`), `StoreUnavailable` (certainly not done) or `StoreAmbiguous` (perhaps done). To test
a new store, run `leasehold.leases.contract.LeaseStoreContract` on it.

Ids are `{group}/...` paths made by `leasehold.leases.document`: ASCII letters, digits and `/._-%`, at most 255 characters. Bodies
are JSON objects of at most 64 KiB; a store returns an equal object, whose text may differ. JSON text holds no raw NUL
and, as `leasehold.leases.document` writes it, no lone surrogate; a NUL inside a string is escaped and must be preserved. ETags
are opaque, and an id never gets the same ETag twice, not even if its document was deleted and created again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from math import inf
from typing import Literal, NamedTuple, TypeVar

from leasehold.common.clock import Clock, retry_after_s
from leasehold.leases.errors import StoreAmbiguous, StoreError, StoreUnavailable

T = TypeVar("T")
Operation = Literal["list", "changes", "count", "read", "create", "replace", "delete", "notify"]
READS: frozenset[Operation] = frozenset(("list", "changes", "count", "read"))
_DOING: Mapping[Operation, str] = {
    "list": "listing",
    "changes": "reading the changes of",
    "count": "counting",
    "read": "reading",
    "create": "creating",
    "replace": "replacing",
    "delete": "deleting",
    "notify": "notifying hosts by",
}
INTERFACE = 1
"""Version of the interface of stores: raised if classes for the version before would no longer work (docs/plugins.md)."""


class Stored(NamedTuple):
    """A document as the container holds it. The body is untrusted: anyone may have written it."""

    id: str
    body: str
    etag: str


class ChangedDocuments(NamedTuple):
    """What `LeaseStore.read_changes` found. token: for the next call, which continues from here."""

    documents: Sequence[Stored]
    token: str


class Hint(NamedTuple):
    """A reason to read the leases now. host: the one that has to act. pipeline: the one with changed leases. None: any."""

    host: str | None = None
    pipeline: str | None = None


class LeaseStore(ABC):
    """Documents that are changed by compare-and-swap. Every method raises only StoreError and its subclasses."""

    @abstractmethod
    async def list(self, prefix: str) -> list[Stored]:
        """Every document whose id starts with `prefix`, in id order. Raises StoreUnavailable."""

    @abstractmethod
    async def read(self, id: str) -> Stored:
        """Raises StoreMissing, StoreUnavailable."""

    @abstractmethod
    async def create(self, id: str, body: str) -> str:
        """The new document's ETag. Raises StoreConflict if it exists, StoreUnavailable, StoreAmbiguous."""

    @abstractmethod
    async def replace(self, id: str, body: str, etag: str) -> str:
        """The new ETag. Raises StoreConflict, StoreMissing, StoreUnavailable, StoreAmbiguous."""

    @abstractmethod
    async def delete(self, id: str, etag: str) -> None:
        """Raises StoreConflict, StoreMissing, StoreUnavailable, StoreAmbiguous."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections and threads. The store is not used afterwards."""

    async def read_changes(self, prefix: str, since: str | None = None) -> ChangedDocuments | None:
        """The documents whose id starts with `prefix` and that were created or replaced since the token `since`.

        None if the caller must list instead: the store offers no changes (the default), or cannot continue from `since`,
        because the token has expired, or this object did not issue it for this prefix. Raises StoreUnavailable.

        Without `since`, returns no documents, and the present token: a listing that begins afterwards and the changes since
        that token together miss nothing.

        - The answer is as fresh as a listing: it has every write that was answered before the call began, unless the token
          covers that write. A token covers a write only if an earlier answer has shown it, or if every listing that begins
          later shows it. So a write that is missing from one answer is in the next, whatever the order in which concurrent
          writes are carried out.
        - The answer has at most one version of each document, and its documents have no order. It may repeat a document
          that has not changed.
        - The answer does not show deletions. Only a listing or a count does.
        """
        return None

    async def count(self, prefix: str) -> int | None:
        """How many documents `list` would return; None if the store cannot count them for less than a listing (the default).

        As fresh as a listing. Raises StoreUnavailable.
        """
        return None

    async def notify(self, hints: Sequence[Hint]) -> None:
        """Pass hints on to all processes that watch, soon but without a guarantee. The default drops them. Raises
        StoreUnavailable, StoreAmbiguous.
        """

    async def watch(self) -> AsyncGenerator[Hint, None]:
        """Yield the hints of all processes, including this one, from now on. The default yields none, and ends.

        Hints may be lost, late or repeated. Earlier ones are lost, so the first hint is for any host, and is yielded as soon
        as others would arrive. Raises StoreUnavailable if there is no connection, or if it is lost.
        """
        hints: tuple[Hint, ...] = ()
        for hint in hints:
            yield hint

    async def documents(self, prefix: str) -> Sequence[Mapping[str, object]] | None:
        """For a container that also holds leases of other programs: every document whose id begins with `prefix`, as stored.

        None for every other container. Raises StoreUnavailable, StoreMissing.
        """
        return None


class StoreAround(LeaseStore):
    """A store that passes every call on to another one: through `_call`, except `watch`, `documents` and `close`."""

    def __init__(self, store: LeaseStore) -> None:
        self._store: LeaseStore = store

    @abstractmethod
    async def _call(self, operation: Operation, name: str, answer: Awaitable[T]) -> T:
        """Await the other store's answer. name: the id or prefix, or the hosts to notify, for messages."""

    async def list(self, prefix: str) -> list[Stored]:
        return await self._call("list", prefix, self._store.list(prefix))

    async def read_changes(self, prefix: str, since: str | None = None) -> ChangedDocuments | None:
        return await self._call("changes", prefix, self._store.read_changes(prefix, since))

    async def count(self, prefix: str) -> int | None:
        return await self._call("count", prefix, self._store.count(prefix))

    async def read(self, id: str) -> Stored:
        return await self._call("read", id, self._store.read(id))

    async def create(self, id: str, body: str) -> str:
        return await self._call("create", id, self._store.create(id, body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._call("replace", id, self._store.replace(id, body, etag))

    async def delete(self, id: str, etag: str) -> None:
        await self._call("delete", id, self._store.delete(id, etag))

    async def notify(self, hints: Sequence[Hint]) -> None:
        await self._call("notify", ", ".join(f"{hint.host}" for hint in hints), self._store.notify(hints))

    async def watch(self) -> AsyncGenerator[Hint, None]:
        """Has no time limit, since it waits until there is a hint."""
        async with aclosing(self._store.watch()) as hints:
            async for hint in hints:
                yield hint

    async def documents(self, prefix: str) -> Sequence[Mapping[str, object]] | None:
        return await self._store.documents(prefix)

    async def close(self) -> None:
        await self._store.close()


class Streaks:
    """Since when all calls of a kind have failed, and when the last call began (Clock seconds)."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._last = -inf

    def note(self, *, failed: bool, at: float) -> None:
        if not failed or self._since is None:
            self._since = at if failed else None
        self._last = at

    def failing_s(self, now: float, *, tried_since: float = -inf) -> float:
        """How long calls have failed; also 0 if none was tried since `tried_since`, because the cause may have ended."""
        return 0.0 if self._since is None or self._last < tried_since else now - self._since

    @property
    def spans_s(self) -> float:
        """From the first of the failed calls to the last."""
        return 0.0 if self._since is None else self._last - self._since


class OutcomesStore(StoreAround):
    """Notes whether writes and readings of leases succeed. reads: of many leases at once. A conflict counts as success.

    quiet_until: the end of the pause that the store demanded when it refused the last call about a single lease (Clock seconds).
    """

    def __init__(self, store: LeaseStore, clock: Clock) -> None:
        super().__init__(store)
        self.quiet_until = -inf
        self.writes, self.reads = Streaks(), Streaks()
        self._clock = clock

    async def _call(self, operation: Operation, name: str, answer: Awaitable[T]) -> T:
        began = self._clock.monotonic()
        try:
            result = await answer
        except (StoreUnavailable, StoreAmbiguous) as error:
            self._note(operation, began, error)
            raise
        except StoreError:
            self._note(operation, began)
            raise
        self._note(operation, began)
        return result

    def _note(self, operation: Operation, began: float, error: StoreError | None = None) -> None:
        is_write = operation in ("create", "replace", "delete")
        if is_write or operation == "read":
            self.quiet_until = self._clock.monotonic() + (0.0 if error is None else retry_after_s(error))
        kind = self.writes if is_write else self.reads if operation in ("list", "changes") else None
        if kind is not None:
            kind.note(failed=error is not None, at=began)


class TimedStore(StoreAround):
    """A store that ends calls after `timeout_s`: a read with StoreUnavailable, any other call with StoreAmbiguous. Only
    `watch` and `documents` may take longer: a migration may read much, and holds no lease meanwhile.

    A slow write of a lease does not end trust: heartbeats have a timeout of their own.
    """

    def __init__(self, store: LeaseStore, timeout_s: float) -> None:
        super().__init__(store)
        self._timeout_s = timeout_s

    async def close(self) -> None:
        """Later calls are refused: an API may outlive its host by a moment."""
        store, self._store = self._store, _Closed()
        await store.close()

    async def _call(self, operation: Operation, name: str, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except TimeoutError:
            doing = f"{_DOING[operation]} '{name}'"
            if operation in READS:
                raise StoreUnavailable(f"{doing} took longer than {self._timeout_s:g} s") from None
            raise StoreAmbiguous(f"{doing} got no answer within {self._timeout_s:g} s") from None


class _Closed(LeaseStore):
    """A store that is no longer used."""

    async def list(self, prefix: str) -> list[Stored]:
        raise self._refusal

    async def read_changes(self, prefix: str, since: str | None = None) -> ChangedDocuments | None:
        raise self._refusal

    async def count(self, prefix: str) -> int | None:
        raise self._refusal

    async def read(self, id: str) -> Stored:
        raise self._refusal

    async def create(self, id: str, body: str) -> str:
        raise self._refusal

    async def replace(self, id: str, body: str, etag: str) -> str:
        raise self._refusal

    async def delete(self, id: str, etag: str) -> None:
        raise self._refusal

    async def notify(self, hints: Sequence[Hint]) -> None:
        raise self._refusal

    async def documents(self, prefix: str) -> Sequence[Mapping[str, object]] | None:
        raise self._refusal

    async def close(self) -> None:
        """Nothing to close."""

    @property
    def _refusal(self) -> StoreUnavailable:
        return StoreUnavailable("the lease store is closed because this host has stopped: use another host")
