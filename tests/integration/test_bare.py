"""What `make bare` refuses before it changes anything. Only fake programs are on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "bare"
TOOLS = ("bash", "env", "dirname")


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
