"""What waits between a link and whoever reads its events: octets, bounded, taken all at once.

A reader that has no room for now still keeps its link: its heartbeats go on and its token is renewed, while the connection itself
holds back what would not fit here.
"""

from __future__ import annotations

import asyncio

from pipeline.cancellation import heeding
from pipeline.connectors.eventhubs.amqp.link import Link

BYTES_MAX = 1024 * 1024
BEAT_S = 5.0
SILENCE_S = 90.0
"""After that the other end has gone without a word: it was asked for a sign of life every `link.SIGN_OF_LIFE_S`."""


class Intake:
    """Of one link, from now on. To be closed; the link is whoever's it was."""

    def __init__(self, link: Link, what: str, *, bytes_max: int = BYTES_MAX) -> None:
        self._link = link
        self._bytes_max = bytes_max
        self._chunks: list[bytes] = []
        self._bytes = 0
        self._error: Exception | None = None
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._keep_reading(), name=f"receive {what}"),
            asyncio.create_task(self._keep_beating(), name=f"keep {what} alive"),
        ]

    async def take(self) -> bytes:
        """All that has come since, as soon as there is something. Raises what ended the link, once all before it is taken."""
        while not self._chunks:
            if self._error is not None:
                raise self._error
            self._filled.clear()
            await self._filled.wait()
        taken = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._bytes = 0
        self._emptied.set()
        return taken

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _keep_reading(self) -> None:
        try:
            self._put(self._link.read_already())
            while True:
                self._put(await self._hear())
                while self._bytes >= self._bytes_max:
                    self._emptied.clear()
                    await self._emptied.wait()
        except Exception as error:
            self._end(error)

    async def _hear(self) -> bytes:
        try:
            async with asyncio.timeout(SILENCE_S):
                return await self._link.read()
        except TimeoutError:
            raise ConnectionError(
                f"nothing was heard of the service for {SILENCE_S:g} s, not even that it is alive"
            ) from None

    async def _keep_beating(self) -> None:
        try:
            while True:
                await asyncio.sleep(BEAT_S)
                await heeding(self._link.beat())
        except Exception as error:
            self._end(error)

    def _put(self, chunk: bytes) -> None:
        if chunk:
            self._chunks.append(chunk)
            self._bytes += len(chunk)
            self._filled.set()

    def _end(self, error: Exception) -> None:
        self._error = self._error or error
        self._filled.set()
