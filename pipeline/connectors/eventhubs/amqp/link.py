"""A receiving link: the SDK opens and authorises it and grants credit, but its octets are read without the SDK.

The SDK decodes every message into objects, with a task for each frame, which takes most of its consumers' time. So once the link
is attached, only this module reads from its connection. Frames that are not our transfers are handed to the SDK, which answers
them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from leasehold.pipeline.connectors.eventhubs.amqp.connection import Hub, connect, disconnect
from leasehold.pipeline.connectors.eventhubs.amqp.frames import Frame
from leasehold.pipeline.connectors.eventhubs.amqp.sdk_internals import (
    authenticator_of,
    channel_of,
    connection_of,
    error_of,
    expect_no_frames,
    is_attached,
    link_of,
    process_frame,
    sdk,
    send_sign_of_life,
    session_of,
    take_unparsed,
    transport_of,
)
from leasehold.pipeline.errors import FeedUnavailable

EPOCH = b"com.microsoft:epoch"
GEOREPLICATION = b"com.microsoft:georeplication"
"""The SDK's own consumers want this, too: offsets are then those of the primary region."""
RUNTIME_METRIC = b"com.microsoft:enable-receiver-runtime-metric"
CHUNK_BYTES_MAX = 256 * 1024
SIGN_OF_LIFE_S = 60.0
"""The service has to send something at least this often, even an empty frame. If it is silent for longer, it is gone."""
RENEWAL_S = 1800.0
"""How long the answer to a new token may wait behind unread events. When a token expires, the service closes the link."""
_COUNT = 0xFFFF_FFFF
"""AMQP's counters wrap at 32 bits; the SDK's do not, and fail after 2^32 events on one connection."""


class ReceiverLink:
    """Use `attach`. Its methods raise the errors of the SDK, the socket or the service; `refusal` translates them."""

    def __init__(self, client: Any, credit: int) -> None:
        self._client = client
        self._connection = connection_of(client)
        self._session = session_of(client)
        self._link = link_of(client)
        self._credit = credit

    @classmethod
    async def attach(
        cls,
        hub: Hub,
        path: str,
        selector: str,
        *,
        epoch: int | None,
        credit: int,
        timeout_s: float,
        reports_end: bool = False,
    ) -> ReceiverLink:
        """path: of the partition in a consumer group. epoch: the reader's, which displaces readers with a lower one; or None.

        reports_end: whether the service is to report the partition's end with each event.
        """
        wishes = [GEOREPLICATION, RUNTIME_METRIC] if reports_end else [GEOREPLICATION]
        client = await _client(hub, path, selector, epoch, wishes)
        try:
            async with asyncio.timeout(timeout_s):
                await connect(client)
                if not is_attached(client):
                    raise FeedUnavailable(f"{hub.name}/{path}: the service detached the link at once")
                expect_no_frames(connection_of(client))
                link = cls(client, credit)
                await link_of(client).flow(link_credit=credit)
        except BaseException:
            await disconnect(client)
            raise
        return link

    @property
    def channel(self) -> int:
        return channel_of(self._connection, self._session)

    @property
    def handle(self) -> int:
        """The service's number of the link."""
        return int(self._link.remote_handle)

    def read_already(self) -> bytes:
        """The octets that the SDK has read from the connection and not parsed. Call it once, before `read`."""
        return take_unparsed(self._connection)

    async def read(self) -> bytes:
        """The next octets, as soon as there are some. Raises ConnectionError at the end."""
        transport = transport_of(self._connection)
        if isinstance(transport, sdk().SASLWithWebSocket):
            return await _message(transport.sock)
        chunk: bytes = await transport.reader.read(CHUNK_BYTES_MAX)
        if not chunk:
            raise ConnectionError("the service closed the connection")
        return chunk

    async def beat(self) -> None:
        """Call this from time to time. It shows that we are alive, and renews the token before it expires."""
        await send_sign_of_life(self._connection, time.time())
        if (authenticator := authenticator_of(self._client)) is not None:
            await _renew(authenticator)
        self._check()

    async def hand_over(self, frames: Sequence[Frame]) -> None:
        """Give frames to the SDK, which keeps the state of connection, sessions and links. Raises the errors in them."""
        for channel, octets in frames:
            await process_frame(self._connection, channel, octets)
            self._check()

    async def replenish(self, transfers: int, deliveries: int) -> None:
        """Note how many were read. New credit is granted once half of it is used up."""
        session, link = self._session, self._link
        session.next_incoming_id = (session.next_incoming_id + transfers) & _COUNT
        session.incoming_window -= transfers
        link.delivery_count = (link.delivery_count + deliveries) & _COUNT
        link.current_link_credit -= deliveries
        if (
            link.current_link_credit <= self._credit // 2
            or session.incoming_window <= session.target_incoming_window // 2
        ):
            session.incoming_window = session.target_incoming_window
            await link.flow(link_credit=self._credit)

    async def close(self) -> None:
        await disconnect(self._client)

    def _check(self) -> None:
        if (error := error_of(self._connection)) is not None:
            raise error
        if self._link.get_state() != sdk().LinkState.ATTACHED:
            raise ConnectionError("the service detached the link")


async def _renew(authenticator: Any) -> None:
    """If no new token is available, the present one is used until it expires, and the next beat tries again."""
    states = sdk().CbsAuthState
    try:
        await authenticator.handle_token()
    except Exception:
        if authenticator.auth_state != states.IN_PROGRESS:
            raise  # refused, too late, or expired
        authenticator.auth_state = states.OK


async def _client(hub: Hub, path: str, selector: str, epoch: int | None, wishes: list[bytes]) -> Any:
    names = sdk()
    name = names.ApacheFilters.selector_filter
    source = names.Source(address=hub.address(path), filters={name: (name, selector)})
    return names.ReceiveClientAsync(
        source=source,
        auth=await hub.make_auth(),
        receive_settle_mode=names.ReceiverSettleMode.First,
        link_properties=None if epoch is None else {EPOCH: {names.TYPE: names.AMQPTypes.long, names.VALUE: epoch}},
        desired_capabilities=wishes,
        streaming_receive=True,
        idle_timeout=SIGN_OF_LIFE_S,
        auth_timeout=RENEWAL_S,
        **hub.options(),
    )


async def _message(socket: Any) -> bytes:
    try:
        return bytes(await socket.receive_bytes())
    except TypeError:  # the WebSocket reports its end this way
        raise ConnectionError("the service closed the WebSocket") from None
