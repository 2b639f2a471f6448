"""Crash points: off unless armed, and then exactly the one that was asked for."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from leasehold.pipeline.crash_point import POINTS, VARIABLE, crash_point, watch_points

PACKAGES = Path(__file__).parents[3]
TWICE = """
from leasehold.pipeline.crash_point import crash_point
for name in 2 * ("page read", "appended"):
    print(name, flush=True)
    crash_point(name)
"""

WRITING = """
import sys, threading
from leasehold.pipeline import crash_point
from leasehold.pipeline.connectors.log.partition_file import BLOCK_SCHEMA
from leasehold.pipeline.connectors.log.store import Log

log = Log(sys.argv[1])
log.prepare()
partition = log.partition("busy", new=True)
event = BLOCK_SCHEMA.empty_table().from_pylist([{name: None for name in BLOCK_SCHEMA.names}], BLOCK_SCHEMA)

def write():
    while True:
        partition.append(event)
        pause.wait(0.0001)  # as a thread of an executor, which waits for its next call

pause = threading.Event()
def freeze():
    for number in range(1000):
        pause.wait(number % 10 * 0.0003)
        crash_point._ARMED = crash_point._Armed("page read:1:SIGSTOP")
        crash_point.crash_point("page read")

threading.Thread(target=write, daemon=True).start()
while not partition.extent().end:
    pass
threading.Thread(target=freeze).start()  # not the main thread, which a signal to the process would stop first
"""
FREEZES = 50


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


@pytest.mark.parametrize(
    ("armed", "told"),
    [
        ("page red", "there is no crash point 'page red'; there are 'lease acquired', "),
        (":2", "there is no crash point ''"),
        ("page read:0", "'0' of 'page read:0' must be 1 or more"),
        ("page read:twice", "'twice' of 'page read:twice' must be 1 or more"),
        ("page read:-1:SIGSTOP", "'-1' of 'page read:-1:SIGSTOP' must be 1 or more"),
        ("page read:²", "'²' of 'page read:²' must be 1 or more"),
        ("page read:1:SIGSTOPP", "'page read:1:SIGSTOPP' names the signal 'SIGSTOPP', which does not exist"),
        ("page read:1:19", "'page read:1:19' names the signal '19', which does not exist"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(armed: str, told: str) -> None:
    result = run(armed)
    assert (result.returncode, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert line.startswith(f"LEASEHOLD_CRASH_POINT: {told}")


def test_a_process_does_not_freeze_while_one_of_its_threads_is_inside_a_transaction(tmp_path: Path) -> None:
    """A thread writes one transaction after another; wherever the process freezes, others can write."""
    with subprocess.Popen([sys.executable, "-c", WRITING, tmp_path]) as process:
        try:
            for _ in range(FREEZES):
                _, status = os.waitpid(process.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
                with closing(sqlite3.connect(tmp_path / "busy.db", timeout=0, isolation_level=None)) as other:
                    other.execute("BEGIN IMMEDIATE")
                process.send_signal(signal.SIGCONT)
        finally:
            process.kill()


def test_every_point_stands_somewhere_and_every_place_has_a_point() -> None:
    sources = [
        path.read_text() for name in ("leases", "pipeline", "service") for path in (PACKAGES / name).rglob("*.py")
    ]
    placed = [found for source in sources for found in re.findall(r'^ +crash_point\("(.*)"\)$', source, re.MULTILINE)]
    assert sorted(placed) == sorted(POINTS)


def test_a_watcher_is_called_at_every_point_for_as_long_as_it_watches() -> None:
    reached: list[str] = []
    with watch_points(reached.append):
        crash_point("page read")
        with watch_points(lambda name: None):
            crash_point("page read")
        crash_point("of a user")
    crash_point("appended")
    assert reached == ["page read", "of a user"]
