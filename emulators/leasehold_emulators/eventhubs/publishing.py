"""A client's link to a hub or one of its partitions: each message is an event or a batch of them, stored whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leasehold_emulators.eventhubs.faults import BUSY, Call, Fault
from leasehold_emulators.eventhubs.links import Incoming
from leasehold_emulators.eventhubs.messages import Event, events
from leasehold_emulators.eventhubs.namespace import Hub
from leasehold_emulators.eventhubs.partition import Partition
from leasehold_emulators.eventhubs.producers import ARGUMENT, Attached, Refusal
from leasehold_emulators.eventhubs.values import Malformed

FORCED = "amqp:link:detach-forced"


@dataclass(slots=True, kw_only=True, eq=False)
class Publishing(Incoming):
    """partition: None for a link to the hub. attached: an idempotent producer as it was when the link began."""

    hub: Hub
    partition: Partition | None = None
    attached: Attached | None = None

    @property
    def entity(self) -> str:
        return self.hub.name

    @property
    def place(self) -> str:
        return self.partition.id if self.partition else ""

    def on_message(self, id_: int, message_format: int, message: bytes, is_settled: bool) -> None:
        namespace = self.session.connection.namespace
        namespace.count("batches", self.hub.name, self.place)
        fault = namespace.faults.taking(Call("send", self.hub.name, self.place))
        if fault:
            self._faulty(fault, id_, lambda: self._stored(message_format, message), is_settled)
        else:
            self.settle(id_, self._stored(message_format, message), is_settled)

    def _faulty(self, fault: Fault, id_: int, store: Callable[[], Refusal | None], is_settled: bool) -> None:
        connection = self.session.connection
        ordered = Refusal(condition=fault.condition or BUSY, description=fault.description)
        forced = Refusal(condition=fault.condition or FORCED, description=fault.description)
        if fault.do in ("cut_after", "lose_ack", "detach_after"):
            store()
        match fault.do:
            case "cut" | "cut_after":
                connection.abort()
            case "late_ack":
                outcome = store()
                connection.wire.later(fault.delay_s, lambda: self.settle(id_, outcome, is_settled))
            case "delay":
                connection.wire.later(fault.delay_s, lambda: self.settle(id_, store(), is_settled))
            case "refuse" | "throttle":
                self._count_refusal(ordered)
                self.settle(id_, ordered, is_settled)
            case "detach" | "detach_after":
                self.detach(forced)
            case "discard":
                self.settle(id_, None, is_settled)

    def _stored(self, message_format: int, message: bytes) -> Refusal | None:
        outcome = self._store(message_format, message)
        if outcome:
            self._count_refusal(outcome)
        return outcome

    def _store(self, message_format: int, message: bytes) -> Refusal | None:
        namespace = self.session.connection.namespace
        try:
            batch = events(message, message_format)
        except Malformed as problem:
            return Refusal(condition="amqp:decode-error", description=str(problem))
        if not batch:
            return Refusal(condition=ARGUMENT, description="The batch is empty.")
        partition = self.partition or self.hub.routed(self._key(batch))
        now_ms = namespace.now_ms()
        before = partition.end
        if self.attached is None:
            partition.append(batch, now_ms)
            refusal = None
        else:
            refusal = partition.publish(batch, self.attached.producer.id, now_ms)
        namespace.count("events", self.hub.name, partition.id, by=partition.end - before)
        return refusal

    def _count_refusal(self, refusal: Refusal) -> None:
        self.session.connection.namespace.count("refused", self.hub.name, self.place, refusal.condition)

    def _key(self, batch: list[Event]) -> str | None:
        return batch[0].key
