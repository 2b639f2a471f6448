import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from leasehold.leases.errors import StoreAmbiguous, StoreConflict, StoreMissing, StoreUnavailable
from leasehold.leases.store import ChangedDocuments, LeaseStore, Stored, Streaks, TimedStore
from leasehold.leases.stores.memory import MemoryStore

ID = "pipeline/leases/0"
T = TypeVar("T")


class SilentStore(LeaseStore):
    """A container that carries out every call and answers none."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store

    async def list(self, prefix: str) -> list[Stored]:
        return await _unanswered(self._store.list(prefix))

    async def read_changes(self, prefix: str, since: str | None = None) -> ChangedDocuments | None:
        return await _unanswered(self._store.read_changes(prefix, since))

    async def count(self, prefix: str) -> int | None:
        return await _unanswered(self._store.count(prefix))

    async def read(self, id: str) -> Stored:
        return await _unanswered(self._store.read(id))

    async def create(self, id: str, body: str) -> str:
        return await _unanswered(self._store.create(id, body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await _unanswered(self._store.replace(id, body, etag))

    async def delete(self, id: str, etag: str) -> None:
        await _unanswered(self._store.delete(id, etag))

    async def close(self) -> None:
        await self._store.close()


async def _unanswered(call: Awaitable[T]) -> T:
    await call
    await asyncio.Event().wait()
    raise AssertionError


@pytest.fixture
def container() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def silent(container: MemoryStore) -> TimedStore:
    return TimedStore(SilentStore(container), timeout_s=0.01)


READS: list[Callable[[LeaseStore, str], Awaitable[object]]] = [
    lambda store, etag: store.list("pipeline/"),
    lambda store, etag: store.read_changes("pipeline/"),
    lambda store, etag: store.count("pipeline/"),
    lambda store, etag: store.read(ID),
]
WRITES: list[Callable[[LeaseStore, str], Awaitable[object]]] = [
    lambda store, etag: store.create("pipeline/leases/1", "{}"),
    lambda store, etag: store.replace(ID, '{"tick":2}', etag),
    lambda store, etag: store.delete(ID, etag),
]


@pytest.mark.parametrize("read", READS, ids=["list", "changes", "count", "read"])
async def test_a_read_without_an_answer_is_unavailable(
    container: MemoryStore, silent: TimedStore, read: Callable[[LeaseStore, str], Awaitable[object]]
) -> None:
    etag = await container.create(ID, "{}")
    with pytest.raises(StoreUnavailable, match=r"pipeline/.* took longer than 0\.01 s"):
        await read(silent, etag)


@pytest.mark.parametrize("write", WRITES, ids=["create", "replace", "delete"])
async def test_a_write_without_an_answer_is_ambiguous_since_it_may_have_happened(
    container: MemoryStore, silent: TimedStore, write: Callable[[LeaseStore, str], Awaitable[object]]
) -> None:
    etag = await container.create(ID, "{}")
    before = await container.list("")
    with pytest.raises(StoreAmbiguous, match=r"pipeline/leases/.* got no answer within 0\.01 s"):
        await write(silent, etag)
    assert await container.list("") != before


@pytest.mark.parametrize(
    "call", READS + WRITES, ids=["list", "changes", "count", "read", "create", "replace", "delete"]
)
async def test_cancelling_a_call_is_no_answer_of_the_store(
    container: MemoryStore, call: Callable[[LeaseStore, str], Awaitable[object]]
) -> None:
    etag = await container.create(ID, "{}")
    task = asyncio.ensure_future(call(TimedStore(SilentStore(container), timeout_s=60), etag))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_a_store_answers_in_time_is_passed_on(container: MemoryStore) -> None:
    store = TimedStore(container, timeout_s=60)
    etag = await store.create(ID, "{}")
    with pytest.raises(StoreConflict):
        await store.replace(ID, "{}", etag + "0")
    with pytest.raises(StoreMissing):
        await store.read("pipeline/leases/1")
    assert await store.list("") == await container.list("")


async def test_a_store_that_was_written_before_changes_could_be_read_has_its_caller_list() -> None:
    class Earlier(LeaseStore):
        list = read = create = replace = delete = close = MemoryStore.close  # type: ignore[assignment]

    assert Earlier.__abstractmethods__ == frozenset()
    for store in (Earlier(), TimedStore(Earlier(), timeout_s=60)):
        assert await store.read_changes("pipeline/") is None
        assert await store.read_changes("pipeline/", "1") is None
        assert await store.count("pipeline/") is None


def test_calls_that_failed_and_were_not_tried_again_since_do_not_count() -> None:
    """An outage may be over."""
    streaks = Streaks()
    streaks.note(failed=True, at=10.0)
    streaks.note(failed=True, at=20.0)
    assert streaks.failing_s(50.0, tried_since=20.0) == 40.0
    assert streaks.failing_s(50.0, tried_since=21.0) == 0.0
    streaks.note(failed=True, at=45.0)
    assert streaks.failing_s(50.0, tried_since=21.0) == 40.0
    streaks.note(failed=False, at=46.0)
    assert streaks.failing_s(50.0, tried_since=21.0) == 0.0
