"""A page in Debian's Chromium, headless, for whoever looks at the dashboard."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from playwright.async_api import ConsoleMessage, Error, Page, async_playwright

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
PATIENCE_MS = 60_000
"""Other tests run beside those that look."""


@asynccontextmanager
async def blank_page() -> AsyncIterator[Page]:
    """Raises AssertionError where there is no browser."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, "there is no Chromium for the dashboard's tests: run 'sudo apt-get install chromium'"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=list(QUIET), timeout=2 * PATIENCE_MS)
        page = await browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        yield page
        await browser.close()


@contextmanager
def complaints(page: Page) -> Iterator[list[str]]:
    """Whatever the page complains of meanwhile, but answers that the API refused."""
    found: list[str] = []

    def broke(error: Error) -> None:
        found.append(str(error))

    def said(message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            found.append(message.text)

    listeners: dict[str, Callable[..., None]] = {"pageerror": broke, "console": said}
    for event, listener in listeners.items():
        page.on(event, listener)  # type: ignore[call-overload]
    yield found
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
