"""docs/kafka.md: its examples run as they are written, over a real broker, and docs/local.md's command starts one."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from connectors.kafka.topics import Topics, committed
from maven import jars_of
from pages import examples, lines_of
from patience import PATIENCE_S, until, until_async
from plugins_cli import Commands
from plugins_kafka import FOLDER

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""


class Orders:
    """The page's topics, under names of one test."""

    def __init__(self, topics: Topics, folder: Path) -> None:
        own = uuid.uuid4().hex[:8]
        self.page = examples("kafka.md", folder)
        self.source = replace(topics, name=f"orders-{own}")
        self.target = replace(topics, name=f"orders-eur-{own}")
        self.environment = {"KAFKA": topics.machine.servers}
        for name in ("orders.yaml", "orders.py"):
            text = (folder / name).read_text()
            for old in ("orders-eur", "orders"):
                text = re.sub(rf"(topic(?:: |=\"){old})(?=[,\"}}])", rf"\1-{own}", text)
            (folder / name).write_text(text)
        topics.machine.make_topic(self.source.name, 4)

    def sell(self, first: int) -> None:
        for number in range(first, first + 20):
            body = json.dumps({"order": str(number), "currency": "EUR" if number % 2 else "USD"}).encode()
            self.source.produce(number % 4, [body], key=str(number % 5))

    async def sold(self) -> list[int]:
        """In euros."""
        found = [record for partition in range(4) for record in await committed(self.target, partition)]
        numbers = [int(json.loads(record.value or b"")["order"]) for record in found]
        assert all(record.key == str(number % 5).encode() for record, number in zip(found, numbers, strict=True))
        return sorted(numbers)


async def test_orders_in_euros_reach_their_topic_once(topics: Topics, tmp_path: Path, leasehold: Commands) -> None:
    orders = Orders(topics, tmp_path)
    [run] = lines_of(orders.page, "run --until-idle")
    orders.sell(0)
    for line in (*lines_of(orders.page, "check orders.yaml"), run):
        done = leasehold(*line.split()[1:], cwd=tmp_path, env=orders.environment)
        assert done.ended() == 0, done.out + done.err
    orders.sell(20)
    again = leasehold(*run.split()[1:], cwd=tmp_path, env=orders.environment)
    assert again.ended() == 0, again.out + again.err
    assert await orders.sold() == list(range(1, 40, 2))


async def test_the_same_as_a_program_delivers_until_it_is_stopped(
    topics: Topics, tmp_path: Path, python: Commands
) -> None:
    orders = Orders(topics, tmp_path)
    orders.sell(0)
    program = python("orders.py", cwd=tmp_path, env=orders.environment)
    client = topics.machine.admin()

    async def are_sold() -> bool:
        assert program.process.poll() is None, program.out + program.err
        is_there = orders.target.name in client.list_topics(timeout=PATIENCE_S).topics
        return is_there and len(await orders.sold()) == 10

    await until_async(are_sold, "orders are sold", lambda: program.err[-500:])
    program.interrupt()
    assert program.ended() == 0, program.err
    assert await orders.sold() == list(range(1, 20, 2))


def test_one_command_starts_a_broker_until_it_is_interrupted(python: Commands) -> None:
    """That of `make kafka`."""
    jars_of(FOLDER, "Kafka")
    tests = str(Path(__file__).parents[2])
    broker = python("-m", "lab.servers.kafka", "--port", "0", env={"PYTHONPATH": tests})
    until(lambda: broker.found(r"serves at (.*)\. ") or broker.process.poll() is not None, "the broker serves")
    servers = broker.found(r"serves at (.*)\. ")
    producer = Producer({"bootstrap.servers": servers})
    producer.produce("orders", b"{}")
    assert producer.flush(PATIENCE_S) == 0
    broker.interrupt()
    assert broker.ended() == 0, broker.err


@pytest.mark.parametrize("file", ["hubs.yaml", "lag.yaml"])
def test_the_other_settings_are_right(tmp_path: Path, leasehold: Commands, file: str) -> None:
    examples("kafka.md", tmp_path)
    done = leasehold("check", file, env={"HUBS": "Endpoint=sb://secret", "KAFKA": "127.0.0.1:9092"})
    assert done.ended() == 0, done.err
    assert "sb://secret" not in done.out + done.err
