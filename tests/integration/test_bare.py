"""What `make bare` refuses before it changes anything, with only fake programs on PATH, and what is left if it ends early."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "bare"
TOOLS = ("bash", "env", "dirname")
HANGING = """#!/bin/sh
echo > "{folder}/started"
trap "" TERM
tail -f "{folder}/started"
"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def run(tools: Path, *arguments: str, user: int) -> tuple[int, str]:
    """The exit code, and what it prints to standard error."""
    (tools / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (tools / "id").chmod(0o755)
    done = subprocess.run(
        [SCRIPT, *arguments],
        env={"PATH": str(tools), "HOME": os.devnull},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", [(), ("noble",), ("../bookworm",)])
def test_only_known_releases_of_debian_are_tried(tools: Path, arguments: tuple[str, ...]) -> None:
    expected = "bare: name a Debian: .ci/bare bookworm, or trixie (make bare SUITE=trixie)\n"
    assert run(tools, *arguments, user=0) == (1, expected)


def test_without_root_the_message_names_the_command(tools: Path) -> None:
    expected = "bare: a chroot needs root: run 'sudo make bare SUITE=trixie'\n"
    assert run(tools, "trixie", user=1000) == (1, expected)


def test_a_missing_tool_is_named_with_its_package_and_not_installed(tools: Path) -> None:
    expected = "bare: debootstrap is missing: run 'apt-get install debootstrap util-linux git'\n"
    assert run(tools, "trixie", user=0) == (1, expected)


# Ends of a real run, in real namespaces


class Run:
    """A run whose debootstrap never ends, and ignores SIGTERM."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "bin/debootstrap").write_text(HANGING.format(folder=folder))
        (folder / "bin/debootstrap").chmod(0o755)
        self.process = subprocess.Popen(
            [SCRIPT, "trixie"],
            env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "BARE_DIR": str(folder), **env},
            stderr=subprocess.PIPE,
            text=True,
        )

    def has_started(self) -> bool:
        return (self.folder / "started").exists()

    def is_locked(self) -> bool:
        return subprocess.run(["flock", "-n", self.folder / "trixie.lock", "true"], check=False).returncode != 0

    def left(self) -> list[psutil.Process]:
        """Processes of debootstrap."""
        found = psutil.process_iter(["cmdline"])
        return [each for each in found if any(str(self.folder) in word for word in each.info["cmdline"] or ())]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("needs root, and the permission to make namespaces")
    runs: list[Run] = []

    def start(**env: str) -> Run:
        runs.append(Run(tmp_path, **env))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.communicate()
        for process in run.left():
            process.kill()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_that_is_killed_leaves_no_process_and_no_lock(start: Callable[..., Run]) -> None:
    run = start()
    wait_until(run.has_started)
    assert run.left()
    assert run.is_locked()
    run.process.kill()
    wait_until(lambda: not run.left())
    assert not run.is_locked()


def test_a_command_that_takes_too_long_is_ended_and_named(start: Callable[..., Run]) -> None:
    run = start(BARE_STEP_S="0.5", BARE_GRACE_S="0.5")
    _, errors = run.process.communicate(timeout=120)
    assert run.process.returncode == 1
    assert "debootstrap was killed, or took longer than 0.5 s (BARE_STEP_S sets this limit)" in errors
    assert not run.left()
