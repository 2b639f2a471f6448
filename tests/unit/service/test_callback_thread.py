"""One thread for calls that may block: in order, with their results and errors, and never waited for."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
from patience import PATIENCE_S

from leasehold.service.callback_thread import CallbackThread


async def test_calls_run_in_one_other_thread_in_their_order() -> None:
    thread, order = CallbackThread("callbacks"), list[int]()
    calls = [thread.run(lambda n=n: (order.append(n), threading.current_thread())[1]) for n in range(5)]  # type: ignore[misc]
    ran_in = set(await asyncio.gather(*calls))
    assert order == [0, 1, 2, 3, 4]
    (one,) = ran_in
    assert isinstance(one, threading.Thread)
    assert (one.name, one.daemon) == ("callbacks", True)
    assert one is not threading.current_thread()
    thread.close()
    await asyncio.to_thread(one.join, 10)
    assert not one.is_alive()


async def test_what_a_call_raises_is_raised_and_the_thread_goes_on() -> None:
    thread = CallbackThread("callbacks")
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="it raised SystemExit: 3"):
        await thread.run(lambda: sys.exit(3))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await thread.run(lambda: next(iter(())))
    assert await thread.run(lambda: 7) == 7
    thread.close()


async def test_a_call_that_never_returns_keeps_neither_its_caller_nor_the_process() -> None:
    program = (
        "import asyncio, threading\n"
        "from leasehold.service.callback_thread import CallbackThread\n"
        "async def main():\n"
        "    async with asyncio.timeout(0.1):\n"
        "        await CallbackThread('callbacks').run(threading.Event().wait)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stderr=asyncio.subprocess.PIPE)
    _, errors = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert b"TimeoutError" in errors
    assert process.returncode == 1


async def test_a_thread_that_does_not_start_fails_one_call_and_the_next_one_starts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread, ran = CallbackThread("callbacks"), list[int]()

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await thread.run(lambda: ran.append(1))
    async with asyncio.timeout(PATIENCE_S):
        await thread.run(lambda: ran.append(2))
    assert ran == [2], "a call that has failed does not run later"
    thread.close()
