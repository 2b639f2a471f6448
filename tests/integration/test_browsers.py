"""Which browser the dashboard's tests use, and when they do without one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import browsers
import pytest

STUB = """#!/bin/sh
echo "Command '$0' requires the chromium snap to be installed."
"""


@pytest.fixture(autouse=True)
def no_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file with the reason, which is not there."""
    monkeypatch.setattr(browsers, "NO_BROWSER", tmp_path / "no-browser.txt")
    monkeypatch.delenv("CI", raising=False)
    browsers.find_browser.cache_clear()
    yield tmp_path / "no-browser.txt"
    browsers.find_browser.cache_clear()


def program(path: Path, script: str) -> str:
    path.write_text(script)
    path.chmod(0o755)
    return str(path)


def test_the_first_browser_that_answers_with_a_version_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = program(tmp_path / "node", "#!/bin/sh\necho v24.1.0\n")
    stub = program(tmp_path / "stub", STUB)
    works = program(tmp_path / "works", "#!/bin/sh\necho Chromium 150.0.7871.100\n")
    monkeypatch.setattr(browsers, "compute_driver_executable", lambda: (driver, "cli.js"))
    monkeypatch.setattr(browsers, "NAMES", (str(tmp_path / "missing"), stub, works))
    assert browsers.find_browser() == works


def test_browsers_start_once_for_all_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "starts.log"
    works = program(tmp_path / "works", f"#!/bin/sh\necho started >> {log}\necho Chromium 150.0.7871.100\n")
    monkeypatch.setattr(browsers, "compute_driver_executable", lambda: (works, "cli.js"))
    monkeypatch.setattr(browsers, "NAMES", (works,))
    assert browsers.find_browser() == browsers.find_browser() == works
    assert log.read_text().split() == ["started"] * 2


def test_no_browser_is_of_use_without_playwrights_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = program(tmp_path / "node", "#!/bin/sh\nexit 127\n")
    works = program(tmp_path / "works", "#!/bin/sh\necho Chromium 150.0.7871.100\n")
    monkeypatch.setattr(browsers, "compute_driver_executable", lambda: (driver, "cli.js"))
    monkeypatch.setattr(browsers, "NAMES", (works,))
    assert browsers.find_browser() is None


def test_without_a_browser_tests_are_skipped_for_the_reason_that_setup_wrote(
    no_browser: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_browser.write_text("run 'sudo apt-get install something'\n")
    monkeypatch.setattr(browsers, "NAMES", ())
    monkeypatch.setenv("CI", "true")

    async def open_page() -> None:
        async with browsers.blank_page():
            pass

    with pytest.raises(pytest.skip.Exception) as skipped:
        asyncio.run(open_page())
    assert str(skipped.value) == "run 'sudo apt-get install something'"


def test_without_setup_tests_are_skipped_and_name_its_target() -> None:
    with pytest.raises(pytest.skip.Exception, match="run 'make browser'"):
        browsers.do_without_browser()


def test_continuous_integration_does_not_skip_what_setup_did_not_excuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception), match="run 'make browser'") as ended:
        browsers.do_without_browser()
    assert ended.type is pytest.fail.Exception
