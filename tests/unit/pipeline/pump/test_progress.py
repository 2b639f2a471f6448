"""When a runner has nothing to do."""

from __future__ import annotations

from pipeline.pump.progress import Progress


def test_a_stage_that_begins_ends_the_rest_of_a_runner_that_waits_for_events() -> None:
    progress = Progress()
    progress.rest(1.0)
    assert progress.is_idle
    with progress.working("transform", 2.0):
        assert not progress.is_idle, "a transform that hangs would count as nothing to do"
        progress.rest(3.0)
        assert not progress.is_idle
    progress.rest(4.0)
    assert progress.idle_since == 4.0
    progress.begin("deliver", 5.0)
    assert not progress.is_idle
    progress.end("deliver")
    progress.rest(6.0)
    assert progress.is_idle
