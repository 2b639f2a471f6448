"""What a context takes for a checkpoint, and what `Retry` takes for a pause."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.handlers.changes import Context, Document, Event, HandlerLease, Retry

DOCUMENT = Document(id="a", sequence=999)
DOCUMENT.sequence = 3


def event_of(partition: str) -> Event:
    return Event(
        partition=partition,
        sequence=3,
        offset="3",
        enqueued_time=datetime(2026, 1, 31, tzinfo=UTC),
        key=None,
        body=b"{}",
        properties={},
        operation=None,
    )


def context_of(taken: list[int]) -> Context:
    async def acknowledge(sequence: int) -> None:
        taken.append(sequence)

    lease = HandlerLease(pipeline="bank", partition="p", owner="host-a", epoch=1, generation=1, acknowledge=acknowledge)
    return Context(lease=lease, position=None)


@pytest.mark.parametrize("change", [event_of("p"), DOCUMENT, {"partition": "p", "sequence": 3, "n": 1}, 3])
async def test_a_change_or_its_sequence_is_a_checkpoint(change: Any) -> None:
    taken: list[int] = []
    await context_of(taken).checkpoint(change)
    assert taken == [3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            event_of("q"),
            "of partition 'p' got a change of partition 'q': call it on the context that came with the change",
        ),
        (
            dict(DOCUMENT),
            "got something of type dict: give it a change that the handler was called with, not a copy of it",
        ),
        ({"partition": "q", "sequence": 3}, "got something of type dict"),
        (True, "got something of type bool"),
    ],
)
async def test_another_partition_s_change_or_a_copied_document_is_no_checkpoint(change: Any, message: str) -> None:
    taken: list[int] = []
    with pytest.raises(SinkRejected, match=message):
        await context_of(taken).checkpoint(change)
    assert taken == []


@pytest.mark.parametrize("after_s", ["x", -1, float("nan"), float("inf")])
def test_a_pause_that_is_no_number_of_seconds_is_refused(after_s: Any) -> None:
    with pytest.raises(ValueError, match=r"`after_s` of `Retry` is .*: give it seconds, from 0 on, or leave it out"):
        Retry(after_s=after_s)


@pytest.mark.parametrize("given", [5, 0.5, None])
def test_a_pause_without_its_name_is_refused_with_what_to_write(given: Any) -> None:
    with pytest.raises(ValueError, match=rf"takes seconds by name: write Retry\(after_s={given or 5}\)"):
        Retry(given)
