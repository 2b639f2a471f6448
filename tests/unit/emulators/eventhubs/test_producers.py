"""The rules for idempotent producers, as the wire server of Event Hubs has them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold_emulators.eventhubs.messages import Numbered
from leasehold_emulators.eventhubs.producers import (
    ARGUMENT,
    NUMBER_MAX,
    OUT_OF_ORDER,
    OUT_OF_RANGE,
    STOLEN,
    Asked,
    Attached,
    Known,
    Producer,
    Refusal,
    Stored,
    attached,
    following,
    published,
)
from leasehold_emulators.eventhubs.receivers import admitted

FRESH = Producer(id=1, level=0, last=0)


def batch(first: int, count: int, level: int = 0, producer: int = 1) -> list[Numbered]:
    return [Numbered(producer, level, following(first, i)) for i in range(count)]


def after(known: Producer, *batches: list[Numbered]) -> Producer:
    for numbers in batches:
        outcome = published(known, numbers)
        assert isinstance(outcome, Stored)
        known = outcome.after
    return known


def begun(known: Producer | None, asked: Asked, *, replies_known: bool = True) -> tuple[Producer, int]:
    outcome = attached(known, asked, fresh_id=1, replies_known=replies_known)
    assert isinstance(outcome, Attached)
    return outcome.producer, outcome.replied


def condition(outcome: object) -> str:
    assert isinstance(outcome, Refusal)
    return outcome.condition


def test_a_fresh_producer_has_published_0_and_begins_with_1() -> None:
    assert begun(None, Asked()) == (FRESH, 0)
    assert after(FRESH, batch(1, 5)).last == 5
    assert condition(published(FRESH, batch(0, 5))) == OUT_OF_ORDER
    assert condition(published(FRESH, batch(2, 5))) == OUT_OF_ORDER


def test_a_fresh_producer_may_have_published_minus_1_and_begin_with_0() -> None:
    outcome = attached(None, Asked(), fresh_id=1, nothing=-1)
    assert isinstance(outcome, Attached)
    assert outcome.replied == -1
    assert after(outcome.producer, batch(0, 5)).last == 4


def test_what_a_new_producer_asks_for_it_gets() -> None:
    assert begun(None, Asked(id=77, level=3, last=41)) == (Producer(id=77, level=3, last=41), 41)


def test_an_exact_repetition_of_a_recent_batch_is_known_and_a_part_of_it_is_out_of_order() -> None:
    known = after(FRESH, batch(1, 5), batch(6, 2))
    assert published(known, batch(6, 2)) == Known()
    assert published(known, batch(1, 5)) == Known()
    assert condition(published(known, batch(2, 1))) == OUT_OF_ORDER
    assert condition(published(known, batch(6, 3))) == OUT_OF_ORDER


def test_the_repetition_of_a_batch_that_is_no_longer_remembered_is_out_of_order() -> None:
    known = after(FRESH, *(batch(n, 1) for n in range(1, 7)))
    assert published(known, batch(2, 1)) == Known()
    assert condition(published(known, batch(1, 1))) == OUT_OF_ORDER


@given(st.integers(NUMBER_MAX - 20, NUMBER_MAX), st.integers(1, 40))
def test_after_the_largest_number_comes_0(last: int, count: int) -> None:
    known = replace(FRESH, last=last)
    assert after(known, batch(following(last), count)).last == (last + count) % 2**31


def test_numbers_that_are_not_consecutive_are_out_of_order_and_missing_ones_an_argument_error() -> None:
    first, second, third = batch(1, 3)
    assert condition(published(FRESH, [first, third])) == OUT_OF_ORDER
    assert condition(published(FRESH, [first, second, second])) == OUT_OF_ORDER
    assert condition(published(FRESH, [None, second])) == ARGUMENT
    assert condition(published(FRESH, batch(1, 1, producer=2))) == ARGUMENT


def test_a_higher_level_fences_the_lower_one_and_starts_its_own_numbers() -> None:
    known = after(FRESH, batch(1, 5))
    raised, replied = begun(known, Asked(id=1, level=1, last=None))
    assert (raised, replied) == (Producer(id=1, level=1, last=0), 0)
    assert condition(published(raised, batch(6, 1, level=0))) == STOLEN
    assert condition(attached(raised, Asked(id=1, level=0), fresh_id=9)) == STOLEN
    assert after(raised, batch(1, 1, level=1)).last == 1


def test_a_null_level_is_the_present_one_or_the_next() -> None:
    known = after(FRESH, batch(1, 5))
    assert begun(known, Asked(id=1))[0].level == 0
    raised = attached(known, Asked(id=1), fresh_id=9, null_raises=True)
    assert isinstance(raised, Attached)
    assert raised.producer.level == 1
    highest = replace(known, level=0x7FFF)
    assert condition(attached(highest, Asked(id=1), fresh_id=9, null_raises=True)) == OUT_OF_RANGE


def test_a_higher_level_may_go_on_with_the_numbers_of_the_lower_one() -> None:
    assert begun(FRESH, Asked(id=1, level=4, last=17)) == (Producer(id=1, level=4, last=17), 17)


def test_at_the_same_level_the_reply_is_what_the_service_knows() -> None:
    known = after(FRESH, batch(1, 5), batch(6, 3))
    assert begun(known, Asked(id=1)) == (known, 8)
    assert begun(known, Asked(id=1, level=0, last=8)) == (known, 8)
    assert begun(known, Asked(id=1, level=0, last=5)) == (known, 8)  # the last acknowledgement was lost
    assert begun(known, Asked(id=1, level=0, last=5), replies_known=False) == (known, 5)
    assert condition(attached(known, Asked(id=1, level=0, last=7), fresh_id=9)) == OUT_OF_ORDER
    assert condition(attached(known, Asked(id=1, level=0, last=9), fresh_id=9)) == OUT_OF_ORDER


@pytest.mark.parametrize("asked", [Asked(level=-1), Asked(level=0x8000), Asked(last=-1)])
def test_a_level_or_number_below_0_is_out_of_range(asked: Asked) -> None:
    assert condition(attached(None, asked, fresh_id=1)) == OUT_OF_RANGE


def test_the_highest_epoch_receives_alone_and_the_last_of_equals() -> None:
    assert admitted([], 0) == []
    assert admitted([None, None], 0) == [0, 1]
    assert admitted([3], 3) == [0]
    assert admitted([3], 4) == [0]
    assert condition(admitted([3], 2)) == "amqp:link:stolen"
    assert condition(admitted([3], None)) == "amqp:link:stolen"
    assert admitted([None] * 4, None) == []
    assert condition(admitted([None] * 5, None)) == "amqp:resource-limit-exceeded"
