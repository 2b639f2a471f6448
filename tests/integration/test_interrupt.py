"""A run of pytest that is ended by SIGTERM, as `make test` ends its runs after Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
BACKGROUND = ("sh", "-c", """trap '' INT; exec "$@" """, "sh")
"""As a shell starts what runs in its background: SIGINT is ignored."""
TESTS = """
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def server():
    process = subprocess.Popen(["tail", "-f", "/dev/null"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", range(2))
def test_hangs(server, number):
    (FOLDER / f"{server.pid}.pid").touch()
    server.wait()
"""


@pytest.mark.parametrize(("options", "servers"), [(("-p", "no:xdist"), 1), (("-n", "2"), 2)])
def test_an_ended_run_cleans_up(tmp_path: Path, options: tuple[str, ...], servers: int) -> None:
    (tmp_path / "test_hanging.py").write_text(TESTS)
    command = [
        *BACKGROUND,
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "plugins_interrupt",
        *options,
        "test_hanging.py",
    ]
    run = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}, stdout=subprocess.PIPE
    )
    try:
        started = wait_for(tmp_path, servers)
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=120)
        assert run.returncode == pytest.ExitCode.INTERRUPTED
        assert not [pid for pid in started if psutil.pid_exists(pid)]
    finally:
        run.kill()
        run.communicate()
        for file in tmp_path.glob("*.pid"):
            if psutil.pid_exists(int(file.stem)):
                os.kill(int(file.stem), signal.SIGKILL)


def wait_for(folder: Path, servers: int) -> list[int]:
    """Until so many run. Their pids."""
    deadline = time.monotonic() + 60
    while len(found := list(folder.glob("*.pid"))) < servers:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int(file.stem) for file in found]
