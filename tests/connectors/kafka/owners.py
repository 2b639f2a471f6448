"""Processes that own a lease of the sink `kafka` and write (writing.py), to be killed and frozen at its steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from connectors.kafka.topics import Topics
from patience import PATIENCE_S

from leasehold.pipeline.crash_point import VARIABLE

POINTS = ("before transaction", "transaction filled", "transaction committed")
END = 8


def writing(topics: Topics, epoch: int, crash: str | None = None, end: int = END) -> subprocess.Popen[str]:
    program = Path(__file__).with_name("writing.py")
    line = [sys.executable, str(program), topics.machine.servers, topics.name, str(epoch), str(end)]
    environment = os.environ | {"PYTHONFAULTHANDLER": "1"} | ({VARIABLE: crash} if crash else {})
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and what it printed."""
    out, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out + errors


def is_stopped(process: subprocess.Popen[str]) -> bool:
    state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"
