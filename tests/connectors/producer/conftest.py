"""One suite, two brokers: Event Hubs on the wire server, and the embedded log. Each can be told to fail in the same ways."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from plugins_eventhubs import EventHubs

from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.broker import EventHubsBroker
from leasehold.pipeline.connectors.log.broker import LogBroker
from leasehold.pipeline.connectors.log.partition_file import Encoded, LogUnavailable, LogUncertain, ProducerEnded
from leasehold.pipeline.connectors.log.store import Log, PartitionLog
from leasehold.pipeline.producer import Broker, IdempotentProducer, RetryPolicy

HUB = "raw-event"
SLOW_S = 2.0
"""So long that a test on a busy machine does meanwhile what it has to do."""
QUICK = RetryPolicy(retries_max=2, delay_s=0.01, try_timeout_s=20)


class Place(Protocol):
    """A broker that can be told what becomes of the next batches:

    before: nothing is stored, and the link breaks. after: it is stored, and the link breaks. busy: refused for now.
    fatal: refused for good. slow: stored, and answered late.
    """

    def broker(self) -> Broker: ...

    def fault(self, do: str, times: int = 1) -> None: ...

    def heal(self) -> None: ...

    def bodies(self, partition: str) -> list[str]: ...


ORDERS: dict[str, dict[str, Any]] = {
    "before": {"do": "cut"},
    "after": {"do": "cut_after"},
    "busy": {"do": "throttle"},
    "fatal": {"do": "refuse", "condition": "com.microsoft:entity-disabled"},
    "slow": {"do": "late_ack", "delay_s": SLOW_S},
}


class Hub:
    def __init__(self, eventhubs: EventHubs) -> None:
        self.eventhubs = eventhubs

    def broker(self) -> Broker:
        account = account_of(connection_string=self.eventhubs.connection_string, event_hub=HUB)
        return EventHubsBroker(account)

    def fault(self, do: str, times: int = 1) -> None:
        self.eventhubs.control.fault(of="send", times=times, **ORDERS[do])

    def heal(self) -> None:
        self.eventhubs.control.heal()

    def bodies(self, partition: str) -> list[str]:
        return self.eventhubs.control.bodies(HUB, partition)


class EmbeddedLog:
    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self._faults: list[str] = []
        self._fault = ""
        self._never = threading.Event()
        stored, commit = PartitionLog._store, PartitionLog._commit

        def storing(
            log: PartitionLog, connection: sqlite3.Connection, batch: Encoded, checked: bytes, marker: str | None
        ) -> int:
            self._fault = self._faults.pop(0) if self._faults else ""
            if self._fault == "before":
                raise LogUncertain("the commit failed (disk I/O error)")
            if self._fault == "busy":
                raise LogUnavailable("the file is locked: wait")
            if self._fault == "fatal":
                raise ProducerEnded("nothing more is taken")
            return stored(log, connection, batch, checked, marker)

        def committing(log: PartitionLog, connection: sqlite3.Connection) -> None:
            commit(log, connection)
            fault, self._fault = self._fault, ""
            if fault == "slow":
                self._never.wait(SLOW_S)
            if fault == "after":
                raise LogUncertain("the commit failed (disk I/O error)")

        monkeypatch.setattr(PartitionLog, "_store", storing)
        monkeypatch.setattr(PartitionLog, "_commit", committing)

    def broker(self) -> Broker:
        return LogBroker(self.path)

    def fault(self, do: str, times: int = 1) -> None:
        self._faults += [do] * times

    def heal(self) -> None:
        self._faults.clear()

    def bodies(self, partition: str) -> list[str]:
        log = Log(self.path)
        try:
            if partition not in log.partitions():
                return []
            extent = log.partition(partition).extent()
            blocks = log.partition(partition).read(extent.first, events_max=10**9, bytes_max=10**12)[1]
            return [body.decode() for block in blocks for body in block.events["body"].to_pylist()]
        finally:
            log.close()


@pytest.fixture(params=["eventhubs", "log"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "log":
        return EmbeddedLog(tmp_path / "log", monkeypatch)
    return Hub(request.getfixturevalue("eventhubs"))


@pytest.fixture
def hub(eventhubs: EventHubs) -> Hub:
    return Hub(eventhubs)


@pytest.fixture
async def producer(place: Place) -> AsyncIterator[Callable[..., IdempotentProducer]]:
    """Makes producers, each with a broker of its own, closed at the end."""
    made: list[IdempotentProducer] = []

    def make(**options: Any) -> IdempotentProducer:
        made.append(IdempotentProducer(place.broker(), **{"retry": QUICK} | options))
        return made[-1]

    yield make
    for each in made:
        await each.close()
