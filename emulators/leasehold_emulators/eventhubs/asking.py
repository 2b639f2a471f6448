"""Requests and their answers over a pair of links: tokens put to `$cbs`, properties read from `$management`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold_emulators.eventhubs.faults import BUSY, Call
from leasehold_emulators.eventhubs.links import Incoming, Outgoing
from leasehold_emulators.eventhubs.messages import Request, answer, request
from leasehold_emulators.eventhubs.namespace import Hub, Namespace
from leasehold_emulators.eventhubs.partition import Partition
from leasehold_emulators.eventhubs.producers import Refusal
from leasehold_emulators.eventhubs.tokens import Unauthorized
from leasehold_emulators.eventhubs.values import Array, Malformed, Timestamp

if TYPE_CHECKING:
    from leasehold_emulators.eventhubs.connection import Connection

UNAUTHORIZED = "amqp:unauthorized-access"
NEVER_MS = -62_135_596_800_000  # the first day of the year 1
NODES = {"$cbs": "cbs", "$management": "management"}


@dataclass(slots=True, kw_only=True, eq=False)
class Answering(Outgoing):
    """address: the client's target. Requests with this `reply-to` are answered there."""

    node: str
    address: str | None
    waiting: deque[bytes] = field(default_factory=deque)

    def pump(self) -> bool:
        count = min(self.room, len(self.waiting))
        if count > 0:
            self.transfer([self.waiting.popleft() for _ in range(count)])
        return count > 0


@dataclass(slots=True, kw_only=True, eq=False)
class Asking(Incoming):
    """node: `$cbs` or `$management`."""

    node: str

    def on_message(self, id_: int, message_format: int, message: bytes, is_settled: bool) -> None:
        try:
            asked = request(message)
        except Malformed as problem:
            self.settle(id_, Refusal(condition="amqp:decode-error", description=str(problem)), is_settled)
            return
        self.settle(id_, None, is_settled)
        connection = self.session.connection
        fault = connection.namespace.faults.taking(Call(NODES[self.node], str(asked.what.get("name", ""))))
        match fault.do if fault else "":
            case "cut":
                connection.abort()
            case "refuse" | "throttle" if fault:
                status = 503 if fault.condition == BUSY else 500
                self._answer(
                    asked, answer(asked, status, fault.description, None, fault.condition or "amqp:internal-error")
                )
            case "delay" if fault:
                connection.wire.later(fault.delay_s, lambda: self._answer(asked, self._answered(asked)))
            case "hang":
                pass
            case _:
                self._answer(asked, self._answered(asked))

    def _answered(self, asked: Request) -> bytes:
        connection = self.session.connection
        return put_token(connection, asked) if self.node == "$cbs" else read(connection, asked)

    def _answer(self, asked: Request, message: bytes) -> None:
        """Send the answer on the link that the request names, otherwise on one of the same node."""
        links = [link for link in self.session.links.values() if isinstance(link, Answering)]
        named = [link for link in links if asked.reply_to is not None and asked.reply_to in (link.address, link.name)]
        for link in named or [link for link in links if link.node == self.node and link.is_attached]:
            link.waiting.append(message)
            self.session.connection.pump()
            return


def put_token(connection: Connection, asked: Request) -> bytes:
    namespace = connection.namespace
    try:
        grant = namespace.keys.granted(str(asked.body), namespace.now_ms() / 1000)
    except Unauthorized as problem:
        return answer(asked, 401, str(problem), None, UNAUTHORIZED)
    connection.grant(grant)
    return answer(asked, 202, "Accepted")


def read(connection: Connection, asked: Request) -> bytes:
    """The properties of a hub or a partition."""
    namespace, what = connection.namespace, asked.what
    if not _may_read(connection, asked):
        return answer(asked, 401, "Unauthorized: a claim is missing or its token is wrong.", None, UNAUTHORIZED)
    hub = namespace.hub(str(what.get("name", "")))
    if what.get("operation") != "READ":
        return answer(
            asked, 501, f"The operation {what.get('operation')!r} is not implemented.", None, "amqp:not-implemented"
        )
    if not namespace.admits_read(str(asked.what.get("name", "")), str(asked.what.get("partition", ""))):
        return answer(asked, 503, "The request was terminated because the entity is being throttled.", None, BUSY)
    if hub is None:
        return _not_found(asked, f"The messaging entity '{what.get('name')}' could not be found.")
    if what.get("type") == "com.microsoft:eventhub":
        return answer(asked, 200, "OK", hub_properties(hub))
    partition = namespace.partition(hub.name, str(what.get("partition", "")))
    if partition is None:
        return _not_found(asked, f"The partition '{what.get('partition')}' of '{hub.name}' could not be found.")
    return answer(asked, 200, "OK", partition_properties(namespace, partition))


def _not_found(asked: Request, text: str) -> bytes:
    return answer(asked, 404, text, None, "amqp:not-found")


def _may_read(connection: Connection, asked: Request) -> bool:
    namespace, hub = connection.namespace, str(asked.what.get("name", ""))
    now_s = namespace.now_ms() / 1000
    token = asked.what.get("security_token")
    if token is None:
        return connection.is_granted(hub)
    try:
        return namespace.keys.granted(str(token), now_s).covers(hub, now_s)
    except Unauthorized:
        return False


def hub_properties(hub: Hub) -> dict[str, object]:
    return {
        "name": hub.name,
        "type": "com.microsoft:eventhub",
        "created_at": Timestamp(hub.created_ms),
        "partition_count": len(hub.partitions),
        "partition_ids": Array(partition.id for partition in hub.partitions),
        "georeplication_factor": 1,
    }


def partition_properties(namespace: Namespace, partition: Partition) -> dict[str, object]:
    end = partition.end_before(namespace.old_events, namespace.now_ms() - int(namespace.old_s * 1000))
    offset, time_ms = partition.place_of(end - 1)
    return {
        "name": partition.hub,
        "type": "com.microsoft:partition",
        "partition": partition.id,
        "begin_sequence_number": min(partition.first, end),
        "last_enqueued_sequence_number": end - 1,
        "last_enqueued_offset": str(offset),
        "last_enqueued_time_utc": Timestamp(time_ms if end else NEVER_MS),
        "runtime_info_retrieval_time_utc": Timestamp(namespace.now_ms()),
        "is_partition_empty": end <= partition.first,
    }
