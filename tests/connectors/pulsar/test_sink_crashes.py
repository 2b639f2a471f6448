"""The sink `pulsar`, killed and frozen between any two of its steps: the next owner continues exactly; seen by pulsar-client."""

from __future__ import annotations

import signal

import pytest
from connectors.pulsar.owners import END, POINTS, writing
from connectors.pulsar.topics import Topics, numbers
from owners import finished, is_stopped
from patience import until

pytestmark = pytest.mark.xdist_group("pulsar")
"""One broker, instead of one for each process."""


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
