"""One link to a partition, over a connection of its own. It sends one batch at a time, and awaits its answer.

The SDK's `send` is not used: it repeats sends on its own, swallows some refusals, and may wait between the call and the sending.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from leasehold.common.cancellation import heeding
from leasehold.pipeline.connectors.eventhubs.amqp.connection import Hub, HubTokenRefused, connect, disconnect
from leasehold.pipeline.connectors.eventhubs.amqp.encode import BATCH_FORMAT, GROUP, LEVEL, NUMBER, enveloped, numbered
from leasehold.pipeline.connectors.eventhubs.amqp.sdk_internals import (
    has_credit,
    is_attached,
    link_of,
    sdk,
    send_encoded,
    sender_class,
)
from leasehold.pipeline.connectors.eventhubs.sink.refusals import attach_refused, batch_refused, link_ended
from leasehold.pipeline.producer import NOTHING_YET, AttachRequest, ProducerPosition, PublishError

IDEMPOTENT = b"com.microsoft:idempotent-producer"
IDLE_S = 60.0
"""A link that has been idle for longer is replaced before it is used: the service may have dropped it unnoticed."""
TOKENS = {
    401: "amqp:unauthorized-access",
    403: "amqp:unauthorized-access",
    404: "amqp:not-found",
    503: "com.microsoft:server-busy",
}
"""The service's answer to a token -> its answer to links for the same reason."""
BYTES_MAX = 1024 * 1024
"""The maximum size of a batch if the service does not report one."""


async def attach(hub: Hub, partition: str | None, asked: AttachRequest | None, *, idempotent: bool) -> SenderLink:
    """Raises PublishError."""
    place = f"'{hub.name}'" + ("" if partition is None else f", partition '{partition}'")
    kind = sender_class(IDEMPOTENT) if idempotent else sdk().SendClientAsync
    client = None
    try:
        client = kind(
            target=hub.address("" if partition is None else f"Partitions/{partition}"),
            auth=await hub.make_auth(),
            link_properties=_wished(asked) if idempotent and asked else None,
            max_message_size=0,  # no limit of ours; azure-eventhub 5.15.0 would announce 1 MiB
            **hub.options(),
        )
        await connect(client)
        while not is_attached(client):  # a refusal looks like an attach until its reason arrives
            await heeding(client.client_ready_async())
        return SenderLink(client, place, _replied(client, place) if idempotent else None)
    except BaseException as error:
        if client is not None:
            await disconnect(client)
        if isinstance(error, PublishError | TimeoutError) or not isinstance(error, Exception):
            raise
        raise attach_refused(place, *condition_of(error), asks=asked is not None) from error


class SenderLink:
    """numbers: those of the service's reply to the attach. Implements leasehold.pipeline.producer.ProducerLink."""

    def __init__(self, client: Any, place: str, numbers: ProducerPosition | None) -> None:
        self.numbers = numbers
        self.bytes_max = int(link_of(client).remote_max_message_size or BYTES_MAX)
        self._client = client
        self._place = place
        self._used_at = time.monotonic()

    @property
    def is_usable(self) -> bool:
        return time.monotonic() - self._used_at < IDLE_S

    async def send(
        self, payloads: Sequence[bytes], after: ProducerPosition | None, key: str | None, sending: Callable[[], None]
    ) -> None:
        batch = enveloped(payloads if after is None else numbered(payloads, after), key)
        with self._ending(is_in_air=False):
            await self._wait_for_credit()
        sending()
        with self._ending(is_in_air=True):
            reason, state = await self._transfer(batch)
        self._used_at = time.monotonic()
        self._judge(reason, state)

    async def close(self) -> None:
        await disconnect(self._client)

    async def _wait_for_credit(self) -> None:
        """Wait until the link is attached, its token is accepted, and it has credit: after that, sending need not wait."""
        client = self._client
        while not await heeding(client.client_ready_async()) or not has_credit(client):
            await heeding(client.do_work_async())

    async def _transfer(self, batch: bytes) -> tuple[Any, Any]:
        """Send the batch. Returns why it was settled, and in which state."""
        answer: list[tuple[Any, Any]] = []

        async def note_answer(reason: Any, state: Any) -> None:
            answer.append((reason, state))

        await send_encoded(self._client, batch, BATCH_FORMAT, note_answer)
        while not answer:
            if not await heeding(self._client.do_work_async()):
                raise ConnectionError("the connection was closed")
        return answer[0]

    @contextmanager
    def _ending(self, *, is_in_air: bool) -> Iterator[None]:
        """Any error within ends the link, except a timeout."""
        try:
            yield
        except (PublishError, TimeoutError):
            raise
        except Exception as error:
            raise link_ended(self._place, *condition_of(error), is_in_air=is_in_air) from error

    def _judge(self, reason: Any, state: Any) -> None:
        """Raises PublishError unless the batch was accepted."""
        parts = sdk()
        if reason != parts.LinkDeliverySettleReason.DISPOSITION_RECEIVED:
            raise self._unanswered(reason)
        if isinstance(state, dict) and parts.SEND_DISPOSITION_ACCEPT in state:
            return
        rejected = state.get(parts.SEND_DISPOSITION_REJECT) if isinstance(state, dict) else None
        fields = list(rejected[0]) if rejected and rejected[0] else []
        raise batch_refused(self._place, *_texts(*[*fields, None, None][:2]))

    def _unanswered(self, reason: Any) -> PublishError:
        """The error of a batch that the link has given up, with the link's own reason if it has one."""
        try:
            link_of(self._client).get_state()
        except Exception as error:
            return link_ended(self._place, *condition_of(error), is_in_air=True)
        return link_ended(self._place, "", f"the batch was not answered ({reason.name})", is_in_air=True)


def _wished(asked: AttachRequest) -> dict[bytes, Any]:
    """All three, null if the service is to choose. It may answer -1 as the last number, but does not accept -1."""
    parts = sdk()
    types = parts.AMQPTypes
    number = None if asked.number == NOTHING_YET else asked.number
    wishes = ((GROUP, types.long, asked.group), (LEVEL, types.short, asked.level), (NUMBER, types.int, number))
    return {
        name: {parts.TYPE: types.null if value is None else kind, parts.VALUE: value} for name, kind, value in wishes
    }


def _replied(client: Any, place: str) -> ProducerPosition:
    properties = link_of(client).remote_properties or {}
    group, level, number = (properties.get(name) for name in (GROUP, LEVEL, NUMBER))
    if group is None or level is None or number is None:
        raise attach_refused(place, "amqp:not-implemented", "idempotent publishing is not offered", asks=False)
    return ProducerPosition(group=group, level=level, number=number)


def condition_of(error: BaseException) -> tuple[str, str]:
    """Condition and description, as far as the SDK has them."""
    if isinstance(error, HubTokenRefused):
        return TOKENS.get(error.status_code, ""), f"the token is answered {error}"
    condition = getattr(error, "condition", None)
    if condition is None:
        return "", f"{type(error).__name__}: {error}"
    return _texts(getattr(condition, "value", condition), getattr(error, "description", None))


def _texts(*values: Any) -> tuple[str, str]:
    condition, description = (value.decode() if isinstance(value, bytes) else str(value or "") for value in values)
    return condition, description
