"""What a host says at its end: how much it has delivered, pipeline by pipeline."""

from __future__ import annotations

import pytest

from leasehold.common.clock import BootClock
from leasehold.leases.lease import Lease
from leasehold.pipeline.pump.run_parts import DeliveredBatch
from leasehold.service.stats import Stats, Summary, summaries_of, summary_lines


def delivered(*, events: int, rows: int, dead: int = 0) -> DeliveredBatch:
    return DeliveredBatch(
        start=None, to="1", events=events, rows=rows, dead_letters=dead, waited_s=0, transform_s=0, deliver_s=0
    )


def test_events_rows_and_dead_letters_of_all_partitions_and_batches_are_added_up() -> None:
    stats = Stats(BootClock())
    for partition, batch in (("1", delivered(events=3, rows=2)), ("2", delivered(events=5, rows=7, dead=1))):
        stats.record_batch(Lease(pipeline="letters", partition=partition), batch)
    assert summaries_of(stats, ["letters", "idle"]) == [
        Summary(pipeline="letters", events=8, rows=9, dead_letters=1),
        Summary(pipeline="idle", events=0, rows=0, dead_letters=0),
    ]


def line(events: int, rows: int, dead_letters: int = 0, *, finished: bool = True, is_alone: bool = True) -> str:
    summary = Summary(pipeline="letters", events=events, rows=rows, dead_letters=dead_letters)
    (text,) = summary_lines([summary], finished={"letters"} if finished else (), is_alone=is_alone)
    return text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (line(3, 2), "letters: 3 events in, 2 rows out"),
        (line(1, 1), "letters: 1 event in, 1 row out"),
        (line(1_000_000, 0), "letters: 1,000,000 events in, 0 rows out"),
        (line(3, 2, 1), "letters: 3 events in, 2 rows out, 1 dead letter"),
        (line(2, 0, 2), "letters: 2 events in, 0 rows out, 2 dead letters"),
    ],
)
def test_a_line_for_people_counts_events_rows_and_dead_letters_if_there_are_any(text: str, said: str) -> None:
    assert text == said


def test_a_pipeline_that_had_nothing_to_do_says_so() -> None:
    assert line(0, 0) == "letters: nothing to do"


def test_a_pipeline_that_could_not_do_its_work_does_not_claim_that_there_was_none() -> None:
    assert line(0, 0, finished=False) == "letters: 0 events in, 0 rows out"


def test_among_several_hosts_each_says_that_it_counts_its_own_work() -> None:
    assert line(3, 2, is_alone=False) == "this host: letters: 3 events in, 2 rows out"
    assert line(0, 0, is_alone=False) == "this host: letters: nothing to do"
