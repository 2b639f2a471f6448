"""One browser for all tests of the dashboard: Debian's Chromium, headless. A page that reports an error fails its test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest_asyncio
from browsers import PATIENCE_MS, blank_page, complaints
from playwright.async_api import Page, expect

AXE = Path(__file__).parents[2] / "browser" / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = Path(__file__).parents[3] / "build" / "dashboard"
expect.set_options(timeout=PATIENCE_MS)

Opened = Callable[..., Awaitable[Page]]


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def page() -> AsyncIterator[Page]:
    """Shared, as a browser's process for each page would cost most of these tests' time. Every server is another origin."""
    async with blank_page() as page:
        yield page


@pytest_asyncio.fixture(loop_scope="session")
async def opened(page: Page) -> AsyncIterator[Opened]:
    """Opens the page of an address. Whatever it complains of fails the test, but answers that the API refused."""

    async def page_of(url: str, *, width: int = 1280) -> Page:
        await page.set_viewport_size({"width": width, "height": 900})
        await page.goto(url)
        return page

    with complaints(page) as found:
        yield page_of
        await page.goto("about:blank")
        await page.emulate_media(color_scheme="light")
    assert found == []


async def live(page: Page) -> None:
    await expect(page.locator("#status-text")).to_contain_text("Live")


async def picture(page: Page, name: str, *, is_extra: bool = False) -> None:
    """Into build/dashboard, for people to look at; the extra ones where PICTURES=all."""
    if is_extra and os.environ.get("PICTURES") != "all":
        return
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


async def faults_of_access(page: Page, within: str = "html", rules: Sequence[str] = ()) -> list[str]:
    """What axe-core finds against WCAG 2.2, AA, and good practice. A look at a whole page costs a second: where the rest has been
    looked at, a part of it or some rules will do."""
    if not await page.evaluate("'axe' in window"):
        if not AXE.exists():
            raise FileNotFoundError(f"{AXE} is not there: run 'make browser'")
        await page.evaluate(AXE.read_text())
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    found = await page.evaluate("([within, options]) => axe.run(within, options)", [within, options])
    return [
        f"{rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
