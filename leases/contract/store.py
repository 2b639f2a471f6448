"""The promises of `leasehold.leases.store.LeaseStore`, each as a test."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable

import pytest

from leasehold.leases.document import BODY_BYTES_MAX
from leasehold.leases.errors import StoreConflict, StoreError, StoreMissing
from leasehold.leases.store import LeaseStore, Stored

ID = "pipeline/leases/7"
EMPTY = "{}"
TEXTS = (
    "",
    "plain",
    "Grüße, 世界, שלום, 🦊, \u202eback",
    "e\u0301 is not \u00e9",
    "\"quoted\" 'twice' \\ / `",
    "line\r\nfeed, tab\t, \u2028, \u2029, \u0085, \ufeff, \u0000 and \u001f",
    "\U0010ffff\uffff\ue000",
    "'; DROP TABLE lease_documents; --",
)
"""What the strings of a body may contain. NUL and other control characters are written as JSON escapes."""


@pytest.mark.asyncio
class LeaseStoreContract:
    """Define a fixture `store`: a LeaseStore on an empty container. If the container can have a second handle, as for
    another host, also define `other`.
    """

    @pytest.fixture
    def store(self) -> LeaseStore:
        raise NotImplementedError("define a fixture `store` that yields a LeaseStore on an empty container")

    @pytest.fixture
    def other(self, store: LeaseStore) -> LeaseStore:
        """A second handle on the same container."""
        return store

    async def test_a_created_document_is_read_by_everyone(self, store: LeaseStore, other: LeaseStore) -> None:
        etag = await store.create(ID, '{"tick":1}')
        for handle in (store, other):
            stored = await handle.read(ID)
            assert (stored.id, json.loads(stored.body), stored.etag) == (ID, {"tick": 1}, etag)

    async def test_a_document_that_exists_is_not_created_again(self, store: LeaseStore, other: LeaseStore) -> None:
        etag = await store.create(ID, '{"by":"first"}')
        for handle in (store, other):
            with pytest.raises(StoreConflict):
                await handle.create(ID, '{"by":"second"}')
        await _stands(store, '{"by":"first"}', etag)

    async def test_a_document_that_does_not_exist_is_missing(self, store: LeaseStore) -> None:
        with pytest.raises(StoreMissing):
            await store.read(ID)
        with pytest.raises(StoreMissing):
            await store.replace(ID, EMPTY, "1")
        with pytest.raises(StoreMissing):
            await store.delete(ID, "1")
        assert await store.list("") == []

    async def test_replacing_with_the_right_etag_changes_body_and_etag(
        self, store: LeaseStore, other: LeaseStore
    ) -> None:
        first = await store.create(ID, '{"tick":1}')
        second = await other.replace(ID, '{"tick":2}', first)
        assert second != first
        await _stands(store, '{"tick":2}', second)
        await _stands(other, '{"tick":2}', second)

    async def test_replacing_with_an_equal_body_changes_the_etag_too(self, store: LeaseStore) -> None:
        first = await store.create(ID, EMPTY)
        assert await store.replace(ID, EMPTY, first) != first

    async def test_a_stale_etag_changes_nothing(self, store: LeaseStore, other: LeaseStore) -> None:
        stale = await store.create(ID, '{"tick":1}')
        etag = await other.replace(ID, '{"tick":2}', stale)
        with pytest.raises(StoreConflict):
            await store.replace(ID, '{"tick":3}', stale)
        with pytest.raises(StoreConflict):
            await store.delete(ID, stale)
        await _stands(store, '{"tick":2}', etag)

    async def test_a_foreign_etag_changes_nothing(self, store: LeaseStore) -> None:
        etag = await store.create(ID, EMPTY)
        sibling = await store.create(ID + "1", EMPTY)
        for foreign in ("", "*", "0", "-1", "null", "garbage", '"é"', "9" * 40, "0" + etag, etag + "0", sibling):
            with pytest.raises(StoreConflict):
                await store.replace(ID, '{"tick":2}', foreign)
            with pytest.raises(StoreConflict):
                await store.delete(ID, foreign)
        await _stands(store, EMPTY, etag)

    async def test_a_deleted_document_is_gone_for_everyone(self, store: LeaseStore, other: LeaseStore) -> None:
        etag = await store.create(ID, EMPTY)
        await store.delete(ID, etag)
        for handle in (store, other):
            with pytest.raises(StoreMissing):
                await handle.read(ID)
            with pytest.raises(StoreMissing):
                await handle.replace(ID, EMPTY, etag)
            with pytest.raises(StoreMissing):
                await handle.delete(ID, etag)
            assert await handle.list("") == []

    async def test_an_etag_never_comes_back_when_a_document_is_created_again(
        self, store: LeaseStore, other: LeaseStore
    ) -> None:
        seen: list[str] = []
        for handle in (store, other, store):
            seen.append(await handle.create(ID, EMPTY))
            for stale in seen[:-1]:
                with pytest.raises(StoreConflict):
                    await handle.replace(ID, EMPTY, stale)
            seen.append(await handle.replace(ID, EMPTY, seen[-1]))
            await handle.delete(ID, seen[-1])
        assert len(set(seen)) == len(seen)

    async def test_a_listing_holds_exactly_what_starts_with_the_prefix_in_id_order(
        self, store: LeaseStore, other: LeaseStore
    ) -> None:
        wanted = [f"a_b/leases/{name}" for name in ("%41", "-", "1", "10", "2", "A", "Z.csv", "_", "a", "x%2Fy")]
        near = ["A_b/leases/1", "a%b/leases/1", "a_b/info", "a_b/lease", "a_b/leases", "a_b/leasesX1", "aXb/leases/1"]
        near += ["a_B/leases/1", "b/a_b/leases/1", "a_b/LEASES/1"]
        etags = {name: await store.create(name, json.dumps({"id": name})) for name in reversed(wanted + near)}
        listed = await other.list("a_b/leases/")
        assert [stored.id for stored in listed] == sorted(wanted)
        assert all(json.loads(stored.body) == {"id": stored.id} for stored in listed)
        assert all(stored.etag == etags[stored.id] for stored in listed)
        assert [stored.id for stored in await other.list("")] == sorted(wanted + near)
        assert await other.list("a_b/leases/3") == []
        for pattern in ("%", "_", "*", "a%", "a_b/leases/__"):
            assert all(stored.id.startswith(pattern) for stored in await other.list(pattern))

    async def test_documents_of_the_group_are_listed_together_and_without_leases(
        self, store: LeaseStore, other: LeaseStore
    ) -> None:
        for name in ("_hosts/host-a", "a_b/info", "_control/a_b", "a_b/leases/_hosts"):
            await store.create(name, json.dumps({"id": name}))
        assert [stored.id for stored in await other.list("_")] == ["_control/a_b", "_hosts/host-a"]

    async def test_changes_are_what_was_created_or_replaced_since_the_token(
        self, store: LeaseStore, other: LeaseStore
    ) -> None:
        before = await store.create("a/leases/0", EMPTY)
        await store.create("a/leases/1", EMPTY)
        if (token := await _token(store)) is None:
            return  # it offers none
        assert await _read_changes(store, token) == ({}, token), "nothing was written since"
        replaced = await other.replace("a/leases/0", '{"tick":1}', before)
        replaced = await other.replace("a/leases/0", '{"tick":2}', replaced)
        etag = await other.create("a/leases/2", '{"text":"世界 \\u0000"}')
        await other.create("a/info", EMPTY)
        await other.create("b/leases/0", EMPTY)
        found, after = await _read_changes(store, token)
        assert found == {
            "a/leases/0": Stored("a/leases/0", '{"tick": 2}', replaced),
            "a/leases/2": Stored("a/leases/2", '{"text": "\\u4e16\\u754c \\u0000"}', etag),
        }
        assert await _read_changes(store, token) == (found, after), "an answer that was lost is given again"
        assert (await _read_changes(store, after))[0] == {}

    async def test_changes_do_not_show_what_was_deleted(self, store: LeaseStore, other: LeaseStore) -> None:
        kept = [await store.create(f"a/leases/{name}", EMPTY) for name in range(3)]
        if (token := await _token(store)) is None:
            return
        await other.delete("a/leases/0", kept[0])
        await other.delete("a/leases/1", await other.replace("a/leases/1", EMPTY, kept[1]))
        again = await other.create("a/leases/0", '{"tick":1}')
        found, after = await _read_changes(store, token)
        assert found == {"a/leases/0": Stored("a/leases/0", '{"tick": 1}', again)}
        await other.delete("a/leases/0", again)
        assert (await _read_changes(store, after))[0] == {}

    async def test_a_count_is_of_what_a_listing_returns(self, store: LeaseStore, other: LeaseStore) -> None:
        etags = [await store.create(f"a/leases/{number}", EMPTY) for number in range(12)]
        if await store.count("a/leases/") is None:
            return  # it does not count
        for name in ("a/info", "a_b/leases/0", "b/leases/0"):
            await store.create(name, EMPTY)
        assert await other.count("a/leases/") == 12
        await other.delete("a/leases/0", await store.replace("a/leases/0", EMPTY, etags[0]))
        assert (await store.count("a/leases/"), await other.count("a/leases/")) == (11, 11)
        assert await store.count("c/leases/") == 0
        assert await store.count("") == len(await store.list(""))

    @pytest.mark.parametrize("token", ["", "0", "-1", "garbage", "a 0:1", "9" * 40, "٣", "\u0000"])
    async def test_a_token_that_the_store_did_not_give_is_answered_by_none(self, store: LeaseStore, token: str) -> None:
        etag = await store.create(ID, EMPTY)
        await store.delete(ID, etag)
        given = await store.read_changes("")
        for unknown in (token, *([] if given is None else [given.token + (token or "x"), token + given.token + "x"])):
            assert await store.read_changes("", unknown) is None

    async def test_changes_read_while_others_write_miss_nothing(self, store: LeaseStore, other: LeaseStore) -> None:
        """Whatever the order in which concurrent writes are carried out, each is in the listing or in one of the answers."""
        names = [f"a/leases/{number}" for number in range(8)]
        for name in names[:4]:
            await store.create(name, '{"count":0}')
        if (token := await _token(store)) is None:
            return
        written: dict[str, str] = {}

        async def write(handle: LeaseStore, name: str) -> None:
            for count in range(6):
                try:
                    stored = await handle.read(name)
                    written[name] = await handle.replace(name, json.dumps({"count": count}), stored.etag)
                except StoreMissing:
                    written[name] = await handle.create(name, '{"count":0}')

        writers = asyncio.gather(*(write((store, other)[n % 2], name) for n, name in enumerate(names)))
        seen = {stored.id: stored for stored in await store.list("a/leases/")}
        while True:
            is_last, answered = writers.done(), dict(written)
            found, token = await _read_changes(store, token)
            seen |= found
            if is_last:
                break
            assert {
                name: int(json.loads(stored.body)["count"]) for name, stored in seen.items()
            }.keys() >= answered.keys()
        await writers
        assert {name: stored.etag for name, stored in seen.items()} == written

    @pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
    async def test_any_text_in_a_body_comes_back(self, store: LeaseStore, other: LeaseStore, text: str) -> None:
        body = json.dumps({text: text, "nested": [{"text": text}]}, ensure_ascii=False)
        await store.replace(ID, body, await store.create(ID, body))
        assert json.loads((await other.read(ID)).body) == json.loads(body)
        assert [json.loads(stored.body) for stored in await other.list(ID)] == [json.loads(body)]

    async def test_numbers_come_back_exactly(self, store: LeaseStore) -> None:
        body = json.dumps({"tick": 2**63 - 1, "epoch": 2**53 + 1, "share": 0.1, "flag": True, "none": None})
        await store.create(ID, body)
        assert json.loads((await store.read(ID)).body) == json.loads(body)

    async def test_a_body_may_have_the_size_that_a_document_may_have(
        self, store: LeaseStore, other: LeaseStore
    ) -> None:
        body = json.dumps({"text": ""})
        body = json.dumps({"text": "x" * (BODY_BYTES_MAX - len(body))})
        await store.create(ID, body)
        assert json.loads((await other.read(ID)).body) == json.loads(body)

    async def test_of_many_creations_one_wins(self, store: LeaseStore, other: LeaseStore) -> None:
        etags = await _race(*((store, other)[n % 2].create(ID, json.dumps({"by": n})) for n in range(16)))
        [(winner, etag)] = etags.items()
        await _stands(store, json.dumps({"by": winner}), etag)

    async def test_of_many_changes_of_one_state_one_wins(self, store: LeaseStore, other: LeaseStore) -> None:
        first = await store.create(ID, EMPTY)
        etags = await _race(*((store, other)[n % 2].replace(ID, json.dumps({"by": n}), first) for n in range(16)))
        [(winner, etag)] = etags.items()
        await _stands(other, json.dumps({"by": winner}), etag)

    async def test_of_a_change_and_a_deletion_one_wins(self, store: LeaseStore, other: LeaseStore) -> None:
        for _ in range(8):
            etag = await store.create(ID, EMPTY)
            won = await _race(store.replace(ID, EMPTY, etag), other.delete(ID, etag))
            [winner] = won
            assert len(await store.list(ID)) == (1 if winner == 0 else 0)
            if winner == 0:
                await store.delete(ID, won[0])

    async def test_no_update_is_lost_among_many_writers(self, store: LeaseStore, other: LeaseStore) -> None:
        await store.create(ID, '{"count":0}')
        async with asyncio.TaskGroup() as group:
            for n in range(8):
                group.create_task(_increment((store, other)[n % 2], times=5))
        await _stands(store, '{"count":40}', (await other.read(ID)).etag)

    async def test_a_call_cancelled_at_any_point_happened_or_not_and_leaves_the_store_usable(
        self, store: LeaseStore, other: LeaseStore
    ) -> None:
        bodies = {await store.create(ID, '{"count":0}'): 0}
        for count in range(1, 12):
            before = await store.read(ID)
            replaced = store.replace(ID, json.dumps({"count": count}), before.etag)
            for call in (store.list(""), replaced, store.read(ID)):
                await _cancel(call, after_turns=count)
            now = await other.read(ID)
            assert json.loads(now.body)["count"] <= count
            assert bodies.setdefault(now.etag, json.loads(now.body)["count"]) == json.loads(now.body)["count"]
        await _increment(store, times=1)
        assert await store.read(ID) == await other.read(ID)


async def _token(store: LeaseStore) -> str | None:
    """The present token; None if the store offers no changes."""
    begun = await store.read_changes("a/leases/")
    assert begun is None or not begun.documents
    return None if begun is None else begun.token


async def _read_changes(store: LeaseStore, token: str) -> tuple[dict[str, Stored], str]:
    """The changes since `token`, by id, with bodies as `json.dumps` writes them; and the next token."""
    changed = await store.read_changes("a/leases/", token)
    assert changed is not None
    found = {each.id: each._replace(body=json.dumps(json.loads(each.body))) for each in changed.documents}
    assert len(found) == len(changed.documents), "one version of each"
    return found, changed.token


async def _stands(store: LeaseStore, body: str, etag: str) -> None:
    stored = await store.read(ID)
    assert (json.loads(stored.body), stored.etag) == (json.loads(body), etag)


async def _race(*calls: Awaitable[str | None]) -> dict[int, str]:
    """The calls that were carried out, by number, with their results. The others met a conflict."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(error, StoreConflict | StoreMissing) for error in refused), refused
    return {n: result or "" for n, result in enumerate(results) if not isinstance(result, BaseException)}


async def _increment(store: LeaseStore, times: int) -> None:
    while times:
        stored = await store.read(ID)
        await asyncio.sleep(0)  # lets the others read the same
        with contextlib.suppress(StoreConflict):
            await store.replace(ID, json.dumps({"count": json.loads(stored.body)["count"] + 1}), stored.etag)
            times -= 1


async def _cancel(call: Awaitable[object], after_turns: int) -> None:
    """Run a call for some turns of the event loop, then cancel it."""
    task = asyncio.ensure_future(call)
    for _ in range(after_turns):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, StoreError):
        await task
