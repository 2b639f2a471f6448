"""One reading for everybody who asks within a moment."""

from __future__ import annotations

import asyncio

from simulation.loop import VirtualClock, run_virtual

from service.view import Shared


def test_a_change_during_a_reading_is_seen_by_whoever_asks_after_it() -> None:
    async def main() -> None:
        state = "before"

        async def read() -> str:
            found = state
            await asyncio.sleep(0.2)
            return found

        shared = Shared(read, VirtualClock())
        early = asyncio.create_task(shared.get(1.0))
        await asyncio.sleep(0.1)
        state = "after"
        shared.forget()
        assert await shared.get(1.0) == "after"
        assert await early == "before"
        state = "unseen"
        assert await shared.get(1.0) == "after"

    run_virtual(main())
