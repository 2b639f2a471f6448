"""The sink `pulsar`, killed and frozen between any two of its steps: the next owner continues exactly; seen by pulsar-client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from connectors.pulsar.topics import Topics, numbers
from patience import PATIENCE_S, until

from leasehold.pipeline.crash_point import VARIABLE

pytestmark = pytest.mark.xdist_group("pulsar")
"""One broker, instead of one for each process."""

POINTS = ("producer attached", "before entry", "entry stored")
END = 8


def writing(topics: Topics, epoch: int, crash: str | None = None) -> subprocess.Popen[str]:
    program = Path(__file__).with_name("writing.py")
    line = [sys.executable, str(program), topics.machine.servers, topics.topic, str(epoch), str(END)]
    paths = {"PYTHONPATH": str(Path(__file__).parents[2])}
    environment = os.environ | {"PYTHONFAULTHANDLER": "1"} | paths | ({VARIABLE: crash} if crash else {})
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
    for epoch in (1, 2):
        at = 1 if point == "producer attached" else epoch
        code, said = finished(writing(topics, epoch, f"{point}:{at}"))
        assert code == -signal.SIGKILL, said
    code, said = finished(writing(topics, 3))
    assert (code, said.split()[:1]) == (0, ["done"]), said
    assert numbers(topics) == list(range(1, END + 1))


@pytest.mark.parametrize("point", POINTS)
async def test_an_owner_that_wakes_after_the_next_one_came_changes_nothing(topics: Topics, point: str) -> None:
    at = 1 if point == "producer attached" else 2
    frozen = writing(topics, 1, f"{point}:{at}:SIGSTOP")
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
    assert numbers(topics) == list(range(1, END + 1))
