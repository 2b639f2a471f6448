"""A client's link from a partition: every event from its place on, while there is credit."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold_emulators.eventhubs.faults import Call, Fault
from leasehold_emulators.eventhubs.links import Outgoing
from leasehold_emulators.eventhubs.messages import delivery_annotations, runtime_metrics, with_delivery_annotations
from leasehold_emulators.eventhubs.namespace import Hub
from leasehold_emulators.eventhubs.partition import Partition
from leasehold_emulators.eventhubs.producers import Refusal
from leasehold_emulators.eventhubs.publishing import FORCED

CHUNK = 500


@dataclass(slots=True, kw_only=True, eq=False)
class Receiving(Outgoing):
    """next: the number of the next event. has_metrics: each event comes with the end of the partition."""

    hub: Hub
    group: str
    partition: Partition
    next: int
    epoch: int | None = None
    has_metrics: bool = False
    is_delayed: bool = False

    @property
    def entity(self) -> str:
        return self.hub.name

    def begun(self) -> None:
        self.partition.watchers.add(self.wake)

    def wake(self) -> None:
        self.session.connection.wake()

    def on_gone(self) -> None:
        self.partition.watchers.discard(self.wake)
        self.hub.leave(self.group, self.partition.id, self)

    def pump(self) -> bool:
        self.next = max(self.next, self.partition.first)
        count = min(self.room, self.partition.end - self.next, CHUNK)
        if count <= 0 or self.is_delayed:
            return False
        namespace = self.session.connection.namespace
        if namespace.faults.concern("receive"):
            fault = namespace.faults.taking(Call("receive", self.hub.name, self.partition.id, self.group))
            if fault:
                self._faulty(fault)
                return False
            count = 1
        at = self.next - self.partition.first
        messages = self.partition.messages[at : at + count]
        self.next += count
        self.transfer(self._with_metrics(messages) if self.has_metrics else messages)
        namespace.count("delivered", self.hub.name, self.partition.id, self.group, by=count)
        return True

    def _faulty(self, fault: Fault) -> None:
        match fault.do:
            case "cut":
                self.session.connection.abort()
            case "detach":
                self.detach(Refusal(condition=fault.condition or FORCED, description=fault.description))
            case "delay":
                self.is_delayed = True
                self.session.connection.wire.later(fault.delay_s, self._resume)

    def _resume(self) -> None:
        self.is_delayed = False
        self.wake()

    def _with_metrics(self, messages: list[bytes]) -> list[bytes]:
        partition = self.partition
        now_ms = self.session.connection.namespace.now_ms()
        end = runtime_metrics(partition.end - 1, partition.last_offset, partition.last_time_ms, now_ms)
        annotations = delivery_annotations(end)
        return [with_delivery_annotations(message, annotations) for message in messages]
