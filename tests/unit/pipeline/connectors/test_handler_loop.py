"""The event loop of handlers: what they raise ends no other handler."""

from __future__ import annotations

import asyncio

import pytest
from patience import PATIENCE_S

from leasehold.pipeline.connectors.handler_loop import HandlerLoop


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(3)], ids=repr)
async def test_an_exit_is_raised_where_the_handler_is_called_and_the_loop_goes_on(error: BaseException) -> None:
    async def leave() -> None:
        raise error

    async def stay() -> int:
        return 7

    loop = HandlerLoop()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(type(error), match="3"):
            await loop.run("leave", leave)
        assert await loop.run("stay", stay) == 7
    loop.stop()
