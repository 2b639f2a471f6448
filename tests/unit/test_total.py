"""The total of several test runs (tests/plugins_total.py)."""

from __future__ import annotations

import json
from pathlib import Path

import plugins_total
import pytest


def write(file: Path, exitstatus: int = 0, **found: int) -> str:
    file.write_text(json.dumps(plugins_total.counted(found, exitstatus)))
    return str(file)


def test_the_last_line_adds_up_all_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = write(tmp_path / "unit", passed=4900, skipped=40, xfailed=1, deselected=7)
    alone = write(tmp_path / "alone", passed=11)
    assert plugins_total.main([unit, alone]) == 0
    assert capsys.readouterr().out == "4911 passed, 0 failed, 41 skipped\n"


def test_errors_are_failures_and_fail_the_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = write(tmp_path / "unit", 1, passed=5, failed=2, error=3)
    rest = write(tmp_path / "rest", passed=1)
    assert plugins_total.main([unit, rest]) == 1
    assert capsys.readouterr().out == "6 passed, 5 failed, 0 skipped\n"


@pytest.mark.parametrize("exitstatus", [pytest.ExitCode.INTERRUPTED, pytest.ExitCode.NO_TESTS_COLLECTED])
def test_a_run_that_ended_badly_without_a_failed_test_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], exitstatus: int
) -> None:
    assert plugins_total.main([write(tmp_path / "unit", exitstatus, passed=5)]) == 1
    assert capsys.readouterr().out == "5 passed, 1 failed, 0 skipped\n"


@pytest.mark.parametrize("content", [None, "", '{"passed": '])
def test_a_run_that_did_not_finish_is_a_failure_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    if content is not None:
        (tmp_path / "alone").write_text(content)
    assert plugins_total.main([write(tmp_path / "unit", passed=5), str(tmp_path / "alone")]) == 1
    printed = capsys.readouterr()
    assert printed.out == "5 passed, 1 failed, 0 skipped\n"
    assert printed.err == "alone: the run did not finish\n"
