"""The pure parts of publishing: what a reply means, how long to wait, what a snapshot may hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.producer import NUMBER_MAX, AttachRequest, OutgoingEvent, ProducerPosition, RetryPolicy
from leasehold.pipeline.producer.event import GROUP_MAX, OWNER_LEVEL_MAX, EventBatch, PreparedEvent
from leasehold.pipeline.producer.idempotent import restored, snapshot_of
from leasehold.pipeline.producer.partition import Unsettled, judged

NUMBERS = st.builds(
    ProducerPosition,
    group=st.integers(0, GROUP_MAX),
    level=st.integers(0, OWNER_LEVEL_MAX),
    number=st.integers(-1, NUMBER_MAX),
)


@given(NUMBERS, st.integers(1, 5000))
def test_a_reply_at_the_end_of_what_is_unsettled_tells_that_it_is_stored(after: ProducerPosition, events: int) -> None:
    unsettled = Unsettled(payloads=[b""] * events, key=None, after=after)
    assert judged(after.after(events), after.asked, unsettled, strict=False) == "stored"
    assert judged(after, after.asked, unsettled, strict=False) == "unsettled"
    for strange in (
        after.after(events + 1),
        ProducerPosition(group=after.group, level=after.level ^ 1, number=after.number),
    ):
        assert judged(strange, after.asked, unsettled, strict=False) == "strange"


@given(NUMBERS, NUMBERS)
def test_a_reply_overrides_what_was_asked_for_unless_we_are_strict(
    reply: ProducerPosition, other: ProducerPosition
) -> None:
    assert judged(reply, other.asked, None, strict=False) == "continue"
    assert judged(reply, None, None, strict=True) == "continue"
    assert judged(reply, AttachRequest(group=reply.group, level=None), None, strict=True) == "continue"
    assert judged(reply, other.asked, None, strict=True) == ("continue" if reply == other else "strange")


@given(st.dictionaries(st.text(max_size=20), NUMBERS.map(lambda numbers: numbers.asked), max_size=5))
def test_a_snapshot_is_restored_as_it_was(partitions: dict[str, AttachRequest]) -> None:
    assert restored(snapshot_of(partitions)) == partitions


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "null",
        "[" * 100_000,
        '{"0":{}}',
        '{"0":{"group":1,"level":1}}',
        '{"0":{"group":1,"level":1,"number":1,"more":1}}',
        '{"0":{"group":1,"level":1,"number":true}}',
        '{"0":{"group":1,"level":1,"number":1.0}}',
        '{"0":{"group":1,"level":1,"number":-2}}',
        '{"0":{"group":1,"level":32768,"number":1}}',
        '{"0":{"group":9223372036854775808,"level":1,"number":1}}',
        '{"0":{"group":null,"level":1,"number":1}}',
    ],
)
def test_a_snapshot_that_nobody_took_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the snapshot .*: give what IdempotentProducer\.snapshot\(\) returned"):
        restored(text)


def test_events_added_to_a_batch_are_not_in_what_was_sent_of_it() -> None:
    batch = EventBatch(
        partition="0", key=None, bytes_max=9, envelope_bytes=0, prepare=lambda one: PreparedEvent(one.body, 1)
    )
    assert batch.try_add(OutgoingEvent(body=b"x"))
    batch.begin()
    sent = batch.payloads
    batch.drop()
    assert batch.try_add(OutgoingEvent(body=b"y"))
    assert (sent, batch.payloads) == ([b"x"], [b"x", b"y"])


def test_pauses_double_up_to_their_limit_or_stay_as_they_are() -> None:
    growing = RetryPolicy(delay_s=1, delay_max_s=5)
    assert [growing.pause_s(retry) for retry in (1, 2, 3, 4, 500)] == [1, 2, 4, 5, 5]
    assert [RetryPolicy(delay_s=1, mode="fixed").pause_s(retry) for retry in (1, 2, 9)] == [1, 1, 1]


@pytest.mark.parametrize("wrong", [{"retries_max": -1}, {"delay_s": -1}, {"delay_max_s": -1}, {"try_timeout_s": 0}])
def test_a_retry_policy_without_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a retry policy needs"):
        RetryPolicy(**wrong)  # type: ignore[arg-type]
