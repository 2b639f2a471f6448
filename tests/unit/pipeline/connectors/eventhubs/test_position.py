"""Continuations of an event hub: what they may look like, how they are ordered, and what an error of the service's means."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.connectors.eventhubs.amqp.decode import ReceivedEvent
from leasehold.pipeline.connectors.eventhubs.amqp.values import Malformed
from leasehold.pipeline.connectors.eventhubs.feed.receiver import pages_of
from leasehold.pipeline.connectors.eventhubs.position import (
    BEGINNING,
    EventPosition,
    compared,
    position_of,
    selector,
    time_selector,
)
from leasehold.pipeline.connectors.eventhubs.refusal import PositionRefused, refusal, refused
from leasehold.pipeline.errors import FeedError, FeedUnavailable, Fenced, PositionLost
from leasehold.pipeline.event import EVENT_SCHEMA

OFFSETS = st.one_of(st.none(), st.from_regex(r"[0-9A-Za-z:._-]{1,128}", fullmatch=True))
POSITIONS = st.builds(EventPosition, st.integers(0, 10**18 - 1), OFFSETS)


@given(POSITIONS)
def test_a_position_is_read_as_it_was_written(position: EventPosition) -> None:
    assert position_of(str(position)) == position


@pytest.mark.parametrize(("text", "position"), [(None, BEGINNING), ("41", (41, None)), ("@7:42", (None, "7:42"))])
def test_either_half_may_stand_alone(text: str | None, position: Any) -> None:
    assert position_of(text) == position


@pytest.mark.parametrize(
    "text", ["", "@", "-1", "41@", "1.5", " 41", "41\n", "9" * 19, "41@a'b", "41@" + "0" * 129, "٤"]
)
def test_anything_else_is_told_with_what_it_should_look_like(text: str) -> None:
    with pytest.raises(PositionLost, match="like '41@4294967296'"):
        position_of(text)


@given(POSITIONS, POSITIONS)
def test_positions_are_ordered_by_sequence_number_and_the_beginning_is_first(
    a: EventPosition, b: EventPosition
) -> None:
    assert (compared(a, b) > 0) == (int(a.sequence or 0) > int(b.sequence or 0))
    assert compared(BEGINNING, a) < 0 < compared(a, BEGINNING)
    assert compared(a, a) == 0


def test_an_offset_alone_is_behind_the_beginning_and_equal_to_itself_alone() -> None:
    offset = EventPosition(None, "100")
    assert compared(offset, EventPosition(7, "100")) == 0
    assert compared(BEGINNING, offset) < 0 < compared(offset, BEGINNING)
    with pytest.raises(PositionLost, match="an offset alone has no order"):
        compared(offset, EventPosition(7, "200"))


def test_a_selector_is_by_offset_where_there_is_one() -> None:
    assert selector(BEGINNING) == "amqp.annotation.x-opt-offset > '-1'"
    assert selector(EventPosition(4, "400")) == "amqp.annotation.x-opt-offset > '400'"
    assert selector(EventPosition(4)) == "amqp.annotation.x-opt-sequence-number > '4'"
    assert time_selector(1000) == "amqp.annotation.x-opt-enqueued-time > '999'"


def error(condition: str, description: str = "why") -> Exception:
    found = RuntimeError("x")
    found.__dict__.update(condition=condition.encode(), description=description.encode())
    return found


@pytest.mark.parametrize(
    ("condition", "kind", "told"),
    [
        ("amqp:not-found", FeedError, "check the name of the hub"),
        ("amqp:unauthorized-access", FeedError, "check the key or the identity"),
        ("com.microsoft:entity-disabled", FeedError, "enable the hub"),
        ("com.microsoft:argument-error", PositionRefused, "set the lease to a position"),
        ("com.microsoft:argument-out-of-range", PositionRefused, "set the lease to a position"),
        ("com.microsoft:server-busy", FeedUnavailable, "why"),
        ("com.microsoft:timeout", FeedUnavailable, "why"),
        ("amqp:link:detach-forced", FeedUnavailable, "why"),
        ("amqp:connection:forced", FeedUnavailable, "why"),
        ("amqp:internal-error", FeedUnavailable, "why"),
        ("amqp:resource-limit-exceeded", FeedUnavailable, "why"),
    ],
)
def test_a_condition_of_the_service_is_an_error_of_ours(condition: str, kind: type[Exception], told: str) -> None:
    found = refusal(error(condition), "event hub x")
    assert type(found) is kind
    assert str(found).startswith(f"event hub x: why ({condition})")
    assert told in str(found)


def test_a_busy_service_is_left_alone_for_a_while() -> None:
    busy = refusal(error("com.microsoft:server-busy"), "x")
    assert isinstance(busy, FeedUnavailable)
    assert busy.retry_after_s == 4


def test_a_link_that_was_taken_tells_the_higher_epoch() -> None:
    stolen = refusal(
        error("amqp:link:stolen", "New receiver with epoch '12' is created, hence 'r' with epoch '3' goes."), "x"
    )
    assert isinstance(stolen, Fenced)
    assert stolen.epoch == 12
    assert getattr(refusal(error("amqp:link:stolen", "no number"), "x"), "epoch", None) == 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, FeedError),
        (404, FeedError),
        (400, FeedError),
        (429, FeedUnavailable),
        (500, FeedUnavailable),
        (503, FeedUnavailable),
    ],
)
def test_a_status_of_the_service_is_an_error_of_ours(status: int, kind: type[Exception]) -> None:
    for found in (refused(status, "why", "x"), refusal(SaidSo(status), "x")):
        assert type(found) is kind
        assert f"x: the service answers {status} (why)" in str(found)


class SaidSo(Exception):
    def __init__(self, status: int) -> None:
        super().__init__()
        self.status_code, self.status_description = status, b"why"


def test_what_nobody_has_named_is_tried_again() -> None:
    for found in (ConnectionError("gone"), TimeoutError(), ValueError("SASL"), Malformed("x"), KeyError("x")):
        assert type(refusal(found, "x")) is FeedUnavailable


def events(*sizes: int) -> list[ReceivedEvent]:
    return [ReceivedEvent(n, b"%d" % (n * 10), 1000 + n, None, bytes(size)) for n, size in enumerate(sizes, 5)]


def test_pages_are_as_large_as_the_limits_allow_and_resume_behind_any_event() -> None:
    sent = events(1, 1, 1, 90, 20, 200, 1)
    found = pages_of("3", [sent[:3], sent[3:]], events_max=2, bytes_max=100)
    assert [page.events["sequence"].to_pylist() for page in found] == [[5, 6], [7, 8], [9], [10], [11]]
    assert [page.to for page in found] == ["6@60", "8@80", "9@90", "10@100", "11@110"]
    assert found[0].position_after(1) == "5@50"
    for page in found:
        page.events.validate(full=True)
        assert page.events.schema.equals(EVENT_SCHEMA, check_metadata=True)
        assert set(page.events["partition"].to_pylist()) == {"3"}


def test_no_events_are_no_page() -> None:
    assert pages_of("3", [], events_max=2, bytes_max=100) == []
