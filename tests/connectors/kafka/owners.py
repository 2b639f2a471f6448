"""Processes that own a lease of the sink `kafka` and write (writing.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from connectors.kafka.topics import Topics
from owners import owning

POINTS = ("before put", "transaction filled", "put")
END = 8


def writing(topics: Topics, epoch: int, crash: str | None = None, end: int = END) -> subprocess.Popen[str]:
    program = Path(__file__).with_name("writing.py")
    return owning(program, topics.machine.servers, topics.name, str(epoch), str(end), crash=crash)
