"""Publishing to one partition: one send at a time; each is retried under its own numbers, as often as the retry policy permits.

If the outcome of a try is unknown, its batch is *unsettled*: no other events get its numbers. To settle it, the same batch is
sent under the same numbers, which the broker stores or recognizes: in the next tries, in a send of the same contents, or before
anything else is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from leasehold.common.cancellation import await_shielded
from leasehold.common.clock import Backoff
from leasehold.pipeline.producer.broker import Broker, ProducerLink
from leasehold.pipeline.producer.errors import ENDS_THE_PRODUCER, Outcome, PublishError, Reason, refused
from leasehold.pipeline.producer.event import AttachRequest, ProducerPosition, number_after

T = TypeVar("T")
UNKNOWN = (
    "the events may have been published, or not: send the same events again, and they are stored once; before anything else is"
    " sent, they are settled (sent again until the broker has them)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """retries_max: further tries after the first. delay_s: the pause before the first of these; with `exponential` each pause is
    twice the last one, up to `delay_max_s`.

    try_timeout_s: how long one try may take, its link included.
    """

    retries_max: int = 3
    delay_s: float = 0.8
    delay_max_s: float = 60.0
    try_timeout_s: float = 60.0
    mode: Literal["exponential", "fixed"] = "exponential"

    def __post_init__(self) -> None:
        if self.retries_max < 0 or self.delay_s < 0 or self.delay_max_s < 0 or self.try_timeout_s <= 0:
            raise ValueError("a retry policy needs retries and delays of 0 or more, and a time for each try")

    def pause_s(self, retry: int) -> float:
        """The pause before retry number `retry`, from 1 on."""
        backoff = Backoff(first_s=self.delay_s, max_s=self.delay_max_s)
        return backoff.pause_s(1 if self.mode == "fixed" else retry, 0.0)


class Contents(Protocol):
    """What is published together. `begin` may refuse. If it does not, `keep` (the first event's number) or `drop` follows."""

    @property
    def payloads(self) -> Sequence[Any]: ...

    @property
    def key(self) -> str | None: ...

    def begin(self) -> None: ...

    def keep(self, first: int | None) -> None: ...

    def drop(self) -> None: ...


class NotSent(Exception):
    """Carries what `sending` raised through a link."""


class Flight:
    """One send under way. is_in_air: something was sent, and its outcome is not known yet."""

    def __init__(self, sending: Callable[[], None] = lambda: None) -> None:
        self.is_in_air = False
        self.is_cancelled = False
        self._sending = sending

    def sending(self) -> None:
        try:
            self._sending()
        except Exception as error:
            raise NotSent from error
        self.is_in_air = True


class PartitionProducer:
    """strict: a reply that differs from the request ends the producer, instead of overriding its numbers.

    asked: the first link's request, None to leave all to the broker.
    """

    def __init__(
        self,
        broker: Broker,
        partition: str | None,
        *,
        asked: AttachRequest | None = None,
        idempotent: bool = True,
        strict: bool = False,
        retry: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        assert partition is not None or not idempotent, "numbers are kept per partition"
        self.partition = partition
        self.numbers: ProducerPosition | None = None
        """As the broker has confirmed them; None before the first link."""
        self._broker = broker
        self._wanted = asked
        self._idempotent = idempotent
        self._strict = strict
        self._retry = retry or RetryPolicy()
        self._sleep = sleep
        self._turn = asyncio.Lock()
        self._link: ProducerLink | None = None
        self._unsettled: Unsettled | None = None
        self._end: PublishError | None = None
        self._bytes_max = 0

    @property
    def bytes_max(self) -> int:
        """The largest batch, according to the last link."""
        return self._bytes_max

    async def ensure_link(self) -> ProducerLink:
        """A link, made now if there is none. Raises PublishError."""
        async with self._our_turn():
            flight = Flight()
            return await _run_uninterrupted(flight, self._in_tries(flight, self._ensure_link_in_time))

    async def publish(self, contents: Contents, sending: Callable[[], None] = lambda: None) -> int | None:
        """Returns the first event's number. Raises PublishError, or, if nothing was sent, whatever `sending` raised.

        If it is cancelled before anything is sent, nothing is sent. Later it waits for the broker's answer (a second cancellation
        ends that, and leaves the batch unsettled). If the broker accepts, `contents` are kept although the cancellation is
        raised.
        """
        async with self._our_turn():
            contents.begin()
            is_kept = False

            def keep(first: int | None) -> None:
                nonlocal is_kept
                is_kept = True
                contents.keep(first)

            flight = Flight(sending)
            try:
                return await _run_uninterrupted(flight, self._publish(contents, flight, keep))
            finally:
                if not is_kept:
                    contents.drop()

    async def settle(self) -> bool:
        """Publish the unsettled batch. Returns whether there was one. Raises PublishError."""
        async with self._our_turn():
            if self._unsettled is None:
                return False
            flight = Flight()
            await _run_uninterrupted(flight, self._settle(flight))
            return True

    async def close(self, error: PublishError) -> None:
        """error: raised by later sends. The send under way is finished first."""
        self._end = self._end or error
        async with self._turn:
            await self._drop_link()

    @asynccontextmanager
    async def _our_turn(self) -> AsyncIterator[None]:
        """A caller of `close` may have given up waiting: then the link is dropped here."""
        async with self._turn:
            try:
                yield
            finally:
                if self._end is not None:
                    await self._drop_link()

    async def _publish(self, contents: Contents, flight: Flight, keep: Callable[[int | None], None]) -> int | None:
        unsettled, payloads = self._unsettled, contents.payloads
        if unsettled is not None and (list(unsettled.payloads), unsettled.key) != (list(payloads), contents.key):
            try:
                await self._settle(flight)
            except PublishError as error:
                advice = (
                    "nothing of this send was sent: the outcome of an earlier one is unknown, and could not be settled"
                )
                raise error.with_outcome(Outcome.FAILED, advice) from error
            if flight.is_cancelled:
                raise asyncio.CancelledError  # only the earlier batch was in the air; this one is not sent
        first = await self._deliver(payloads, contents.key, flight)
        keep(first)
        return first

    async def _settle(self, flight: Flight) -> None:
        assert self._unsettled is not None
        await self._deliver(self._unsettled.payloads, self._unsettled.key, flight)

    async def _deliver(self, payloads: Sequence[Any], key: str | None, flight: Flight) -> int | None:
        if not payloads:
            raise PublishError("there is nothing to publish: add an event", reason=Reason.GENERAL_ERROR)
        try:
            return await self._in_tries(flight, lambda: self._try_once(payloads, key, flight))
        except PublishError as error:
            if self._unsettled is None and error.outcome is Outcome.FAILED:
                raise
            raise error.with_outcome(Outcome.UNKNOWN, UNKNOWN if self._unsettled and not self._end else "") from error
        except NotSent as not_sent:
            why = not_sent.__cause__
            assert why is not None
            if self._unsettled is None:
                raise why from None
            text = f"it cannot be sent again now ({why}). {UNKNOWN}"
            raise PublishError(text, reason=Reason.GENERAL_ERROR, outcome=Outcome.UNKNOWN) from why

    async def _in_tries(self, flight: Flight, step: Callable[[], Awaitable[T]]) -> T:
        retries = 0
        while True:
            if self._end is not None:
                raise self._end
            try:
                return await step()
            except NotSent:
                raise
            except PublishError as error:
                await self._drop_link()
                if error.reason in ENDS_THE_PRODUCER and self._idempotent:
                    self._end = error
                if not error.is_transient or retries == self._retry.retries_max or flight.is_cancelled:
                    raise
            except BaseException:
                await self._drop_link()
                raise
            retries += 1
            await self._sleep(self._retry.pause_s(retries))

    async def _try_once(self, payloads: Sequence[Any], key: str | None, flight: Flight) -> int | None:
        unsettled = self._unsettled
        try:
            async with asyncio.timeout(self._retry.try_timeout_s):
                link = await self._ensure_link()
                if unsettled is not None and self._unsettled is None:
                    return number_after(unsettled.after.number)  # the reply showed that it is stored
                await link.send(payloads, self.numbers, key, flight.sending)
        except TimeoutError as error:
            raise self._lost(self._late(flight), payloads, key) from error
        except PublishError as error:
            raise self._lost(error, payloads, key) from error
        except asyncio.CancelledError:
            self._lost(self._late(flight), payloads, key)
            raise
        finally:
            flight.is_in_air = False
        return self._accepted(len(payloads))

    def _accepted(self, events: int) -> int | None:
        self._unsettled = None
        if self.numbers is None:
            return None
        first = number_after(self.numbers.number)
        self.numbers = self.numbers.after(events)
        return first

    def _lost(self, error: PublishError, payloads: Sequence[Any], key: str | None) -> PublishError:
        if error.outcome is Outcome.UNKNOWN and self.numbers is not None:
            self._unsettled = Unsettled(payloads=payloads, key=key, after=self.numbers)
        return error

    def _late(self, flight: Flight) -> PublishError:
        return refused(
            f"{self._target} did not answer within {self._retry.try_timeout_s:g} s",
            reason=Reason.SERVICE_TIMEOUT,
            is_transient=True,
            outcome=Outcome.UNKNOWN if flight.is_in_air else Outcome.FAILED,
        )

    async def _ensure_link_in_time(self) -> ProducerLink:
        try:
            async with asyncio.timeout(self._retry.try_timeout_s):
                return await self._ensure_link()
        except TimeoutError as error:
            raise self._late(Flight()) from error

    async def _ensure_link(self) -> ProducerLink:
        """The current link, or a new one, which is requested with our numbers. Those of the broker's reply replace ours."""
        if self._link is not None and self._link.is_usable:
            return self._link
        await self._drop_link()
        asked = self._wanted if self.numbers is None else self.numbers.asked
        self._link = link = await self._broker.attach(self.partition, asked, idempotent=self._idempotent)
        self._bytes_max = link.bytes_max
        if link.numbers is not None:
            self._learn(link.numbers, asked)
        return link

    def _learn(self, reply: ProducerPosition, asked: AttachRequest | None) -> None:
        verdict = judged(reply, asked, self._unsettled, strict=self._strict)
        if verdict == "strange":
            raise refused(
                f"{self._target} replied number {reply.number} at level {reply.level} of group {reply.group} to {asked}: another"
                " process publishes under the same group and level, or the broker has lost the producer's state",
                reason=Reason.INVALID_CLIENT_STATE,
            )
        self.numbers = reply
        if verdict == "stored":
            self._unsettled = None

    async def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    @property
    def _target(self) -> str:
        where = "" if self.partition is None else f", partition '{self.partition}'"
        return f"{self._broker.name}{where}"


async def _run_uninterrupted(flight: Flight, sending: Coroutine[Any, Any, T]) -> T:
    """If cancelled while nothing is in the air, it ends at once, else after the answer. A second cancellation does not wait."""
    task = asyncio.ensure_future(sending)
    try:
        return await await_shielded(task)
    except asyncio.CancelledError:
        flight.is_cancelled = True
        if not flight.is_in_air:
            task.cancel()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # no other caller retrieves it
        raise


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unsettled:
    """A batch whose outcome is unknown. after: the numbers that it follows."""

    payloads: Sequence[Any]
    key: str | None
    after: ProducerPosition

    @property
    def last(self) -> ProducerPosition:
        return self.after.after(len(self.payloads))


Verdict = Literal["continue", "stored", "unsettled", "strange"]


def judged(
    reply: ProducerPosition, asked: AttachRequest | None, unsettled: Unsettled | None, *, strict: bool
) -> Verdict:
    """What the reply to an attach means for what was sent before it. Pure.

    A new link is requested with the numbers that we believe in. If the broker has others, its reply counts; if the outcome of
    a batch is unknown, the reply may show that it was stored. It cannot show that it was not: the batch may still be on its
    way, and some brokers repeat the request's numbers. Only the same batch under the same numbers settles that.

    strict: whether a reply that differs from `asked` is strange if nothing is unsettled.

    `continue`: use the numbers of the reply. stored: the unsettled batch is published. unsettled: send it again.
    strange: another process publishes under our numbers, or the broker has lost them.
    """
    if unsettled is not None:
        return "stored" if reply == unsettled.last else "unsettled" if reply == unsettled.after else "strange"
    return "continue" if not strict or _fits(reply, asked) else "strange"


def _fits(reply: ProducerPosition, asked: AttachRequest | None) -> bool:
    return all(getattr(asked, name, None) in (None, getattr(reply, name)) for name in ("group", "level", "number"))
