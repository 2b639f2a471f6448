"""One browser for all tests of the dashboard: Debian's Chromium, headless. A page that reports an error fails its test."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest_asyncio
from playwright.async_api import ConsoleMessage, Error, Page, async_playwright, expect

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

expect.set_options(timeout=60_000)  # other tests run beside these

Opened = Callable[..., Awaitable[Page]]


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def page() -> AsyncIterator[Page]:
    """Shared, as a browser's process for each page would cost most of these tests' time. Every server is another origin."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, "there is no Chromium for the dashboard's tests: run 'sudo apt-get install chromium'"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=list(QUIET), timeout=120_000)
        page = await browser.new_page()
        page.set_default_timeout(60_000)
        yield page
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def opened(page: Page) -> AsyncIterator[Opened]:
    """Opens the page of an address. Whatever it complains of fails the test, but answers that the API refused."""
    complaints: list[str] = []

    def broke(error: Error) -> None:
        complaints.append(str(error))

    def said(message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            complaints.append(message.text)

    async def page_of(url: str, *, width: int = 1280) -> Page:
        await page.set_viewport_size({"width": width, "height": 900})
        await page.goto(url)
        return page

    page.on("pageerror", broke)
    page.on("console", said)
    yield page_of
    await page.goto("about:blank")
    await page.emulate_media(color_scheme="light")
    page.remove_listener("pageerror", broke)
    page.remove_listener("console", said)
    assert complaints == []


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
