"""Notifications are delivered in order, one at a time, and whatever becomes of a callback, nothing else waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from lab.simulation.group import HostClock, logger, until

from leasehold.leases.lease import LeaseKey
from leasehold.service.notifications import BatchDelivered, LeaseAcquired, LeaseLost, Notification, Notifications
from leasehold.service.notifier import BATCHES_MAX, CLOSING_S, QUEUED_MAX, Notifier

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
KEY = LeaseKey("bank", "7")


class Kept(Notifications):
    """Keeps what it gets, and then does as told."""

    def __init__(self, then: Callable[[Notification], Awaitable[None]] | None = None) -> None:
        self.events: list[Any] = []
        self.then = then

    async def on_lease_acquired(self, event: LeaseAcquired) -> None:
        self.events.append(event)
        if self.then is not None:
            await self.then(event)

    def on_batch_delivered(self, event: BatchDelivered) -> None:
        self.events.append(event)

    @property
    def epochs(self) -> list[int]:
        return [event.epoch for event in self.events]


class Case:
    def __init__(self, on: Notifications) -> None:
        self.log: list[dict[str, Any]] = []
        self.plain: list[Callable[[], object]] = []
        self.notifier = Notifier(
            on, host="host-a", clock=HostClock(), now=lambda: NOW, log=logger(self.log), run_plain=self._run_plain
        )

    async def _run_plain(self, call: Callable[[], object]) -> object:
        self.plain.append(call)
        await asyncio.sleep(0.01)
        return call()

    def acquire(self, *epochs: int) -> None:
        for epoch in epochs:
            self.notifier.notify(LeaseAcquired, KEY, epoch=epoch, continuation=None)

    def deliver(self, *epochs: int) -> None:
        about = {"start": None, "to": "1", "events": 1, "rows": 1, "dead_letters": 0}
        for epoch in epochs:
            self.notifier.notify(BatchDelivered, KEY, epoch=epoch, **about)

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.notifier.counts)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in line.items() if name != "level"} for line in self.log]


async def block(event: Notification) -> None:
    await asyncio.Event().wait()


@pytest.mark.virtual
async def test_an_event_says_where_and_when_it_happened() -> None:
    kept = Kept()
    case = Case(kept)
    case.acquire(3)
    await case.notifier.close()
    assert kept.events == [
        LeaseAcquired(pipeline="bank", partition="7", host="host-a", at=NOW, epoch=3, continuation=None)
    ]


@pytest.mark.virtual
async def test_all_events_arrive_in_their_order_through_plain_methods_and_coroutines() -> None:
    async def pause(event: Notification) -> None:
        await asyncio.sleep(0.1)

    kept = Kept(pause)
    case = Case(kept)
    for epoch in range(1, 7):
        (case.acquire if epoch % 2 else case.deliver)(epoch)
    await until(lambda: case.counts.get("delivered") == 6)
    assert kept.epochs == [1, 2, 3, 4, 5, 6]
    assert len(case.plain) == 3, "plain methods run where they may block"
    await case.notifier.close()
    assert case.log == []


@pytest.mark.virtual
async def test_a_plain_method_may_return_something_to_await() -> None:
    awaited: list[int] = []

    async def handle(event: LeaseLost) -> None:
        awaited.append(event.epoch)

    class Decorated(Notifications):
        def on_lease_lost(self, event: LeaseLost) -> Awaitable[None]:
            return handle(event)

    case = Case(Decorated())
    case.notifier.notify(LeaseLost, KEY, epoch=3, reason="lost", taken_by=None)
    await case.notifier.close()
    assert awaited == [3]


@pytest.mark.virtual
async def test_what_no_method_receives_is_neither_made_nor_counted() -> None:
    case = Case(Kept())
    case.notifier.notify(LeaseLost, KEY, epoch=3, reason="lost", taken_by=None)
    await case.notifier.close()
    assert case.counts == {}


@pytest.mark.virtual
async def test_an_exception_is_logged_once_in_a_while_and_the_next_event_arrives() -> None:
    async def fail(event: Notification) -> None:
        if event.epoch != 5:  # type: ignore[attr-defined]
            raise ValueError("no such room")

    kept = Kept(fail)
    case = Case(kept)
    case.acquire(1, 2, 3, 4)
    await asyncio.sleep(1)
    failed = {"event": "notification failed", "callback": "on_lease_acquired", "error": "ValueError: no such room"}
    assert case.lines == [{**failed, "attempt": 1}]
    case.acquire(5)
    await case.notifier.close()
    assert (kept.epochs, case.counts) == ([1, 2, 3, 4, 5], {"failed": 4, "delivered": 1})
    recovered = {"event": "notification recovered", "callback": "on_lease_acquired", "after_attempts": 4}
    assert case.lines[1:] == [{**recovered, "failing_for_s": 1.0}]


@pytest.mark.virtual
async def test_a_cancellation_that_a_callback_lets_out_is_a_failure_like_others() -> None:
    async def let_out(event: Notification) -> None:
        raise asyncio.CancelledError

    case = Case(Kept(let_out))
    case.acquire(1, 2)
    await until(lambda: case.counts.get("failed") == 2)
    assert case.lines[0]["error"] == "RuntimeError: it was cancelled by something that it called"
    await case.notifier.close()


@pytest.mark.virtual
@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(3)], ids=["SystemExit", "GeneratorExit"])
async def test_an_exit_that_a_coroutine_raises_ends_neither_the_event_loop_nor_the_delivery(
    error: BaseException,
) -> None:
    async def leave(event: Notification) -> None:
        if event.epoch == 1:  # type: ignore[attr-defined]
            raise error

    kept = Kept(leave)
    case = Case(kept)
    case.acquire(1, 2)
    await until(lambda: kept.epochs == [1, 2])
    await case.notifier.close()
    assert case.counts == {"failed": 1, "delivered": 1}
    assert case.lines[0]["error"] == f"RuntimeError: it raised {type(error).__name__}: 3"


@pytest.mark.virtual
async def test_a_full_queue_drops_what_comes_and_says_so_once_a_minute() -> None:
    case = Case(Kept(block))
    case.acquire(0)
    await asyncio.sleep(1)
    case.acquire(*range(QUEUED_MAX + 3))
    assert case.counts == {"dropped": 3}
    await asyncio.sleep(59)
    case.acquire(1)
    assert len(case.log) == 1
    await asyncio.sleep(1)
    case.acquire(1, 1)
    dropped = {"event": "notifications dropped", "waits_for": "on_lease_acquired"}
    assert case.lines == [{**dropped, "count": 1, "for_s": 1.0}, {**dropped, "count": 4, "for_s": 61.0}]
    await case.notifier.close()


@pytest.mark.virtual
async def test_batches_leave_room_for_events_that_are_few() -> None:
    case = Case(Kept(block))
    case.acquire(0)
    await asyncio.sleep(1)
    case.deliver(*range(BATCHES_MAX + 5))
    assert case.counts == {"dropped": 5}
    case.acquire(*range(QUEUED_MAX - BATCHES_MAX))
    assert case.counts == {"dropped": 5}
    case.acquire(1)
    assert case.counts == {"dropped": 6}
    await case.notifier.close()


@pytest.mark.virtual
async def test_what_is_queued_at_the_end_is_delivered() -> None:
    async def pause(event: Notification) -> None:
        await asyncio.sleep(0.1)

    kept = Kept(pause)
    case = Case(kept)
    case.acquire(*range(10))
    await case.notifier.close()
    assert kept.epochs == list(range(10))
    assert case.log == []


@pytest.mark.virtual
async def test_a_callback_that_never_returns_holds_up_the_end_for_a_moment_and_the_rest_is_dropped() -> None:
    cancelled: list[int] = []

    async def hang(event: Notification) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    kept = Kept(hang)
    case = Case(kept)
    case.acquire(*range(10))
    began = asyncio.get_running_loop().time()
    await case.notifier.close()
    assert asyncio.get_running_loop().time() - began == pytest.approx(CLOSING_S)
    assert (kept.epochs, cancelled, case.counts) == ([0], [1], {"dropped": 10})
    dropped = {"event": "notifications dropped", "waits_for": "on_lease_acquired", "count": 10}
    assert case.lines == [{**dropped, "for_s": 2.0}]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.virtual
async def test_what_comes_after_the_end_is_dropped() -> None:
    case = Case(Kept())
    await case.notifier.close()
    case.acquire(1)
    assert case.counts == {"dropped": 1}
