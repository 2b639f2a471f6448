"""A service that is gone without a word, as behind a firewall that forgets: connections stay open, and nothing ever comes."""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing

import pytest
from connectors.eventhubs.clients import HUB
from connectors.eventhubs.feeds import feed, taken
from connectors.eventhubs.test_feed_faults import Quick
from patience import until_async
from plugins_eventhubs import running

from leasehold.pipeline.connectors.eventhubs.amqp import link
from leasehold.pipeline.connectors.eventhubs.feed import receiver
from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits

SILENCE_S = 6.0
SIGN_OF_LIFE_S = 0.2


async def test_a_reader_notices_that_nobody_is_there_and_a_quiet_hub_is_not_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_in = link.ReceiverLink.read
    heard = 0

    async def read(self: link.ReceiverLink) -> bytes:
        nonlocal heard
        found = await read_in(self)
        heard += 1
        return found

    monkeypatch.setattr(link.ReceiverLink, "read", read)
    monkeypatch.setattr(link, "SIGN_OF_LIFE_S", SIGN_OF_LIFE_S)
    monkeypatch.setattr(receiver, "SILENCE_S", SILENCE_S)
    quick = Quick()
    with running("--hubs", f"{HUB}:1") as server:
        server.control.append(HUB, "0", ["a"])
        async with (
            feed(server, pauses=quick.pauses, limits=ReceiverLimits(timeout_s=5)) as made,
            aclosing(made.open_as(1, "0", None)) as pages,
        ):
            assert await taken(pages, 1) == ["a"]
            reading = asyncio.create_task(taken(pages, 1))
            await until_async(lambda: heard > 1.5 * SILENCE_S / SIGN_OF_LIFE_S, "nothing but signs of life, for longer")
            assert (server.control.statistics()["accepted"], quick.slept) == (1, [])
            server.process.send_signal(signal.SIGSTOP)
            await until_async(lambda: len(quick.slept) > 0)
            server.process.send_signal(signal.SIGCONT)
            server.control.append(HUB, "0", ["b"])
            assert await reading == ["b"]
