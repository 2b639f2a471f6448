"""The sink `kafka`, killed and frozen between any two of its steps: the next owner continues exactly, as aiokafka sees it."""

from __future__ import annotations

import signal

import pytest
from connectors.kafka.owners import END, POINTS, writing
from connectors.kafka.topics import Topics, committed
from owners import finished, is_stopped
from patience import until

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""


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
