"""Pulsar's own client for Java reads exactly what the sink `pulsar` delivered."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest
from connectors.pulsar.owners import END, POINTS, writing
from connectors.pulsar.topics import Topics
from interop.conftest import FOLDER, tool
from maven import jars_of
from owners import finished, is_stopped
from patience import PATIENCE_S, until
from plugins_pulsar import PulsarMachine

PARTITIONS = ("0", "3")
"""Those that have an owner, of four."""


@pytest.fixture
def topics(pulsar_server: PulsarMachine) -> Iterator[Topics]:
    topics = Topics(pulsar_server)
    pulsar_server.make_topic(topics.name, 4)
    yield topics
    topics.close()


@pytest.fixture(scope="session")
def reader() -> list[str]:
    """The command line of the program in tests/interop/pulsar."""
    tool("javac", "a JDK 17")
    folder = FOLDER / "pulsar"
    return [tool("java", "Java 17"), "-cp", f"{jars_of(folder, 'Pulsar-client')}/*", str(folder / "TopicReader.java")]


def read(reader: list[str], topics: Topics) -> dict[str, list[int]]:
    """What Java's client finds, by partition, in its order."""
    line = [*reader, topics.machine.url, f"persistent://{topics.topic}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[int]] = {}
    for partition, body in map(str.split, done.stdout.splitlines()):
        found.setdefault(partition, []).append(int(body))
    return found


def write_through_kills(topics: Topics, partition: str) -> None:
    """Owners die at each step; one is frozen with its batch in hand, and goes on once its heir has written all."""
    for epoch, point in enumerate(POINTS, 1):
        at = 1 if point == "producer attached" else 2
        code, said = finished(writing(topics, epoch, f"{point}:{at}", partition=partition))
        assert code == -signal.SIGKILL, said
    late = writing(topics, len(POINTS) + 1, "before entry:1:SIGSTOP", partition=partition)
    try:
        until(lambda: is_stopped(late) or late.poll() is not None, "the owner is frozen")
        code, said = finished(writing(topics, len(POINTS) + 2, partition=partition))
        assert code == 0, said
        late.send_signal(signal.SIGCONT)
        code, said = finished(late)
        assert (code, "Fenced" in said) == (1, True), said
    finally:
        late.kill()


def test_javas_client_reads_each_event_once_whatever_step_owners_died_or_froze_at(
    reader: list[str], topics: Topics
) -> None:
    for partition in PARTITIONS:
        write_through_kills(topics, partition)
    assert read(reader, topics) == {partition: [*range(1, END + 1)] for partition in PARTITIONS}
