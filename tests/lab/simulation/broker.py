"""A broker in memory for the real LogOutputSink: idempotent publishing as Event Hubs does it, on a network that loses and delays.

What a producer may do is decided by the production code (leasehold.pipeline.connectors.log.producer_state), but for one thing: a
broker of the outside world takes a batch for a repeated one by its numbers alone, whatever its contents.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from lab.simulation.process import current, incarnation
from lab.simulation.weather import Request, Weather, host_of

from leasehold.pipeline.connectors.log import producer_state as lines
from leasehold.pipeline.connectors.log.partition_file import Encoded, LogError, LogUnavailable, LogUncertain, decoded
from leasehold.pipeline.connectors.log.producer_state import LeaseProducer, Producer
from leasehold.pipeline.connectors.log.sink import LogOutputSink
from leasehold.pipeline.markers import Marker

T = TypeVar("T")


class Told(Protocol):
    """Who is told of what happens (simulation.invariants.Onlooker)."""

    def fenced(self, partition: str, fence: tuple[int, ...]) -> None: ...
    def sends(self, by: str, partition: str, fence: tuple[int, ...], batch: object) -> None: ...
    def settled(self, by: str, partition: str, fence: tuple[int, ...]) -> None: ...
    def arrives(self, partition: str, generation: int, numbers: list[int]) -> None: ...


class Broker:
    """What all hosts publish to."""

    path = "simulated"

    def __init__(self, onlooker: Told, weather: Weather) -> None:
        self.lines: dict[str, LeaseProducer] = {}
        self.ends: dict[str, int] = {}
        self.onlooker = onlooker
        self.weather = weather

    def partition(self, name: str, *, new: bool = False) -> BrokerPartition:
        return BrokerPartition(self, name)

    def sink(self) -> LogOutputSink:
        """One host's way here."""
        sink = LogOutputSink(self.path)
        sink._log = self  # type: ignore[assignment]  # for what it uses of a Log
        sink._threads = Threads(self.weather)  # type: ignore[assignment]  # run by VirtualLoop.run_in_executor
        return sink


class BrokerPartition:
    """Implements what LogOutputSink uses of PartitionLog."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self._broker = broker
        self._weather = broker.weather

    def attach(self, producer: Producer) -> tuple[LeaseProducer, int]:
        return self._asked("attach", lambda: self._attached(producer), LogUnavailable)

    def line(self, lease: str) -> LeaseProducer | None:
        return self._asked("line", lambda: self._broker.lines.get(lease), LogUnavailable)

    def publish(self, producer: Producer, number: int, batch: Encoded, marker: Marker, send: Callable[[], None]) -> int:
        send()
        text = json.dumps(marker.properties())
        self._sent(producer, (number, batch.digest(text)))
        try:
            first = self._asked("publish", lambda: self._published(producer, number, batch, text), LogUncertain)
        except LogUncertain:
            raise
        except LogError:
            self._settled(producer)
            raise
        self._settled(producer)
        return first

    def end(self, producer: Producer, send: Callable[[], None]) -> None:
        send()
        self._asked("end", lambda: self._ended(producer), LogUnavailable)

    def _asked(self, operation: str, call: Callable[[], T], lost: type[LogError]) -> T:
        request = Request(host_of(current()), "sink", operation, self.name)
        fate = self._weather.fate(request)
        if fate.ends == "refused":
            raise LogUnavailable("out of reach")
        if fate.ends in ("late", "ghost"):
            if fate.ends == "late":
                self._weather.delay(request, fate, call)
            raise lost("no answer")
        self._weather.reaches(request)
        answer = call()
        if fate.ends == "lost":
            raise lost("no answer")
        return answer

    def _attached(self, producer: Producer) -> tuple[LeaseProducer, int]:
        line = lines.attached(self._broker.lines.get(producer.lease), producer)
        self._broker.lines[producer.lease] = line
        self._broker.onlooker.fenced(self.name, producer.rank)
        return line, self._broker.ends.get(self.name, 0)

    def _published(self, producer: Producer, number: int, batch: Encoded, text: str) -> int:
        line = lines.admitted(self._broker.lines.get(producer.lease), producer)
        if line.batch_number == number and line.batch_first is not None:
            return line.batch_first
        first = self._broker.ends.get(self.name, 0)
        self._broker.lines[producer.lease] = line.published(number, batch.events, first, batch.digest(text), text)
        self._broker.ends[self.name] = first + batch.events
        self._broker.onlooker.fenced(self.name, producer.rank)
        self._broker.onlooker.arrives(self.name, producer.generation, numbers_in(decoded(batch.body)))
        return first

    def _ended(self, producer: Producer) -> None:
        line = lines.admitted(self._broker.lines.get(producer.lease), producer)
        self._broker.lines[producer.lease] = line.closed()

    def _sent(self, producer: Producer, batch: object) -> None:
        self._broker.onlooker.sends(incarnation(), self.name, producer.rank, batch)

    def _settled(self, producer: Producer) -> None:
        self._broker.onlooker.settled(incarnation(), self.name, producer.rank)


class Threads:
    """A process's threads: a call takes its time before it is made, and nobody can take it back by then."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather

    def called(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """What waits for the answer may be cancelled, and the call is made all the same."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        loop.create_task(self._made(call)).add_done_callback(partial(_give, answer))
        return answer

    async def _made(self, call: Callable[[], Any]) -> Any:
        fate = self._weather.fate(Request(host_of(current()), "sink", "thread"))
        await asyncio.sleep(fate.late_s)
        return call()

    def shutdown(self, *, wait: bool) -> None:
        """What is under way ends by itself."""


def numbers_in(table: pa.Table) -> list[int]:
    """The numbers that events bear as their bodies."""
    return [int(body) for body in table["body"].to_pylist()]


def _give(answer: asyncio.Future[Any], task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if answer.done():
        return
    if task.cancelled():
        answer.cancel()
    elif error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())
