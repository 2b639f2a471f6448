"""A run of pytest that is ended by SIGTERM, as `make test` ends its runs after Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE_S, until

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
        until(lambda: len([*tmp_path.glob("*.pid")]) == servers, "all servers run")
        started = [int(file.stem) for file in tmp_path.glob("*.pid")]
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=PATIENCE_S)
        assert run.returncode == pytest.ExitCode.INTERRUPTED
        assert not [pid for pid in started if psutil.pid_exists(pid)]
    finally:
        run.kill()
        run.communicate()
        for file in tmp_path.glob("*.pid"):
            if psutil.pid_exists(int(file.stem)):
                os.kill(int(file.stem), signal.SIGKILL)
