"""Crash points: off unless armed, and then exactly the one that was asked for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.crash_point import POINTS, VARIABLE

PACKAGES = Path(__file__).parents[3]
TWICE = """
from pipeline.crash_point import crash_point
for name in 2 * ("page read", "appended"):
    print(name, flush=True)
    crash_point(name)
"""


def run(armed: str | None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({} if armed is None else {VARIABLE: armed})}
    return subprocess.run([sys.executable, "-c", TWICE], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("armed", "code", "reached"),
    [
        (None, 0, 4),
        ("", 0, 4),
        ("page read", -signal.SIGKILL, 1),
        ("page read:2", -signal.SIGKILL, 3),
        ("appended:2:SIGTERM", -signal.SIGTERM, 4),
        ("appended:3", 0, 4),
        ("committed", 0, 4),
    ],
)
def test_a_process_dies_at_the_armed_point_and_nowhere_else(armed: str | None, code: int, reached: int) -> None:
    result = run(armed)
    assert (result.returncode, len(result.stdout.splitlines())) == (code, reached), result.stderr


def test_a_point_that_is_not_there_is_refused() -> None:
    result = run("page red")
    assert result.returncode == 1
    assert "there is no crash point 'page red'" in result.stderr


def test_every_point_stands_somewhere_and_every_place_has_a_point() -> None:
    sources = [
        path.read_text() for name in ("leases", "pipeline", "service") for path in (PACKAGES / name).rglob("*.py")
    ]
    placed = [found for source in sources for found in re.findall(r'^ +crash_point\("(.*)"\)$', source, re.MULTILINE)]
    assert sorted(placed) == sorted(POINTS)
