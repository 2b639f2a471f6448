"""The sink `kafka`, killed and frozen between any two of its steps: the next owner continues exactly, as aiokafka sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from connectors.kafka.topics import Topics, committed
from patience import PATIENCE_S, until

from leasehold.pipeline.crash_point import VARIABLE

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""

POINTS = ("before transaction", "transaction filled", "transaction committed")
END = 8


def writing(topics: Topics, epoch: int, crash: str | None = None) -> subprocess.Popen[str]:
    program = Path(__file__).with_name("writing.py")
    line = [sys.executable, str(program), topics.machine.servers, topics.name, str(epoch), str(END)]
    environment = os.environ | {"PYTHONFAULTHANDLER": "1"} | ({VARIABLE: crash} if crash else {})
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and what it printed."""
    out, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out + errors


def is_stopped(process: subprocess.Popen[str]) -> bool:
    state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


@pytest.mark.parametrize("point", POINTS)
async def test_after_a_kill_the_next_owner_continues_without_loss_or_repetition(topics: Topics, point: str) -> None:
    """The first time, the claim's own transaction may be the one that is left open."""
    for epoch in (1, 2):
        code, said = finished(writing(topics, epoch, f"{point}:{epoch}"))
        assert code == -signal.SIGKILL, said
    code, said = finished(writing(topics, 3))
    assert (code, said.split()[:1]) == (0, ["done"]), said
    assert [int(record.value or b"") for record in await committed(topics)] == list(range(1, END + 1))


@pytest.mark.parametrize("point", POINTS)
async def test_an_owner_that_wakes_after_the_next_one_came_changes_nothing(topics: Topics, point: str) -> None:
    frozen = writing(topics, 1, f"{point}:2:SIGSTOP")
    try:
        until(lambda: is_stopped(frozen) or frozen.poll() is not None, "the owner is frozen")
        code, said = finished(writing(topics, 2))
        assert code == 0, said
        frozen.send_signal(signal.SIGCONT)
        code, said = finished(frozen)
        assert code == 1, said
        assert "Fenced" in said
    finally:
        frozen.kill()
    assert [int(record.value or b"") for record in await committed(topics)] == list(range(1, END + 1))
