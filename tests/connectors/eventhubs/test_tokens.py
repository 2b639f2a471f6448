"""Tokens end after an hour, and readers and senders stay for longer: what they do then, and where nobody gives them another."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus

import pytest
from azure.core.credentials import AccessToken
from azure.eventhub._pyamqp import cbs
from azure.eventhub._pyamqp.aio import _cbs_async
from connectors.eventhubs.clients import HUB
from connectors.eventhubs.feeds import bodies, taken
from connectors.producer.parts import events
from patience import until_async
from plugins_eventhubs import EventHubs

from leasehold.common.clock import Pauses
from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.amqp.link import ReceiverLink
from leasehold.pipeline.connectors.eventhubs.broker import EventHubsBroker
from leasehold.pipeline.connectors.eventhubs.feed import receiver
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
from leasehold.pipeline.errors import FeedError
from leasehold.pipeline.producer import IdempotentProducer, Outcome, PublishError, RetryPolicy

HOUR_S = 3600


class Identity:
    """Gives tokens of an hour each, by a clock that can be moved, or none. issued: how many there were."""

    token_type = b"servicebus.windows.net:sastoken"

    def __init__(self, eventhubs: EventHubs) -> None:
        self._eventhubs = eventhubs
        self._moved_s = 0.0
        self.refusal: Exception | None = None
        self.issued = 0
        self.asked = 0

    def now_s(self) -> float:
        return time.time() + self._moved_s

    def pass_time(self, minutes: int) -> None:
        """Here and at the service."""
        self._moved_s += 60 * minutes
        self._eventhubs.control.move_clock(60 * minutes)

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        self.issued += 1
        place, until_s = quote_plus(scopes[0]), int(self.now_s()) + HOUR_S
        signed = hmac.digest(self._eventhubs.key.encode(), f"{place}\n{until_s}".encode(), hashlib.sha256)
        fields = {
            "sr": place,
            "sig": quote_plus(base64.b64encode(signed)),
            "se": until_s,
            "skn": self._eventhubs.key_name,
        }
        text = "&".join(f"{name}={value}" for name, value in fields.items())
        return AccessToken(f"SharedAccessSignature {text}", until_s)


@pytest.fixture
def identity(eventhubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> Identity:
    found = Identity(eventhubs)
    for module in (cbs, _cbs_async):
        monkeypatch.setattr(module, "utc_now", lambda: datetime.fromtimestamp(found.now_s(), UTC))
    return found


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """How often a reader looks at its token."""
    return lambda seconds: monkeypatch.setattr(receiver, "BEAT_S", seconds)


def reached(eventhubs: EventHubs) -> Any:
    return account_of(
        namespace=f"{eventhubs.host}:{eventhubs.tls_port}", event_hub=HUB, identity="default", ca_file=eventhubs.ca
    )


@asynccontextmanager
async def reading(eventhubs: EventHubs, identity: Identity) -> AsyncIterator[EventHubsChangeFeed]:
    pauses = Pauses(first_s=0.01, patience_s=5)
    made = EventHubsChangeFeed(
        reached(eventhubs), credential=identity, pauses=pauses, limits=ReceiverLimits(timeout_s=5)
    )
    yield made
    await made.close()


def attached(eventhubs: EventHubs, role: str) -> list[Any]:
    return [link["container"] for link in eventhubs.control.links(role=role)]


# Readers


async def test_a_reader_s_token_is_renewed_and_its_link_stays(
    eventhubs: EventHubs, identity: Identity, beats: Callable[[float], None]
) -> None:
    beats(0.02)
    eventhubs.control.append(HUB, "0", ["a"])
    async with reading(eventhubs, identity) as made, aclosing(made.open_as(1, "0", None)) as read:
        assert await taken(read, 1) == ["a"]
        before = attached(eventhubs, "receiver")
        for hour in range(3):
            issued = identity.issued
            identity.pass_time(49 if hour else 55)
            eventhubs.control.append(HUB, "0", ["five minutes to go"])
            assert await taken(read, 1) == ["five minutes to go"]
            await until_async(lambda issued=issued: identity.issued > issued)
            eventhubs.control.append(HUB, "0", [f"{hour}"])  # behind the answer to the new token
            assert await taken(read, 1) == [f"{hour}"]
            identity.pass_time(6)
            assert attached(eventhubs, "receiver") == before


async def test_a_reader_that_slept_through_the_end_of_its_token_goes_on_with_another(
    eventhubs: EventHubs, identity: Identity, beats: Callable[[float], None]
) -> None:
    beats(1000)
    eventhubs.control.append(HUB, "0", ["a"])
    async with reading(eventhubs, identity) as made, aclosing(made.open_as(1, "0", None)) as read:
        assert await taken(read, 1) == ["a"]
        identity.pass_time(120)
        assert not attached(eventhubs, "receiver")
        eventhubs.control.append(HUB, "0", ["b"])
        assert await taken(read, 1) == ["b"]


async def test_a_reader_that_nobody_gives_a_new_token_reads_on_while_the_present_one_holds(
    eventhubs: EventHubs, identity: Identity, beats: Callable[[float], None]
) -> None:
    beats(0.02)
    eventhubs.control.append(HUB, "0", ["a"])
    async with reading(eventhubs, identity) as made, aclosing(made.open_as(1, "0", None)) as read:
        assert await taken(read, 1) == ["a"]
        before = attached(eventhubs, "receiver")
        asked, identity.refusal = identity.asked, RuntimeError("nobody is at home")
        identity.pass_time(55)
        await until_async(lambda: identity.asked > asked + 1)
        eventhubs.control.append(HUB, "0", ["b"])
        assert await taken(read, 1) == ["b"]
        issued, identity.refusal = identity.issued, None
        await until_async(lambda: identity.issued > issued)
        eventhubs.control.append(HUB, "0", ["c"])
        assert await taken(read, 1) == ["c"]
        identity.pass_time(10)
        assert attached(eventhubs, "receiver") == before


async def test_a_reader_that_lost_its_right_is_told_so(
    eventhubs: EventHubs, identity: Identity, beats: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    beats(1000)
    eventhubs.control.append(HUB, "0", ["a"])
    async with reading(eventhubs, identity) as made, aclosing(made.open_as(1, "0", None)) as read:
        assert await taken(read, 1) == ["a"]
        monkeypatch.setattr(Identity, "get_token", _revoked)
        identity.pass_time(120)
        with pytest.raises(FeedError, match=r"401.*check the key or the identity") as error:
            await taken(read, 1)
    assert type(error.value) is FeedError


async def _revoked(self: Identity, *_: str, **__: Any) -> AccessToken:
    return AccessToken("SharedAccessSignature sr=x&sig=x&se=1&skn=x", int(self.now_s()) + HOUR_S)


async def test_a_reader_that_takes_nothing_for_a_while_keeps_its_link_while_its_token_is_renewed(
    eventhubs: EventHubs, identity: Identity, beats: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    beats(0.02)
    beaten: list[ReceiverLink] = []
    beat = ReceiverLink.beat

    async def counted(link: ReceiverLink) -> None:
        await beat(link)
        beaten.append(link)

    monkeypatch.setattr(ReceiverLink, "beat", counted)
    eventhubs.control.fill(
        HUB, "0", 3000, 8000
    )  # more than waits between the service and us: the answer comes behind it
    async with reading(eventhubs, identity) as made, aclosing(made.open_as(1, "0", None)) as read:
        count = (await anext(read)).events.num_rows
        before, issued = attached(eventhubs, "receiver"), identity.issued
        identity.pass_time(55)
        await until_async(lambda: identity.issued > issued)
        identity.pass_time(3)
        beaten.clear()
        await until_async(lambda: len(beaten) > 2)
        await taken(read, 3000 - count)
        eventhubs.control.append(HUB, "0", ["at last"])
        assert await taken(read, 1) == ["at last"]
        assert attached(eventhubs, "receiver") == before


# Senders


@asynccontextmanager
async def publishing(eventhubs: EventHubs, identity: Identity, **retry: Any) -> AsyncIterator[IdempotentProducer]:
    broker = EventHubsBroker(reached(eventhubs), credential=identity)
    async with IdempotentProducer(broker, retry=RetryPolicy(delay_s=0.01, try_timeout_s=5, **retry)) as made:
        yield made


async def test_a_sender_s_token_is_renewed_and_its_link_stays(eventhubs: EventHubs, identity: Identity) -> None:
    async with publishing(eventhubs, identity) as one:
        await one.send(events("0"), "0")
        before = attached(eventhubs, "sender")
        for hour in range(3):
            identity.pass_time(49 if hour else 55)
            await one.send(events(f"{hour}"), "0")
            identity.pass_time(6)
            assert attached(eventhubs, "sender") == before
    assert eventhubs.control.bodies(HUB, "0") == ["0", "0", "1", "2"]


async def test_a_sender_that_slept_through_the_end_of_its_token_goes_on_with_another(
    eventhubs: EventHubs, identity: Identity
) -> None:
    async with publishing(eventhubs, identity) as one:
        await one.send(events("a"), "0")
        identity.pass_time(120)
        assert not attached(eventhubs, "sender")
        made = events("b")
        await one.send(made, "0")
    assert (eventhubs.control.bodies(HUB, "0"), made[0].number) == (["a", "b"], 2)


async def test_a_batch_that_is_under_way_when_the_token_ends_is_stored_once(
    eventhubs: EventHubs, identity: Identity
) -> None:
    eventhubs.control.fault("detach_after", times=1, after=1, condition="amqp:unauthorized-access")
    async with publishing(eventhubs, identity) as one:
        await one.send(events("a"), "0")
        made = events("b")
        await one.send(made, "0")
    assert (eventhubs.control.bodies(HUB, "0"), made[0].number) == (["a", "b"], 2)


async def test_a_sender_that_nobody_gives_a_new_token_says_so_and_has_sent_nothing(
    eventhubs: EventHubs, identity: Identity
) -> None:
    async with publishing(eventhubs, identity, retries_max=0) as one:
        await one.send(events("a"), "0")
        identity.refusal = RuntimeError("nobody is at home")
        identity.pass_time(55)
        with pytest.raises(PublishError, match="nobody is at home") as error:
            await one.send(events("b"), "0")
        assert (error.value.is_transient, error.value.outcome) == (True, Outcome.FAILED)
        identity.refusal = None
        await one.send(events("c"), "0")
    assert eventhubs.control.bodies(HUB, "0") == ["a", "c"]


async def test_an_hour_of_questions_has_a_token_each(eventhubs: EventHubs, identity: Identity) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    async with reading(eventhubs, identity) as made:
        for _ in range(3):
            assert await made.lag("0", None) == 1
            identity.pass_time(61)
        assert await bodies(made, 1) == ["a"]
