"""Rendering of samples: its thread and its bounds."""

from __future__ import annotations

import asyncio
import threading

import pytest
from patience import PATIENCE_S

from leasehold.service.api import rendering as module
from leasehold.service.api.rendering import Allowance, Renderer


def test_an_allowance_grows_with_time_and_not_beyond_a_second() -> None:
    allowance = Allowance(10, now=0.0)
    allowance.spend(10)
    assert allowance.left(0.0) == 0
    assert allowance.left(0.35) == 3
    assert allowance.left(100.0) == 10


async def test_a_renderer_has_room_within_its_bytes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARSED_BYTES_PER_S", 1000)
    time = [0.0]
    renderer = Renderer(lambda: time[0])
    assert renderer.has_room()
    renderer.spend(1500)
    assert not renderer.has_room()
    time[0] = 0.4
    assert not renderer.has_room()
    time[0] = 0.6
    assert renderer.has_room()


async def test_a_renderer_has_room_again_when_its_thread_has_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 1000)
    renderer, may_go_on = Renderer(lambda: 0.0), threading.Event()
    done: asyncio.Queue[tuple[str, object]] = asyncio.Queue()

    def work() -> list[bytes]:
        may_go_on.wait(PATIENCE_S)
        return [threading.current_thread().name.encode()]

    for _ in range(2):
        renderer.spend(600)
        renderer.render(work, lambda texts: done.put_nowait((threading.current_thread().name, texts)), 600)
    assert not renderer.has_room()
    may_go_on.set()
    results = [await done.get() for _ in range(2)]
    assert results == [("MainThread", [b"taps_0"])] * 2, "one thread works, and the loop has the results"
    assert renderer.has_room()
