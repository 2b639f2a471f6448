"""The bell: it is rung by processes without a host, and counts."""

from __future__ import annotations

import json

import pytest
from unit.leases.shown_hosts import BeatStore as Store

from leasehold.leases.bell import WRITES_MAX as BELL_WRITES_MAX
from leasehold.leases.bell import Bell
from leasehold.leases.errors import StoreAmbiguous, StoreConflict, StoreError, StoreMissing
from leasehold.leases.host_record import BELL_ID
from leasehold.leases.stores.memory import MemoryStore


async def rung(store: MemoryStore) -> None:
    bell = Bell(store)
    bell.ring()
    await bell.write()


async def body(store: MemoryStore) -> object:
    return json.loads((await store.read(BELL_ID)).body)


async def test_a_bell_is_written_if_it_was_rung_and_counts() -> None:
    store = MemoryStore()
    await Bell(store).write()
    assert await store.list("") == []
    await rung(store)
    assert await body(store) == {"version": 1, "ring": 1}
    await rung(store)
    assert await body(store) == {"version": 1, "ring": 2}


@pytest.mark.parametrize(
    "garbled",
    [
        "",
        "{",
        "[]",
        '{"version":1}',
        '{"version":9,"ring":3}',
        '{"version":1,"ring":-1}',
        f'{{"version":1,"ring":{2**63 - 1}}}',
    ],
)
async def test_a_bell_that_cannot_be_read_is_replaced(garbled: str) -> None:
    store = MemoryStore()
    await store.create(BELL_ID, garbled)
    await rung(store)
    assert await body(store) == {"version": 1, "ring": 1}


@pytest.mark.parametrize("error", [StoreConflict, StoreMissing])
async def test_a_bell_that_another_process_rings_meanwhile_is_not_rung_twice(error: type[StoreError]) -> None:
    store = Store(0.0, error("another was first"))
    await rung(store)
    await rung(store)
    ring = {StoreConflict: 1, StoreMissing: 2}[error]
    assert await body(store) == {"version": 1, "ring": ring}


async def test_a_bell_whose_answers_are_lost_is_tried_a_few_times() -> None:
    store = Store(*[StoreAmbiguous("no answer")] * 10)
    with pytest.raises(StoreAmbiguous):
        await rung(store)
    assert len(store.attempts) == BELL_WRITES_MAX
    store = Store(StoreAmbiguous("no answer"))
    await rung(store)
    assert await body(store) == {"version": 1, "ring": 1}
