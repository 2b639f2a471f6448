"""Somebody who watches the dashboard of one host while things happen elsewhere: one page, never loaded again, on an event loop
beside the test."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from browsers import PATIENCE_MS, blank_page, complaints
from patience import PATIENCE_S
from playwright.async_api import Page, expect

T = TypeVar("T")


@contextmanager
def loop_beside() -> Iterator[asyncio.AbstractEventLoop]:
    """One that runs on a thread of its own. What still runs there at the end is cancelled."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result(PATIENCE_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE_S)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Onlooker:
    """complaints: of the page, so far."""

    def __init__(self, page: Page, complaints: list[str], loop: asyncio.AbstractEventLoop) -> None:
        self.complaints = complaints
        self._page = page
        self._loop = loop

    def open(self, url: str, token: str) -> None:
        self._done(self._opened(url, token), PATIENCE_MS)

    def sees(self, leases: Mapping[str, int], within_s: float) -> list[str]:
        """Waits until the legend gives each host its number of leases; then who has moved to whom, newest first. Raises
        AssertionError, also where the page was loaded again."""
        return self._done(self._seen(leases, within_s * 1000), within_s * 1000 * len(leases))

    def picture(self, file: Path) -> None:
        self._done(self._page.screenshot(path=file, full_page=True), PATIENCE_MS)

    async def _opened(self, url: str, token: str) -> None:
        await self._page.goto(url)
        await self._page.locator("#token-input").fill(token)
        await self._page.locator("#token-input").press("Enter")
        await expect(self._page.locator("#status-text")).to_contain_text("Live", timeout=PATIENCE_MS)
        await self._page.evaluate("window.isTheSamePage = true")

    async def _seen(self, leases: Mapping[str, int], within_ms: float) -> list[str]:
        for name, count in leases.items():
            button = self._page.locator("#legend button", has_text=name)
            await expect(button).to_have_text(re.compile(rf"^{re.escape(name)}\s*{count}$"), timeout=within_ms)
        assert await self._page.evaluate("window.isTheSamePage")
        return await self._page.locator("#moves .from-to").all_inner_texts()

    def _done(self, work: Coroutine[Any, Any, T], within_ms: float) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within_ms / 1000 + 60)


@contextmanager
def onlooker() -> Iterator[Onlooker]:
    with loop_beside() as loop:
        stack = AsyncExitStack()

        def done(work: Coroutine[Any, Any, T]) -> T:
            return asyncio.run_coroutine_threadsafe(work, loop).result(3 * PATIENCE_MS / 1000)

        async def entered() -> Onlooker:
            page = await stack.enter_async_context(blank_page())
            return Onlooker(page, stack.enter_context(complaints(page)), loop)

        try:
            yield done(entered())
        finally:
            done(stack.aclose())
