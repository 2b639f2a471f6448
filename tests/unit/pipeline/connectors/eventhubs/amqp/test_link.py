"""A receiving link and what waits behind it, without a service: credit, counters, heartbeats, and an end behind what came."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from patience import until_async

from leasehold.pipeline.connectors.eventhubs.amqp.link import ReceiverLink
from leasehold.pipeline.connectors.eventhubs.feed import receiver
from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiveBuffer


class Sdk:
    """The SDK's client as far as a link looks at it: it notes the credit that is granted."""

    def __init__(self, **link: Any) -> None:
        self.granted: list[tuple[int, int, int]] = []
        self.session = SimpleNamespace(next_incoming_id=0, incoming_window=1000, target_incoming_window=1000)
        self.link = SimpleNamespace(**{"delivery_count": 0, "current_link_credit": 100, "flow": self.flow} | link)

    async def flow(self, *, link_credit: int) -> None:
        self.link.current_link_credit = link_credit
        self.granted.append((link_credit, self.link.delivery_count, self.session.next_incoming_id))

    def made(self) -> ReceiverLink:
        client: Any = SimpleNamespace(_connection=None, _session=self.session, _link=self.link)
        return ReceiverLink(client, 100)


async def test_credit_is_granted_anew_once_half_of_it_is_used_up() -> None:
    sdk = Sdk()
    link = sdk.made()
    await link.replenish(49, 49)
    assert sdk.granted == []
    await link.replenish(1, 1)
    assert sdk.granted == [(100, 50, 50)]
    await link.replenish(200, 200)
    assert sdk.granted[1:] == [(100, 250, 250)]


async def test_messages_of_many_frames_use_up_the_window_before_the_credit() -> None:
    sdk = Sdk()
    await sdk.made().replenish(500, 1)
    assert sdk.granted == [(100, 1, 500)]
    assert sdk.session.incoming_window == 1000


async def test_counters_wrap_as_the_protocol_has_it() -> None:
    sdk = Sdk(delivery_count=2**32 - 10)
    sdk.session.next_incoming_id = 2**32 - 5
    await sdk.made().replenish(60, 60)
    assert sdk.granted == [(100, 50, 55)]


class Source:
    """A link's octets, by hand. Beats are counted; one may fail."""

    def __init__(self, already: bytes = b"") -> None:
        self._already = already
        self.coming: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.reads = self.beats = 0
        self.refusal: Exception | None = None

    def read_already(self) -> bytes:
        return self._already

    async def read(self) -> bytes:
        found = await self.coming.get()
        self.reads += 1
        if isinstance(found, Exception):
            raise found
        return found

    async def beat(self) -> None:
        self.beats += 1
        if self.refusal is not None:
            raise self.refusal


def intake_of(source: Source, **options: Any) -> ReceiveBuffer:
    made: Any = source
    return ReceiveBuffer(made, "x", **options)


async def test_all_that_came_is_taken_at_once_and_what_the_sdk_had_read_comes_first() -> None:
    source = Source(b"a")
    for piece in (b"b", b"c"):
        source.coming.put_nowait(piece)
    taking = intake_of(source)
    await until_async(lambda: source.reads == 2)
    assert await taking.take() == b"abc"
    source.coming.put_nowait(b"d")
    assert await taking.take() == b"d"
    await taking.close()


async def test_nothing_is_read_beyond_the_bound_until_somebody_takes() -> None:
    source = Source()
    for _ in range(10):
        source.coming.put_nowait(b"x" * 10)
    taking = intake_of(source, bytes_max=25)
    await until_async(lambda: source.reads == 3)
    for _ in range(50):
        await asyncio.sleep(0)
    assert source.reads == 3
    assert len(await taking.take()) == 30
    await until_async(lambda: source.reads == 6)
    await taking.close()


async def test_an_end_is_told_behind_what_came_before_it() -> None:
    source = Source()
    for piece in (b"a", ConnectionError("gone")):
        source.coming.put_nowait(piece)
    taking = intake_of(source)
    await until_async(lambda: source.reads == 2)
    assert await taking.take() == b"a"
    for _ in range(2):
        with pytest.raises(ConnectionError, match="gone"):
            await taking.take()
    await taking.close()


async def test_a_link_is_kept_alive_while_its_reader_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "BEAT_S", 0.001)
    source = Source()
    source.coming.put_nowait(b"x" * 10)
    taking = intake_of(source, bytes_max=1)
    await until_async(lambda: source.beats >= 3)
    source.refusal = ConnectionError("the token has expired")
    assert await taking.take() == b"x" * 10
    with pytest.raises(ConnectionError, match="expired"):
        await taking.take()
    await taking.close()
