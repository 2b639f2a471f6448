"""Processes that own a lease of the sink `pulsar` and write (writing.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from connectors.pulsar.topics import Topics
from owners import owning

POINTS = ("producer attached", "before entry", "entry stored")
END = 8


def writing(topics: Topics, epoch: int, crash: str | None = None, *, partition: str = "0") -> subprocess.Popen[str]:
    program = Path(__file__).with_name("writing.py")
    return owning(program, topics.machine.servers, topics.topic, partition, str(epoch), str(END), crash=crash)
