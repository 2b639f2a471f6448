"""When the writer of a broker's position puts it again, and which failures of that end its claim."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from leasehold.pipeline.connectors.held import Held
from leasehold.pipeline.connectors.held_writer import Change, HeldWriter
from leasehold.pipeline.errors import Ambiguous, Fenced, SinkRejected, SinkUnavailable
from leasehold.pipeline.sink import Claim, CloseReason, Output

REFRESH_S = 60.0


class Writer(HeldWriter[bytes]):
    """error: raised by each put. puts: when they were tried."""

    state = ""

    def __init__(self) -> None:
        claim = Claim(
            pipeline="bank",
            partition="0",
            owner="host-a",
            epoch=1,
            generation=0,
            continuation=None,
            state="",
            compare=lambda a, b: int(a or 0) - int(b or 0),
        )
        held = Held(generation=0, epoch=1, owner="host-a", position="7", target=0)
        super().__init__(claim, held, REFRESH_S)
        self.error: Exception | None = None
        self.puts: list[float] = []

    async def close(self, reason: CloseReason) -> None: ...

    async def _messages_of(self, output: Output) -> Sequence[bytes]:
        return ()

    async def _put(self, messages: Sequence[bytes], change: Change, check: Callable[[], None]) -> None:
        self.puts.append(asyncio.get_running_loop().time())
        if self.error is not None:
            raise self.error


@pytest.mark.virtual
async def test_a_position_that_was_surely_not_put_is_put_by_the_next_call() -> None:
    writer = Writer()
    await writer.put_position()
    await asyncio.sleep(REFRESH_S)
    writer.error = SinkUnavailable("no answer")
    for _ in range(2):
        await writer.follow()
    writer.error = None
    for _ in range(3):
        await writer.follow()
    assert len(writer.puts) == 4


@pytest.mark.virtual
@pytest.mark.parametrize("error", [Ambiguous("no answer"), Fenced("another owner"), SinkRejected("no right")])
async def test_any_other_failure_to_put_a_position_again_is_raised(error: Exception) -> None:
    writer = Writer()
    await writer.put_position()
    writer.error = error
    await writer.follow()
    await asyncio.sleep(REFRESH_S)
    with pytest.raises(type(error)):
        await writer.follow()
