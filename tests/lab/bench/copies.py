"""From topic to topic on one platform: a backlog, and one event at a time until a reader of the platform's own has it."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from zlib import crc32

from observer import IDLE_S, WAIT_S, percentile
from sides import Job, Side, cpu_s
from workload import PARTITIONS, Cents, blocks, body_of

POLL_S = 0.02


class WrongOutput(Exception):
    """A side was fast, but not right."""


class Topics(ABC):
    """Topics, streams or logs of PARTITIONS partitions, and their events, as clients that are not ours have them."""

    def __init__(self) -> None:
        self._numbers = count()

    @abstractmethod
    def make(self, name: str) -> None: ...

    @abstractmethod
    def source(self, name: str) -> str:
        """As a side takes it."""

    @abstractmethod
    def delete(self, name: str) -> None: ...

    @abstractmethod
    def append(self, name: str, partition: int, bodies: Sequence[bytes]) -> None:
        """Stored when this returns."""

    @abstractmethod
    def count(self, name: str) -> int:
        """How many events readers could have."""

    @abstractmethod
    def read(self, name: str) -> Generator[bytes | None, None, None]:
        """From the beginning, and without an end. None: nothing came for a while."""

    @abstractmethod
    def size_of(self, name: str) -> int:
        """In bytes, as it is stored."""

    def write(self, name: str, events: int, seed: int) -> tuple[Cents, Counter[int]]:
        """What its events add up to, and their checksums."""
        self.make(name)
        sums, found = Cents(), Counter[int]()
        for number, bodies in enumerate(blocks(events, seed, sums)):
            found.update(map(crc32, bodies))
            self.append(name, number % PARTITIONS, bodies)
        return sums, found

    @contextmanager
    def target(self) -> Iterator[str]:
        name = f"target-{next(self._numbers)}"
        self.make(name)
        yield name
        self.delete(name)

    def wait(self, side: Side, name: str, events: int) -> float:
        """When (time.monotonic) readers could have so many."""
        until = time.monotonic() + WAIT_S
        while (found := self.count(name)) < events:
            if time.monotonic() > until:
                raise TimeoutError(f"'{name}' has {found} of {events} events after {WAIT_S} s")
            side.check()
            time.sleep(POLL_S)
        return time.monotonic()

    def check(self, name: str, expected: Counter[int]) -> None:
        """Raises WrongOutput."""
        found, until = Counter[int](), time.monotonic() + WAIT_S
        with closing(self.read(name)) as bodies:
            for body in bodies:
                if body is not None:
                    found[crc32(body)] += 1
                elif found.total() >= expected.total() or time.monotonic() > until:
                    break
        if found != expected:
            raise WrongOutput(
                f"'{name}': {(expected - found).total()} events are missing, {(found - expected).total()} too many"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """One repetition of one side. The rate in events a second, CPU time in microseconds an event.

    bytes, bytes_alone: an event in the target, of the backlog, and if it came alone.
    """

    warm: float
    warm_cpu_us: float
    broker_cpu_us: float
    latency_p50_ms: float
    latency_p99_ms: float
    bytes: float
    bytes_alone: float


class Copies:
    """sides: their programs. events, expected: of the backlog `warm`. broker: its process."""

    def __init__(
        self,
        topics: Topics,
        directory: Path,
        sides: Mapping[str, Sequence[str]],
        *,
        events: int,
        expected: Counter[int],
        probes: int,
        warm_probes: int,
        broker: int | None = None,
    ) -> None:
        self._topics = topics
        self._directory = directory
        self._sides = sides
        self._events = events
        self._expected = expected
        self._probes = probes
        self._warm_probes = warm_probes
        self._broker = broker
        self._numbers = count()

    def measured(self, name: str) -> Copied:
        with self._side(*self._sides[name]) as side:
            self._drained(side)
            warm, cpu_us, broker_cpu_us, size = self._drained(side)
            latencies_ms, alone = self._probed(side)
        return Copied(
            warm=warm,
            warm_cpu_us=cpu_us,
            broker_cpu_us=broker_cpu_us,
            latency_p50_ms=percentile(latencies_ms, 50),
            latency_p99_ms=percentile(latencies_ms, 99),
            bytes=size,
            bytes_alone=alone,
        )

    def p50_ms(self, *program: str) -> float:
        """Of another side, which only copies single events."""
        with self._side(*program) as side:
            return percentile(self._probed(side)[0], 50)

    def _side(self, program: str, *arguments: str) -> Side:
        return Side(program, self._directory / f"{program}.stderr", *arguments)

    def _drained(self, side: Side) -> tuple[float, float, float, float]:
        with self._topics.target() as target:
            before, started = self._cpu_s(side), time.monotonic()
            side.run(self._job("warm", target))
            ended = self._topics.wait(side, target, self._events)
            broker_s = self._cpu_s(side)[1] - before[1]
            side.stop()
            side_s = self._cpu_s(side)[0] - before[0]
            self._topics.check(target, self._expected)
            size = self._topics.size_of(target)
        rate = self._events / (ended - started)
        return rate, 1_000_000 * side_s / self._events, 1_000_000 * broker_s / self._events, size / self._events

    def _cpu_s(self, side: Side) -> tuple[float, float]:
        return cpu_s(side.pid), 0.0 if self._broker is None else cpu_s(self._broker)

    def _probed(self, side: Side) -> tuple[list[float], float]:
        """How long each event took in milliseconds, sorted, from just before it is sent until it is read; and its bytes."""
        source, rng, found = f"copied-{next(self._numbers)}", random.Random(1), []
        self._topics.make(source)
        with self._topics.target() as target, closing(self._topics.read(target)) as bodies:
            side.run(self._job(source, target))
            for number in range(self._warm_probes + self._probes):
                if number >= self._warm_probes:
                    time.sleep(IDLE_S * (0.5 + rng.random()))
                sent, body = time.monotonic(), body_of(number, "probe", number)
                self._topics.append(source, number % PARTITIONS, [body])
                _await(side, lambda: next(bodies), body)
                found.append(1000 * (time.monotonic() - sent))
            side.stop()
            size = self._topics.size_of(target)
        return sorted(found[self._warm_probes :]), size / (self._warm_probes + self._probes)

    def _job(self, source: str, target: str) -> Job:
        state = self._directory / f"state-{next(self._numbers)}"
        state.mkdir()
        return Job(self._topics.source(source), "", str(state), target)


def _await(side: Side, read: Callable[[], bytes | None], body: bytes) -> None:
    until = time.monotonic() + WAIT_S
    while read() != body:
        if time.monotonic() > until:
            raise TimeoutError(f"an event did not arrive within {WAIT_S} s")
        side.check()
