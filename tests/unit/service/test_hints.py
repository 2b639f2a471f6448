"""A host begins a round for hints that concern it, and not for each of many."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from lab.simulation.group import HostClock, logger

from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.store import Hint
from leasehold.leases.stores.memory import MemoryStore
from leasehold.service.hints import GAP_S, HintWatch


class Wire(MemoryStore):
    """A store whose hints a test gives; None breaks the connection, and the end of the list is the end of all hints."""

    def __init__(self, *connections: list[tuple[float, Hint | None]]) -> None:
        super().__init__()
        self.connections = list(connections)
        self.closed = 0

    async def watch(self) -> AsyncGenerator[Hint, None]:
        if not self.connections:
            return
        try:
            for pause_s, hint in self.connections.pop(0):
                await asyncio.sleep(pause_s)
                if hint is None:
                    raise StoreUnavailable("the connection was lost")
                yield hint
        finally:
            self.closed += 1


async def woken(store: MemoryStore, log: list[dict[str, Any]] | None = None) -> list[float]:
    """When the host was woken, in seconds from the start, until the hints end and a while after."""
    loop = asyncio.get_running_loop()
    began, times = loop.time(), list[float]()
    watch = HintWatch(
        store,
        host="a",
        pipelines=["orders"],
        wake=lambda: times.append(round(loop.time() - began, 3)),
        clock=HostClock(),
        rng=random.Random(1),
        log=logger([] if log is None else log),
    )
    await watch.run()
    return times


def then(hint: Hint | None, pause_s: float = 1.0) -> tuple[float, Hint | None]:
    return pause_s, hint


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("hint", "is_woken"),
    [
        (Hint(), True),
        (Hint("a"), True),
        (Hint("a", "orders"), True),
        (Hint(None, "orders"), True),
        (Hint("b"), False),
        (Hint("b", "orders"), False),
        (Hint(None, "others"), False),
        (Hint("a", "others"), False),
    ],
)
async def test_a_hint_wakes_the_hosts_that_it_concerns(hint: Hint, is_woken: bool) -> None:
    assert await woken(Wire([then(hint), then(Hint("nobody"))])) == ([1.0] if is_woken else [])


@pytest.mark.virtual
async def test_of_many_hints_the_first_wakes_at_once_and_the_others_once_each_gap() -> None:
    many = [then(Hint(), 1.0)] + [then(Hint(), 0.001)] * 250
    times = await woken(Wire([*many, then(Hint("nobody"))]))
    assert times == [1.0, 1.0 + GAP_S, 1.0 + 2 * GAP_S, 1.0 + 3 * GAP_S]


@pytest.mark.virtual
async def test_a_lost_connection_is_made_again_and_the_log_has_it_once() -> None:
    log: list[dict[str, Any]] = []
    store = Wire([then(None)], [then(None)], [then(Hint()), then(Hint("nobody"))])
    assert len(await woken(store, log)) == 1
    assert store.closed == 3
    assert [line["event"] for line in log] == [
        "no hints from other hosts, leases are handed over at the usual looks",
        "hints from other hosts recovered",
    ]


@pytest.mark.virtual
async def test_a_store_without_hints_ends_the_watch() -> None:
    assert await woken(MemoryStore()) == []
