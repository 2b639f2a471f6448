"""A Kafka topic in memory for the real KafkaOutputSink: transactions and fencing, on a network that loses and delays.

Claims, transactions and what errors mean are the production code's; the broker and the client's calls are a model:

- A producer that is initialized ends what an earlier one of its transactional id has open, and fences it.
- A transaction that lasts too long is aborted, and its producer is fenced.
- A commit is answered before offsets show it. Who asks for stable offsets waits for that.
- A request that arrives late belongs to its transaction: it changes no later one of its producer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from lab.simulation.broker import Threads
from lab.simulation.process import current, incarnation
from lab.simulation.weather import Request, host_of

from leasehold.pipeline.connectors.kafka import cluster as clients
from leasehold.pipeline.connectors.kafka import sink as sinks
from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess, KafkaCluster, Topic
from leasehold.pipeline.connectors.kafka.sink import KafkaOutputSink
from leasehold.pipeline.connectors.kafka.transactions import Transactions

if TYPE_CHECKING:
    from lab.simulation.world import World

T = TypeVar("T")
NAME = "simulated"
ACCESS = KafkaAccess(servers="simulated:9092")
PARTITIONS = 3
CODES = {
    "fenced": KafkaError._FENCED,
    "unanswered": KafkaError._TIMED_OUT,
    "failed": KafkaError._FAIL,
    "wrong state": KafkaError.INVALID_TXN_STATE,
}


Number = tuple[int, int]
"""Of a transaction: the epoch of its producer, and which one it is of that."""


def failure(what: str, **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(CODES[what], f"simulated: {what}", **flags))


@dataclass(slots=True, eq=False)
class Transaction:
    """offsets: those that are not shown yet. is_committed: None while it is open."""

    number: Number
    began: float
    numbers: list[int] = field(default_factory=list)
    offsets: dict[str, str] = field(default_factory=dict)
    is_committed: bool | None = None


@dataclass(slots=True)
class Line:
    """What the brokers know of a transactional id. last: its newest transaction; no earlier one is open."""

    epoch: int = -1
    timeout_s: float = 0.0
    last: Transaction = field(default_factory=lambda: Transaction((-1, 0), 0.0, is_committed=False))


class Stored(NamedTuple):
    """by: None for what was not sent in a transaction."""

    value: bytes | None
    by: Transaction | None


class KafkaTopic:
    """The brokers, and the network before them. now: seconds. fenced, arrives: as the onlooker's, for each commit."""

    def __init__(self, partitions: int, now: Callable[[], float] = time.monotonic) -> None:
        self.logs: dict[int, list[Stored]] = {number: [] for number in range(partitions)}
        self.lock = RLock()
        self._now = now
        self._lines: dict[str, Line] = {}
        self._offsets: dict[str, str] = {}

    def asked(self, operation: str, id: str, call: Callable[[], T]) -> T:
        with self.lock:
            self._expire()
            return call()

    def sink(self, **settings: Any) -> KafkaOutputSink:
        """One host's way here, within `clients_of`."""
        sink = KafkaOutputSink(ACCESS, NAME, **settings)
        sink._cluster = _Cluster(self)
        return sink

    # What is told of a send and of its end

    def sends(self, producer: Producer) -> None: ...

    def settled(self, producer: Producer) -> None: ...

    def committed(self, id: str, held: Mapping[str, Any], numbers: list[int]) -> None: ...

    # Requests of producers

    def initialized(self, id: str, timeout_s: float) -> int:
        line = self._lines.setdefault(id, Line())
        self._end(id, line.last, is_committed=False)
        self._show(line.last)  # a client waits for that
        line.epoch, line.timeout_s = line.epoch + 1, timeout_s
        return line.epoch

    def append(self, id: str, number: Number, values: Sequence[tuple[int, bytes | None]]) -> None:
        transaction = self._open(id, number)
        for partition, value in values:
            self.logs[partition].append(Stored(value, transaction))
            transaction.numbers.append(_number(value))

    def add_offset(self, id: str, number: Number, group: str, metadata: str) -> None:
        self._open(id, number).offsets[group] = metadata

    def end(self, id: str, number: Number, *, is_committed: bool) -> None:
        """Again, too: the answer may have been lost. Nothing, if nothing of the transaction has arrived."""
        last = self._known(id, number[0]).last
        if last.number == number:
            self._end(id, last, is_committed=is_committed)
            if last.is_committed is not is_committed:
                raise failure("wrong state", fatal=True)
        elif last.number > number:
            raise failure("wrong state", fatal=True)

    def _known(self, id: str, epoch: int) -> Line:
        line = self._lines[id]
        if epoch != line.epoch:
            raise failure("fenced", fatal=True)
        return line

    def _open(self, id: str, number: Number) -> Transaction:
        line = self._known(id, number[0])
        if number > line.last.number:
            self._show(line.last)  # a client waits for that
            line.last = Transaction(number, self._now())
        if number < line.last.number or line.last.is_committed is not None:
            raise failure("wrong state", fatal=True)
        return line.last

    def _end(self, id: str, transaction: Transaction, *, is_committed: bool) -> None:
        if transaction.is_committed is not None:
            return
        transaction.is_committed = is_committed
        if is_committed:
            for metadata in transaction.offsets.values():
                self.committed(id, json.loads(metadata), transaction.numbers)

    def _show(self, transaction: Transaction) -> None:
        if transaction.is_committed:
            self._offsets |= transaction.offsets
            transaction.offsets = {}

    def _expire(self) -> None:
        for line in self._lines.values():
            if line.last.is_committed is None and self._now() - line.last.began > line.timeout_s:
                line.last.is_committed = False
                line.epoch += 1

    # Requests of readers

    def offset_of(self, group: str, *, is_stable: bool) -> str | None:
        """The metadata. is_stable: wait for commits that are not shown yet, and fail while a transaction is open."""
        for line in self._lines.values() if is_stable else ():
            if group in line.last.offsets and line.last.is_committed is None:
                raise failure("unanswered", retriable=True)
            self._show(line.last)
        return self._offsets.get(group)

    def read_committed(self, partition: int) -> list[bytes | None]:
        """Up to the first event of a transaction that is open."""
        found = []
        for value, by in self.logs[partition]:
            if by is not None and by.is_committed is None:
                break
            if by is None or by.is_committed:
                found.append(value)
        return found


def _number(value: bytes | None) -> int:
    with suppress(ValueError):
        return int(value or b"")
    return -1


class Producer:
    """What Transactions uses of confluent_kafka.Producer."""

    def __init__(self, topic: KafkaTopic, settings: Mapping[str, Any]) -> None:
        self.id: str = settings["transactional.id"]
        self.number = (-1, 0)
        self.partition = partition_of(self.id)
        self.held: Mapping[str, Any] = {}
        self.is_claiming = True
        self._topic = topic
        self._timeout_s = settings.get("transaction.timeout.ms", 60_000) / 1000
        self._queued: list[tuple[int, bytes | None]] = []
        self._failed: KafkaException | None = None

    def __len__(self) -> int:
        return len(self._queued)

    def init_transactions(self, timeout_s: float) -> None:
        self.number = self._asked("attach", lambda: self._topic.initialized(self.id, self._timeout_s)), 0

    def begin_transaction(self) -> None:
        self._check()
        self.number = self.number[0], self.number[1] + 1

    def produce(self, topic: str, value: bytes | None, partition: int, **_: object) -> None:
        self._queued.append((partition, value))

    def poll(self, timeout_s: float) -> None: ...

    def flush(self, timeout_s: float) -> int:
        """What is not delivered makes the transaction fail, as the client's next call shows."""
        queued, self._queued = self._queued, []
        number = self.number
        try:
            self._asked("publish", lambda: self._topic.append(self.id, number, queued))
        except KafkaException as error:
            self._failed = error if error.args[0].fatal() else failure("failed", txn_requires_abort=True)
        return 0

    def send_offsets_to_transaction(self, places: Sequence[TopicPartition], group: str, timeout_s: float) -> None:
        self._check()
        [place] = places
        number, metadata = self.number, place.metadata or ""
        self.held = json.loads(metadata)
        self._asked("publish", lambda: self._topic.add_offset(self.id, number, group, metadata))

    def commit_transaction(self, timeout_s: float) -> None:
        self._check()
        self._topic.sends(self)
        self._end(is_committed=True)
        self.is_claiming = False

    def abort_transaction(self, timeout_s: float) -> None:
        self._queued = []
        self._end(is_committed=False)
        self._failed = None

    def _end(self, *, is_committed: bool) -> None:
        number = self.number
        self._asked("publish", lambda: self._topic.end(self.id, number, is_committed=is_committed))
        self._topic.settled(self)

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _asked(self, operation: str, call: Callable[[], T]) -> T:
        try:
            return self._topic.asked(operation, self.partition, call)
        except KafkaException as error:
            if error.args[0].fatal():
                self._failed = error
            raise


class Consumer:
    """What `find_committed` uses of confluent_kafka.Consumer. A group is named by its text."""

    def __init__(self, topic: KafkaTopic, settings: Mapping[str, Any]) -> None:
        self._topic = topic
        self._group: str = settings["group.id"]
        self._is_stable = settings["isolation.level"] == "read_committed"

    def committed(self, places: Sequence[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        [place] = places
        partition = partition_of(self._group)
        ask = partial(self._topic.offset_of, self._group, is_stable=self._is_stable)
        found = self._topic.asked("standing", partition, ask)
        return [TopicPartition(place.topic, place.partition, -1001 if found is None else 0, found or "")]

    def consumer_group_metadata(self) -> str:
        return self._group

    def close(self) -> None: ...


class _Cluster(KafkaCluster):
    def __init__(self, topic: KafkaTopic) -> None:
        super().__init__(ACCESS, timeout_s=20.0)
        self._topic = topic

    async def describe(self, name: str) -> Topic:
        return await self.run(lambda: self._topic.asked("describe", "", lambda: Topic("id", len(self._topic.logs))))

    async def find_message_bytes_max(self, topic: str) -> int | None:
        return None


class WeatheredTopic(KafkaTopic):
    """That of a simulated world: its weather is the network, and its onlooker sees what is sent and arrives."""

    def __init__(self, world: World) -> None:
        super().__init__(PARTITIONS, asyncio.get_running_loop().time)
        self._world = world

    def sink(self, **settings: Any) -> KafkaOutputSink:
        sink = super().sink(transaction_timeout_s=self._world.timing.patience_s, **settings)
        sink._cluster._threads = Threads(self._world.weather)  # type: ignore[assignment]  # run by VirtualLoop.run_in_executor
        return sink

    def asked(self, operation: str, id: str, call: Callable[[], T]) -> T:
        weather, request = self._world.weather, Request(host_of(current()), "sink", operation, id)
        fate, ask = weather.fate(request), super().asked

        def arrives() -> None:
            with suppress(KafkaException):
                ask(operation, id, call)

        if fate.ends == "late":
            weather.delay(request, fate, arrives)
        if fate.ends in ("refused", "late", "ghost"):
            raise failure("unanswered", retriable=True)
        weather.reaches(request)
        answer = ask(operation, id, call)
        if fate.ends == "lost":
            raise failure("unanswered", retriable=True)
        return answer

    def sends(self, producer: Producer) -> None:
        if not producer.is_claiming:
            fence, batch = (producer.held["epoch"],), (producer.number, producer.held["position"])
            self._world.onlooker.sends(incarnation(), producer.partition, fence, batch)

    def settled(self, producer: Producer) -> None:
        if producer.held:
            self._world.onlooker.settled(incarnation(), producer.partition, (producer.held["epoch"],))

    def committed(self, id: str, held: Mapping[str, Any], numbers: list[int]) -> None:
        partition = partition_of(id)
        self._world.onlooker.fenced(partition, (held["epoch"],))
        if numbers:
            self._world.onlooker.arrives(partition, held["generation"], numbers)


class _VirtualTransactions(Transactions):
    def __init__(self, cluster: KafkaCluster, *parts: Any, **settings: Any) -> None:
        super().__init__(cluster, *parts, **settings)
        self._thread = cluster._threads

    def leave(self) -> None:
        """Nothing is held."""

    def _add_position(self, producer: Any, metadata: str, group: bytes) -> None:
        producer.send_offsets_to_transaction(
            [TopicPartition(self._topic, 0, 0, metadata)], group, self._cluster.timeout_s
        )


def partition_of(id: str) -> str:
    """Of a lease, by its transactional id or its group."""
    return unquote(id.rpartition("/")[2])


@contextmanager
def on_virtual_time(topic: KafkaTopic) -> Iterator[None]:
    """As `clients_of`, and no threads are started."""
    module: Any = sinks
    module.Transactions = _VirtualTransactions
    try:
        with clients_of(topic):
            yield
    finally:
        module.Transactions = Transactions


@contextmanager
def clients_of(topic: KafkaTopic) -> Iterator[None]:
    """The connector's clients are the topic's."""
    module: Any = clients
    kept = module.Producer, module.Consumer
    module.Producer, module.Consumer = partial(Producer, topic), partial(Consumer, topic)
    try:
        yield
    finally:
        module.Producer, module.Consumer = kept
