"""Batches that executors read become smaller if the sink cannot take their output."""

from __future__ import annotations

from leasehold.pipeline.limits import RangeLimits
from leasehold.pipeline.ranges import EventRange, RangedBatch, RangePlan

LIMITS = RangeLimits(from_events=10, events_max=1000)


def plan_of() -> RangePlan:
    return RangePlan(lambda a, b: int(a or 0) - int(b or 0), LIMITS)


def batch_of(events: int, start: int = 0) -> RangedBatch:
    return RangedBatch("a", 1, (EventRange(str(start), str(start + events), events),), opened_at=0)


def test_a_batch_that_the_sink_cannot_take_is_for_the_host_and_halves_what_follows() -> None:
    plan = plan_of()
    plan.shrink(batch_of(100))
    assert plan.is_for_host("99")
    assert not plan.is_for_host("100")
    assert plan.asks_after == 20
    for _ in range(10):
        plan.accept(batch_of(plan.events_max), took_s=0)
    assert plan.events_max == 50


def test_a_batch_is_never_smaller_than_what_the_executors_are_for() -> None:
    plan = plan_of()
    for _ in range(5):
        plan.shrink(batch_of(15))
    assert plan.events_max == LIMITS.from_events


def test_a_refusal_for_another_reason_leaves_the_limit() -> None:
    plan = plan_of()
    plan.refuse(batch_of(100))
    for _ in range(10):
        plan.accept(batch_of(plan.events_max), took_s=0)
    assert plan.events_max == LIMITS.events_max
