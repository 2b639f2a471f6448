"""Events that cannot be read: a reader yields what precedes them, and then names the reset that continues behind them."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess, KafkaCluster
from leasehold.pipeline.connectors.kafka.position import Position
from leasehold.pipeline.connectors.kafka.reader import TIME_MS_MAX, PartitionReader, ReadingLimits
from leasehold.pipeline.errors import MalformedRecord


class Message:
    """An event of the client. has_unreadable_headers: the first call fails, and another one would end the process."""

    def __init__(
        self, offset: int, *, key: bytes | None = None, time: int = 0, has_unreadable_headers: bool = False
    ) -> None:
        self._offset, self._key, self._time = offset, key, time
        self._has_unreadable_headers = has_unreadable_headers
        self.calls = 0

    def headers(self) -> list[tuple[str, bytes]]:
        self.calls += 1
        if self._has_unreadable_headers:
            raise SystemError("returned a result with an exception set")
        return [("name", b"value")]

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes:
        return b"%d" % self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._time

    def error(self) -> None:
        return None


class Consumer:
    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    def assign(self, places: object) -> None: ...

    def poll(self, wait_s: float) -> Message | None:
        return self._messages.pop(0) if self._messages else None

    def consume(self, most: int, wait_s: float) -> list[Message]:
        taken, self._messages = self._messages[:most], self._messages[most:]
        return taken


UNFIT = [
    ({"has_unreadable_headers": True}, "has a header whose name is not UTF-8 text"),
    ({"key": b"\xff"}, "has a key that is not UTF-8 text .*`keys: base64`"),
    ({"time": TIME_MS_MAX + 1}, "has a time after the year 9999"),
    ({"time": 2**63 - 1}, "has a time after the year 9999"),
]


@pytest.mark.parametrize(("unfit", "why"), UNFIT)
@pytest.mark.parametrize("before", [0, 1, 2, 5])
def test_an_event_that_cannot_be_read_stops_behind_what_precedes_it(
    unfit: dict[str, Any], why: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = Message(before, **unfit)
    messages = [*map(Message, range(before)), last, Message(before + 1)]
    monkeypatch.setattr(KafkaCluster, "make_consumer", lambda *_, **__: Consumer(messages))
    cluster = KafkaCluster(KafkaAccess(servers="127.0.0.1:9092"), timeout_s=1.0)
    reader = PartitionReader(cluster, "group", "orders", 0, Position(0, "id"), ReadingLimits())
    bodies: list[bytes] = []

    def read_all() -> None:
        while (page := reader.read()) is not None:
            bodies.extend(page.events["body"].to_pylist())

    with pytest.raises(
        MalformedRecord, match=rf"event at offset {before} {why}.*reset the lease to '{before + 1}@id'$"
    ):
        read_all()
    assert bodies == [b"%d" % number for number in range(before)]
    assert last.calls == 1 or "has_unreadable_headers" not in unfit


def test_the_latest_time_that_can_be_read_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaCluster, "make_consumer", lambda *_, **__: Consumer([Message(0, time=TIME_MS_MAX)]))
    cluster = KafkaCluster(KafkaAccess(servers="127.0.0.1:9092"), timeout_s=1.0)
    page = PartitionReader(cluster, "group", "orders", 0, Position(0), ReadingLimits()).read()
    assert page is not None
    assert page.events["enqueued_time"][0].as_py().isoformat() == "9999-12-31T23:59:59.999000+00:00"
