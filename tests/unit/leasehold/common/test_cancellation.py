"""Code that is not ours may forget that it was cancelled, as `asyncio.wait_for` does: who cancelled it is heeded all the same."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from leasehold.common import cancellation
from leasehold.common.cancellation import await_shielded, heeding, insisting, is_cancelled
from leasehold.leases.stores import azure
from leasehold.pipeline.connectors.eventhubs.amqp.connection import connect, disconnect
from leasehold.pipeline.connectors.eventhubs.amqp.management import Management
from leasehold.pipeline.connectors.postgres.session import PostgresSession
from leasehold.pipeline.errors import FeedUnavailable


async def forgetful(found: object) -> object:
    """As `asyncio.wait_for` where what it waits for comes together with the cancellation."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return found
    raise AssertionError("nobody sets it")


async def failing() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ValueError("of its own") from None


@pytest.mark.parametrize("await_it", [await_shielded, azure.await_shielded])
async def test_a_task_outlives_its_cancelled_caller_and_its_error_is_reported_by_nobody(await_it: Any) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    go_on = asyncio.Event()

    async def fail() -> None:
        await go_on.wait()
        raise ValueError("late")

    task = asyncio.create_task(fail())
    caller = asyncio.create_task(await_it(task))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait({caller})
    assert (caller.cancelled(), task.done()) == (True, False)
    go_on.set()
    with pytest.raises(ValueError, match="late"):
        await await_it(task)
    await asyncio.sleep(0)
    assert reported == []


async def test_a_task_that_is_cancelled_ends_its_caller() -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    caller = asyncio.create_task(await_shielded(task))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled()


def test_a_coroutine_that_no_loop_runs_any_more_ends_as_a_cancelled_one() -> None:
    found: list[bool] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            found.append(is_cancelled(error))
            raise

    coroutine = wait()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_step(coroutine))
    loop.close()
    coroutine.close()  # as Python does once nothing refers to it
    assert found == [True]


async def _step(coroutine: Coroutine[Any, Any, None]) -> None:
    coroutine.send(None)


async def test_what_comes_of_it_comes_through() -> None:
    assert await heeding(asyncio.sleep(0, "found")) == "found"
    with pytest.raises(ValueError, match="of its own"):
        await heeding(refused())


async def refused() -> None:
    raise ValueError("of its own")


async def test_a_timeout_that_is_forgotten_comes_all_the_same() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await heeding(forgetful("found"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await heeding(failing())


async def test_whoever_was_told_to_end_ends() -> None:
    task = asyncio.ensure_future(heeding(forgetful("found")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_who_was_cancelled_before_is_not_told_again() -> None:
    """Cleaning up, on the way out, is not cut short by what is known already."""

    async def ending() -> object:
        try:
            await asyncio.Event().wait()
        finally:
            found.append(await heeding(asyncio.sleep(0, "cleaned")))

    found: list[object] = []
    task = asyncio.ensure_future(ending())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert found == ["cleaned"]


async def looping(cancels: int) -> object:
    """A loop around code that forgets: so many cancellations are lost on it."""
    for _ in range(cancels):
        await forgetful(None)
    await asyncio.Event().wait()
    return "nobody sets it"


async def test_a_loop_that_forgets_is_cancelled_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "AGAIN_S", 0.01)
    assert await insisting(asyncio.sleep(0, "found")) == "found"
    with pytest.raises(ValueError, match="of its own"):
        await insisting(refused())
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await insisting(looping(3))
    assert asyncio.all_tasks() == before
    task = asyncio.ensure_future(insisting(looping(3)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # whoever waits may lose patience too: it is not left behind for that
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before


async def test_a_hub_that_does_not_answer_a_question_is_given_up_though_the_sdk_forgets_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def mgmt_request_async(*_: object, **__: object) -> object:
        return await looping(1)

    class Asked(Management):
        async def _open(self) -> Any:
            return SimpleNamespace(mgmt_request_async=mgmt_request_async)

        async def _request(self, more: Any) -> Any:
            return more

    monkeypatch.setattr(cancellation, "AGAIN_S", 0.01)
    hub: Any = SimpleNamespace(name="orders")
    asked = Asked(hub, timeout_s=0.01)
    for _ in range(2):  # nor does the next one wait behind it
        with pytest.raises(FeedUnavailable, match="orders"):
            await asked.list_partitions()


async def test_a_service_that_never_attaches_is_given_up_though_the_sdk_forgets_the_timeout() -> None:
    asked: list[int] = []

    async def client_ready_async() -> object:
        asked.append(1)
        if len(asked) > 1:
            raise AssertionError("asked again after the time was up")
        return await forgetful(False)

    async def open_async() -> None:
        pass

    client: Any = SimpleNamespace(
        open_async=open_async,
        client_ready_async=client_ready_async,
        _cbs_authenticator=SimpleNamespace(_on_execute_operation_complete=None),
    )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await connect(client)


async def test_a_connection_is_closed_though_whoever_closes_it_was_cancelled() -> None:
    closed: list[str] = []

    async def close_async() -> None:
        await asyncio.Event().wait()

    async def close() -> None:
        closed.append("the transport")

    client: Any = SimpleNamespace(
        close_async=close_async, _connection=SimpleNamespace(_transport=SimpleNamespace(close=close))
    )
    task = asyncio.ensure_future(disconnect(client))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["the transport"]


@pytest.mark.parametrize("await_it", [insisting, lambda talk: PostgresSession(SimpleNamespace()).run_within(60, talk)])  # type: ignore[arg-type]
async def test_an_error_that_comes_together_with_the_cancellation_is_reported_by_nobody(await_it: Any) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    caller = asyncio.create_task(await_it(answer))
    await asyncio.sleep(0)
    answer.set_exception(ValueError("late"))
    caller.cancel()
    await asyncio.wait({caller})
    del answer, caller
    gc.collect()
    assert reported == []
