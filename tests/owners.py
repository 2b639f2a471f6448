"""Processes that own a lease of a broker's sink and write, to be killed and frozen at its steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE_S

from leasehold.pipeline.crash_point import VARIABLE


def owning(program: Path, *arguments: str, crash: str | None) -> subprocess.Popen[str]:
    """crash: a crash point, as LEASEHOLD_CRASH_POINT has it."""
    more = {"PYTHONFAULTHANDLER": "1", "PYTHONPATH": str(Path(__file__).parent), **({VARIABLE: crash} if crash else {})}
    line = [sys.executable, str(program), *arguments]
    return subprocess.Popen(line, env=os.environ | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and what it printed."""
    out, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out + errors


def is_stopped(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> bool:
    """Whether all threads are."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/stat")
    return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)
