"""A page in the machine's Chromium, headless, for tests of the dashboard."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest
from patience import PATIENCE_S
from playwright._impl._driver import compute_driver_executable
from playwright.async_api import ConsoleMessage, Error, Page, async_playwright

NAMES = (
    os.environ.get("CHROMIUM", "chromium"),
    "chromium",
    "chromium-headless-shell",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
)
"""As .ci/setup looks for them."""
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--disable-extensions", "--mute-audio", "--no-zygote"),
)
PATIENCE_MS = 1000 * PATIENCE_S
"""Other tests run beside those that look."""
NO_BROWSER = Path(__file__).parents[1] / "build" / "no-browser.txt"
"""Where `make browser` writes why it could not install one."""


@cache
def find_browser() -> str | None:
    """The first browser that answers with a version: Ubuntu's chromium-browser may be a stub that only names a snap."""
    driver = compute_driver_executable()[0]
    found = filter(None, map(shutil.which, NAMES))
    return next(filter(_has_version, found), None) if _has_version(driver) else None


def _has_version(program: str) -> bool:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and re.search(r"\d+\.\d+", done.stdout) is not None


def do_without_browser() -> NoReturn:
    """Skips the test. Fails it in continuous integration, unless `make browser` found none to install."""
    if NO_BROWSER.exists():
        pytest.skip(NO_BROWSER.read_text().strip())
    reason = "no browser works here: run 'make browser', which installs one or prints the command for root"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@asynccontextmanager
async def blank_page() -> AsyncIterator[Page]:
    """Skips the test if the machine has no browser."""
    found = find_browser() or do_without_browser()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=list(QUIET), timeout=PATIENCE_MS)
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
