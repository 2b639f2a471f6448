"""One browser for all tests of the dashboard: Debian's Chromium, headless. A page that reports an error fails its test."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

AXE = Path(__file__).parents[2] / "node" / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = Path(__file__).parents[3] / "build" / "dashboard"
NAMES = (
    os.environ.get("CHROMIUM", "chromium"),
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
)
"""As .ci/setup looks for them."""
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--disable-extensions", "--mute-audio", "--no-zygote"),
)

expect.set_options(timeout=30_000)  # other tests run beside these

Opened = Callable[..., Awaitable[Page]]


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def browser() -> AsyncIterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, "there is no Chromium for the dashboard's tests: run 'sudo apt-get install chromium'"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=list(QUIET), timeout=120_000)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def opened(browser: Browser) -> AsyncIterator[Opened]:
    """Opens the page of an address. Whatever it complains of fails the test, but answers that the API refused."""
    complaints: list[str] = []
    async with AsyncExitStack() as stack:

        async def page_of(url: str, **options: Any) -> Page:
            context = await browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
            stack.push_async_callback(context.close)
            page = await context.new_page()
            page.set_default_timeout(60_000)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
            await page.goto(url)
            return page

        yield page_of
    assert [what for what in complaints if not what.startswith("Failed to load resource")] == []


async def picture(page: Page, name: str, *, is_extra: bool = False) -> None:
    """Into build/dashboard, for people to look at; the extra ones where PICTURES=all."""
    if is_extra and os.environ.get("PICTURES") != "all":
        return
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


async def faults_of_access(page: Page) -> list[str]:
    """What axe-core finds against WCAG 2.2, AA, and good practice."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE.read_text())
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
