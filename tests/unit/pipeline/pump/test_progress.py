"""When a runner has nothing to do, and since when the events wait that it has read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.pump.progress import Progress, WaitingEvents, microseconds


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


# Events that wait


def events(*times_us: int) -> pa.Table:
    return pa.table({"enqueued_time": pa.array(times_us, EVENT_SCHEMA.field("enqueued_time").type)})


def begun(*pages: Sequence[int], at: str | None = None) -> WaitingEvents:
    waiting = WaitingEvents()
    waiting.begin(at)
    for page in pages:
        waiting.add(events(*page))
    return waiting


def test_the_first_event_that_is_not_delivered_is_the_oldest() -> None:
    waiting = begun((10, 11, 12), (), (13, 13, 13), (9,))
    seen = [waiting.first_us]
    for count in (1, 3, 2):
        waiting.deliver(count, "x")
        seen.append(waiting.first_us)
    assert seen == [10, 11, 13, 9]
    waiting.deliver(1, "y")
    assert (waiting.first_us, waiting.is_empty, waiting.position) == (None, True, "y")


def test_what_is_delivered_comes_with_its_times() -> None:
    waiting = begun((10, 11, 12), (13, 13, 13))
    delivered = [[(n, list(times)) for n, times in waiting.deliver(count, "x")] for count in (2, 3, 1)]
    assert delivered == [[(2, [10, 11])], [(1, [12]), (2, [13])], [(1, [13])]]


def test_a_page_whose_events_have_one_time_is_kept_as_one_number() -> None:
    (run,) = begun([7] * 1000)._runs
    assert (run.events, len(run.times)) == (1000, 1)


def test_a_page_is_not_kept_in_memory_for_its_times() -> None:
    whole = events(*range(1000))
    address = whole["enqueued_time"].chunk(0).buffers()[1].address
    (run,) = begun(range(1000))._runs
    assert run.times.flags.owndata
    assert run.times.ctypes.data != address


@pytest.mark.parametrize("page", [(10, 11), (10, 10)])
def test_what_a_failed_run_could_not_deliver_waits_until_the_next_one_has_read_it(page: tuple[int, ...]) -> None:
    waiting = begun((8,), page)
    waiting.deliver(1, "1")
    waiting.begin("1")
    assert (waiting.first_us, waiting.is_empty) == (10, False)
    waiting.begin("1")  # and fails again
    assert waiting.first_us == 10
    waiting.add(events(*page))
    waiting.deliver(2, "3")
    assert (waiting.first_us, waiting.is_empty) == (None, True)


def test_where_the_sink_stands_elsewhere_after_a_failure_nothing_is_known() -> None:
    waiting = begun((8, 9))
    waiting.begin("2")
    assert (waiting.first_us, waiting.is_empty) == (None, True)


def failed() -> WaitingEvents:
    """After a run that read an event and could not deliver it."""
    waiting = begun((8,), at="5")
    waiting.begin("5")
    return waiting


def test_a_position_that_moves_without_events_leaves_none_from_an_earlier_run() -> None:
    waiting = failed()
    waiting.deliver(0, "5")
    assert waiting.first_us == 8
    waiting.deliver(0, "9")
    assert (waiting.first_us, waiting.is_empty, waiting.position) == (None, True, "9")


def test_an_event_that_no_longer_exists_does_not_wait() -> None:
    waiting = failed()
    waiting.forget_first(waiting.run - 1, "5")  # measured before the event came
    waiting.forget_first(waiting.run, "4")
    assert (waiting.first_us, waiting.is_empty) == (8, False)
    waiting.forget_first(waiting.run, "5")
    assert (waiting.first_us, waiting.is_empty) == (None, True)
    waiting.add(events(9))
    waiting.forget_first(waiting.run, "5")
    assert waiting.first_us == 9, "it was read after the measurement"


def test_what_executors_read_is_unknown_and_keeps_its_place() -> None:
    waiting = begun((5,))
    waiting.add_unknown(100)
    waiting.add(events(6))
    waiting.deliver(1, "1")
    assert (waiting.first_us, waiting.is_empty) == (None, False)
    assert [(n, len(times)) for n, times in waiting.deliver(100, "101")] == [(100, 0)]
    assert waiting.first_us == 6


def test_times_that_a_faulty_feed_leaves_out_are_unknown() -> None:
    waiting = WaitingEvents()
    waiting.begin(None)
    waiting.add(pa.table({"enqueued_time": pa.array([1, None], EVENT_SCHEMA.field("enqueued_time").type)}))
    assert (waiting.first_us, waiting.is_empty) == (None, False)


def test_microseconds_are_exact() -> None:
    assert microseconds(datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)) == 1_769_860_800_123_456


def test_a_new_claim_ends_what_the_sink_was_excused_for() -> None:
    progress = Progress()
    with progress.working("deliver", 10.0), progress.working("transform", 20.0):
        progress.excuse_sink(500.0)
        progress.excuse_sink(30.0)
        assert progress.busy == {"deliver": 500.0, "transform": 20.0}
        progress.excuse_sink(40.0, is_new=True)
        assert progress.busy == {"deliver": 40.0, "transform": 20.0}


def test_only_the_time_of_a_wait_is_excused() -> None:
    progress = Progress()
    progress.excuse("transform", 5.0, 50.0)
    assert progress.busy == {}
    with progress.working("transform", 100.0):
        progress.excuse("transform", 30.0, 150.0)
        assert progress.busy == {"transform": 130.0}
        progress.excuse("transform", 30.0, 151.0)  # it began before the stage did
        assert progress.busy == {"transform": 151.0}
