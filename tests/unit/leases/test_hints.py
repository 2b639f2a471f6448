"""Hints are sent together, once each, and a lost one costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from leasehold.leases.bell import Bell
from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.hints import HINTS_MAX, Hints
from leasehold.leases.store import Hint, TimedStore
from leasehold.leases.stores.memory import MemoryStore


class Board(MemoryStore):
    """A store that notes the hints that it passes on, once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[Hint, ...]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.is_away = False

    async def notify(self, hints: Sequence[Hint]) -> None:
        await self.go.wait()
        if self.is_away:
            raise StoreUnavailable("away")
        self.sent.append(tuple(hints))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_hints_that_wait_are_sent_together_and_once_each() -> None:
    board = Board()
    hints = Hints(TimedStore(board, 60))
    sending = asyncio.create_task(hints.keep_sending())
    board.go.clear()
    hints.add(Hint("a", "orders"))
    await settle()
    for host in ("b", "c", "b"):
        hints.add(Hint(host, "orders"))
    board.go.set()
    await settle()
    assert board.sent == [(Hint("a", "orders"),), (Hint("b", "orders"), Hint("c", "orders"))]
    sending.cancel()


async def test_very_many_hints_are_one_for_anybody() -> None:
    board = Board()
    hints = Hints(board)
    for number in range(HINTS_MAX + 1):
        hints.add(Hint(f"host-{number}"))
    await hints.send()
    assert board.sent == [(Hint(),)]


async def test_without_a_hint_nothing_is_sent() -> None:
    board = Board()
    await Hints(board).send()
    assert board.sent == []


async def test_a_hint_that_cannot_be_sent_is_dropped_and_the_next_is_sent() -> None:
    board = Board()
    hints = Hints(board)
    sending = asyncio.create_task(hints.keep_sending())
    board.is_away = True
    hints.add(Hint("a"))
    await settle()
    board.is_away = False
    hints.add(Hint("b"))
    await settle()
    assert board.sent == [(Hint("b"),)]
    sending.cancel()


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_command_hints_after_its_bell_and_a_lost_hint_is_no_error(is_away: bool) -> None:
    board = Board()
    board.is_away = is_away
    bell = Bell(board)
    bell.ring()
    bell.hints.add(Hint(None, "orders"))
    await bell.write()
    assert [each.id for each in await board.list("")] == ["_hosts.bell"]
    assert board.sent == ([] if is_away else [(Hint(None, "orders"),)])


async def test_a_store_has_no_hints_unless_it_says_so() -> None:
    store = TimedStore(MemoryStore(), 60)
    await store.notify([Hint()])
    assert [hint async for hint in store.watch()] == []
