"""Kafka, Pulsar, NATS and the embedded log beside one another: a topic copied exactly once, without a transform.

Prints, and writes build/bench/platforms.json, from one run: the rate of a backlog, with the CPU time of the host and of the
broker; the time from just before a single event is sent until a reader of the target has it, a client that is not ours; and what
an event takes on disk. Each repetition has a fresh broker, one at a time, in the order of the table. Brokers are single and
small, as the tests have them; the observer that counts events costs some of their time. Figures are medians of the repetitions.
Exit code 1 where something is lost or doubled. Needs Maven once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import nats
import psutil
import pulsar
import pytest
from copies import Copied, Copies, Topics
from kafka_topics import KafkaTopics
from nats.aio.msg import Msg
from plugins_kafka import kafka_machines
from plugins_nats import NatsMachine, nats_machine
from plugins_pulsar import PulsarMachine, pulsar_machine
from results import Figure, finish, say
from workload import PARTITIONS

from leasehold.pipeline.connectors.log import append
from leasehold.pipeline.connectors.log.store import Log

T = TypeVar("T")
WHILE_S = 0.5
"""Without an event, until a reader says that nothing came."""
LOOK_S = 0.001
SWITCHES = ("allow_atomic", "allow_rollup_hdrs", "allow_msg_ttl")


class PulsarTopics(Topics):
    def __init__(self, machine: PulsarMachine) -> None:
        super().__init__()
        self._machine = machine
        self._client = pulsar.Client(machine.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
        self._producers: dict[str, pulsar.Producer] = {}

    def make(self, name: str) -> None:
        self._machine.make_topic(name, PARTITIONS)

    def source(self, name: str) -> str:
        return f"{self._machine.servers}/{name}"

    def delete(self, name: str) -> None:
        self._machine.admin("DELETE", f"persistent/public/default/{name}/partitions?force=true")

    def append(self, name: str, partition: int, bodies: Sequence[bytes]) -> None:
        topic = f"{name}-partition-{partition}"
        if topic not in self._producers:
            self._producers[topic] = self._client.create_producer(
                topic, batching_enabled=True, batching_max_messages=1000, block_if_queue_full=True
            )
        for body in bodies:
            self._producers[topic].send_async(body, None)
        self._producers[topic].flush()

    def count(self, name: str) -> int:
        return int(self._stats(name)["msgInCounter"])

    def read(self, name: str) -> Generator[bytes | None, None, None]:
        consumer = self._client.subscribe(
            name, f"reader-{next(self._numbers)}", initial_position=pulsar.InitialPosition.Earliest
        )
        try:
            while True:
                try:
                    yield consumer.receive(int(WHILE_S * 1000)).data()
                except pulsar.Timeout:
                    yield None
        finally:
            consumer.close()

    def size_of(self, name: str) -> int:
        return int(self._stats(name)["storageSize"])

    def _stats(self, name: str) -> dict[str, Any]:
        return dict(self._machine.admin("GET", f"persistent/public/default/{name}/partitioned-stats"))


class NatsTopics(Topics):
    """Streams, by nats-py on a loop that always runs."""

    def __init__(self, machine: NatsMachine) -> None:
        super().__init__()
        self._machine = machine
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._client = self._run(nats.connect(machine.url))
        self._stream = self._client.jetstream()

    def make(self, name: str) -> None:
        own = {"name": name, "subjects": [f"{name}.>"], "retention": "limits", "storage": "file", "num_replicas": 1}
        self._ask(f"STREAM.CREATE.{name}", **own, **dict.fromkeys(SWITCHES, True))

    def source(self, name: str) -> str:
        return f"{self._machine.servers}/{name}"

    def delete(self, name: str) -> None:
        self._ask(f"STREAM.DELETE.{name}")

    def append(self, name: str, partition: int, bodies: Sequence[bytes]) -> None:
        """The server answers to the last one, so that it is not flooded."""

        async def publish() -> None:
            for body in bodies[:-1]:
                await self._client.publish(f"{name}.{partition}", body)
            await self._stream.publish(f"{name}.{partition}", bodies[-1])

        self._run(publish())

    def count(self, name: str) -> int:
        found = self._ask(f"STREAM.INFO.{name}", subjects_filter=f"{name}.*")["state"].get("subjects") or {}
        return sum(found.values())

    def read(self, name: str) -> Generator[bytes | None, None, None]:
        came = queue.SimpleQueue[bytes]()

        async def note(message: Msg) -> None:
            came.put(message.data)

        reading = self._stream.subscribe(f"{name}.*", stream=name, cb=note, ordered_consumer=True)
        subscription = self._run(reading)
        try:
            while True:
                try:
                    yield came.get(timeout=WHILE_S)
                except queue.Empty:
                    yield None
        finally:
            self._run(subscription.unsubscribe())

    def size_of(self, name: str) -> int:
        return int(self._ask(f"STREAM.INFO.{name}")["state"]["bytes"])

    def _ask(self, call: str, **what: object) -> dict[str, Any]:
        answer = self._run(self._client.request(f"$JS.API.{call}", json.dumps(what).encode() if what else b""))
        found: dict[str, Any] = json.loads(answer.data)
        if "error" in found:
            raise RuntimeError(f"{call}: {found['error']}")
        return found

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class Logs(Topics):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def make(self, name: str) -> None:
        log = Log(self._directory / name)
        log.prepare()
        for partition in range(PARTITIONS):
            log.partition(str(partition), new=True)

    def source(self, name: str) -> str:
        return str(self._directory / name)

    def delete(self, name: str) -> None:
        shutil.rmtree(self._directory / name)

    def append(self, name: str, partition: int, bodies: Sequence[bytes]) -> None:
        append(self._directory / name, str(partition), bodies)

    def count(self, name: str) -> int:
        log = Log(self._directory / name)
        try:
            return sum(log.partition(each).extent().end for each in log.partitions())
        finally:
            log.close()

    def read(self, name: str) -> Generator[bytes | None, None, None]:
        log, begins = Log(self._directory / name), [0] * PARTITIONS
        try:
            looked = time.monotonic()
            while True:
                for number, begin in enumerate(begins):
                    _, blocks = log.partition(str(number)).read(begin, events_max=10_000, bytes_max=1 << 22)
                    for block in blocks:
                        yield from block.events["body"].to_pylist()[max(0, begin - block.first) :]
                        begins[number], looked = block.first + block.events.num_rows, time.monotonic()
                if time.monotonic() - looked > WHILE_S:
                    yield None
                    looked = time.monotonic()
                time.sleep(LOOK_S)
        finally:
            log.close()

    def size_of(self, name: str) -> int:
        return sum(file.stat().st_size for file in (self._directory / name).iterdir())


@contextmanager
def served(platform: str, directory: Path) -> Iterator[Topics]:
    """By a new broker."""
    if platform == "kafka":
        with kafka_machines() as [kafka]:
            yield KafkaTopics(kafka)
    elif platform == "pulsar":
        with pulsar_machine(brokerDeduplicationEntriesInterval="1000") as machine:  # as it is by default
            yield PulsarTopics(machine)
    elif platform == "nats":
        with nats_machine() as server:
            yield NatsTopics(server)
    else:
        yield Logs(directory)


TITLES = {"kafka": "Kafka", "pulsar": "Pulsar", "nats": "NATS", "log": "the log"}


def measured(platform: str, directory: Path, *, events: int, probes: int, warm_probes: int) -> tuple[Copied, float]:
    """With the bytes of an event as a foreign client has stored it."""
    directory.mkdir()
    before = {each.pid for each in psutil.Process().children()}
    with served(platform, directory) as topics:
        brokers = [each.pid for each in psutil.Process().children() if each.pid not in before]
        _, expected = topics.write("warm", events, seed=2)
        copies = Copies(
            topics,
            directory,
            {platform: ("platform_sides.py", platform)},
            events=events,
            expected=expected,
            probes=probes,
            warm_probes=warm_probes,
            broker=brokers[0] if brokers else None,
        )
        return copies.measured(platform), topics.size_of("warm") / events


def figures(results: Mapping[str, list[tuple[Copied, float]]]) -> Iterator[Figure]:
    for platform, found in results.items():

        def median(what: str, found: list[tuple[Copied, float]] = found) -> float:
            return statistics.median(getattr(one, what) for one, _ in found)

        title, broker = TITLES[platform], {"broker": median("broker_cpu_us")} if platform != "log" else {}
        cpu_us = {"leasehold": median("warm_cpu_us"), **broker}
        foreign = {"its source": statistics.median(size for _, size in found)}
        yield Figure(name=f"{title} to {title}, exactly once", unit="events/s", ours=median("warm"), cpu_us=cpu_us)
        for percent in ("p50", "p99"):
            latency_ms = median(f"latency_{percent}_ms")
            yield Figure(name=f"{title} to {title}, one event, {percent}", unit="ms", ours=latency_ms, is_most=True)
        size = Figure(name=f"{title}, an event of the backlog", unit="bytes", ours=median("bytes"), others=foreign)
        yield size
        yield Figure(name=f"{title}, an event alone", unit="bytes", ours=median("bytes_alone"), others=foreign)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kafka, Pulsar, NATS and the embedded log beside one another.")
    parser.add_argument("--events", type=int, default=400_000, help="of the backlog (%(default)s)")
    parser.add_argument("--probes", type=int, default=120, help="single events a repetition (%(default)s)")
    parser.add_argument("--warm-probes", type=int, default=200, help="sent before, without a pause (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="of each platform (%(default)s)")
    settings = vars(parser.parse_args())
    sizes = {name: settings[name] for name in ("events", "probes", "warm_probes")}
    results: dict[str, list[tuple[Copied, float]]] = {name: [] for name in TITLES}
    directory = Path(tempfile.mkdtemp(prefix="leasehold-bench-"))
    try:
        for repetition in range(1, settings["repetitions"] + 1):
            for platform, found in results.items():
                found.append(measured(platform, directory / f"{platform}-{repetition}", **sizes))
                values = asdict(found[-1][0]).values()
                say(f"{repetition}. {platform:8}" + "".join(f"{value:>14,.1f}" for value in values))
    except pytest.skip.Exception as missing:
        raise SystemExit(str(missing)) from None
    shutil.rmtree(directory, ignore_errors=True)
    detail = {name: [asdict(one) for one, _ in found] for name, found in results.items()}
    return finish("platforms", list(figures(results)), settings=settings, repetitions=detail)


if __name__ == "__main__":
    sys.exit(main())
