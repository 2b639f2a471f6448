"""Answers to an attach: find the address, check the client's right, and begin the link, or refuse it as the service does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold_emulators.eventhubs.addresses import Address, address
from leasehold_emulators.eventhubs.asking import UNAUTHORIZED, Answering, Asking
from leasehold_emulators.eventhubs.faults import BUSY, Call
from leasehold_emulators.eventhubs.frames import Attach
from leasehold_emulators.eventhubs.links import Incoming, Link
from leasehold_emulators.eventhubs.messages import PRODUCER_ID, PRODUCER_LEVEL, PRODUCER_NUMBER
from leasehold_emulators.eventhubs.namespace import Hub, not_found
from leasehold_emulators.eventhubs.partition import Partition
from leasehold_emulators.eventhubs.producers import ARGUMENT, Asked, Attached, Refusal
from leasehold_emulators.eventhubs.publishing import Publishing
from leasehold_emulators.eventhubs.receiving import Receiving
from leasehold_emulators.eventhubs.selector import begin
from leasehold_emulators.eventhubs.values import Array, Described, Int, Long, Short, Symbol, UByte, UInt, ULong

if TYPE_CHECKING:
    from leasehold_emulators.eventhubs.session import Session

IDEMPOTENT = "com.microsoft:idempotent-producer"
METRICS = "com.microsoft:enable-receiver-runtime-metric"
EPOCH = "com.microsoft:epoch"
INVALID = "amqp:invalid-field"
SOURCE, TARGET = 0x28, 0x29
SETTLED = UByte(1)


def attach(session: Session, asked: Attach) -> None:
    """Attach the link, unless a fault takes the attach."""
    connection = session.connection
    where = _address(asked)
    call = Call(
        "attach.receiver" if asked.role else "attach.sender",
        where.hub if where else "",
        (where.partition if where else None) or "",
        (where.group if where else None) or "",
    )
    fault = None if where is None or where.node else connection.namespace.faults.taking(call)
    match fault.do if fault else "":
        case "cut":
            connection.abort()
        case "refuse" | "throttle" if fault:
            _refuse(session, asked, Refusal(condition=fault.condition or BUSY, description=fault.description))
        case "delay" if fault:
            connection.wire.later(fault.delay_s, lambda: _begin(session, asked, where))
        case "hang":
            pass
        case _:
            _begin(session, asked, where)


def _address(asked: Attach) -> Address | None:
    """The address of the node at our end: a receiver's source, a sender's target."""
    end = fields(asked.source if asked.role else asked.target)
    return address(str(end[0]), is_receiver=asked.role) if end and end[0] is not None else None


def fields(end: Any) -> list[Any]:
    return list(end.value) if isinstance(end, Described) else []


def _begin(session: Session, asked: Attach, where: Address | None) -> None:
    link: Link | Refusal
    if where is None:
        link = Refusal(condition=INVALID, description="The link has no address that is known here.")
    elif where.node:
        link = _of_node(session, asked, where.node)
    else:
        link = _of_hub(session, asked, where)
    if isinstance(link, Refusal):
        _refuse(session, asked, link)
        return
    session.links[asked.handle] = link
    session.send(_reply(session, asked, link))
    if isinstance(link, Incoming | Receiving):
        link.begun()


def _refuse(session: Session, asked: Attach, refusal: Refusal) -> None:
    """Refuse as the standard defines it: an attach without source and target, then a detach with the reason."""
    session.connection.namespace.count("attach.refused", "", "", refusal.condition)
    count = UInt(0) if asked.role else None
    session.send(Attach(asked.name, asked.handle, not asked.role, initial_delivery_count=count))
    session.refuse(asked.handle, refusal)


def _reply(session: Session, asked: Attach, link: Link) -> Attach:
    source, target = asked.source, asked.target
    reply = Attach(
        asked.name,
        asked.handle,
        not asked.role,
        snd_settle_mode=SETTLED if asked.role else asked.snd_settle_mode,
        rcv_settle_mode=asked.rcv_settle_mode,
        source=_end(source, SOURCE, 11),
        target=_end(target, TARGET, 7),
        incomplete_unsettled=False,
        initial_delivery_count=UInt(0) if asked.role else None,
        max_message_size=ULong(session.connection.namespace.message_bytes_max),
    )
    if isinstance(link, Publishing) and link.attached:
        return reply._replace(offered_capabilities=Array([Symbol(IDEMPOTENT)]), properties=_state(link.attached))
    return reply


def _state(attached: Attached) -> dict[Symbol, int]:
    return {
        Symbol(PRODUCER_ID): Long(attached.producer.id),
        Symbol(PRODUCER_LEVEL): Short(attached.producer.level),
        Symbol(PRODUCER_NUMBER): Int(attached.replied),
    }


def _end(end: Any, code: int, count: int) -> Described:
    """The client's own terminus, or an empty one, extended to all of its fields: it must not be null."""
    own = fields(end)
    return Described(ULong(code), own + [None] * (count - len(own)))


def _of_node(session: Session, asked: Attach, node: str) -> Link:
    if asked.role:
        target = fields(asked.target)
        there = str(target[0]) if target and target[0] is not None else None
        return Answering(session=session, handle=asked.handle, name=asked.name, node=node, address=there)
    most = session.connection.namespace.message_bytes_max
    return Asking(session=session, handle=asked.handle, name=asked.name, node=node, bytes_max=most)


def _of_hub(session: Session, asked: Attach, where: Address) -> Link | Refusal:
    connection = session.connection
    hub = connection.namespace.hub(where.hub)
    if not connection.is_granted(where.hub):
        text = f"Unauthorized access: claims for '{where.hub}' are missing or expired."
        return Refusal(condition=UNAUTHORIZED, description=text)
    if hub is None:
        return not_found(where.hub)
    if where.partition is None:
        return _sender(session, asked, hub, None)
    partition = connection.namespace.partition(hub.name, where.partition)
    if partition is None:
        text = f"The specified partition is invalid for an EventHub partition sender or receiver: '{where.partition}'."
        return Refusal(condition="com.microsoft:argument-out-of-range", description=text)
    if asked.role:
        return _receiver(session, asked, hub, partition, where.group or "")
    return _sender(session, asked, hub, partition)


def _receiver(session: Session, asked: Attach, hub: Hub, partition: Partition, group: str) -> Link | Refusal:
    if not hub.has_group(group):
        return not_found(f"{hub.name}/ConsumerGroups/{group}")
    epoch = (asked.properties or {}).get(EPOCH)
    source = fields(asked.source)
    try:
        position = begin(source[7] if len(source) > 7 else None)
    except ValueError as problem:
        return Refusal(condition=ARGUMENT, description=str(problem))
    beyond = partition.beyond(position)
    if beyond is not None and session.connection.namespace.refuses_beyond:
        return Refusal(condition=ARGUMENT, description=beyond)
    place = partition.number_at(position)
    link = Receiving(
        session=session,
        handle=asked.handle,
        name=asked.name,
        hub=hub,
        group=group,
        partition=partition,
        next=place,
        epoch=None if epoch is None else int(epoch),
        has_metrics=METRICS in wishes(asked),
    )
    return hub.receive(group, partition.id, link) or link


def wishes(asked: Attach) -> list[Any]:
    """The desired capabilities; a single one may be a symbol without an array."""
    wished = asked.desired_capabilities
    return list(wished) if isinstance(wished, list) else [wished]


def _sender(session: Session, asked: Attach, hub: Hub, partition: Partition | None) -> Link | Refusal:
    namespace = session.connection.namespace
    attached: Attached | None = None
    if IDEMPOTENT in wishes(asked):
        outcome = _producer(session, asked, partition)
        if isinstance(outcome, Refusal):
            return outcome
        attached = outcome
    return Publishing(
        session=session,
        handle=asked.handle,
        name=asked.name,
        hub=hub,
        partition=partition,
        attached=attached,
        bytes_max=namespace.message_bytes_max,
    )


def _producer(session: Session, asked: Attach, partition: Partition | None) -> Attached | Refusal:
    if partition is None:
        text = "An idempotent producer has to be attached to a partition."
        return Refusal(condition=ARGUMENT, description=text)
    properties = asked.properties or {}
    wished = Asked(
        id=properties.get(PRODUCER_ID), level=properties.get(PRODUCER_LEVEL), last=properties.get(PRODUCER_NUMBER)
    )
    return session.connection.namespace.attach_producer(partition, wished)
