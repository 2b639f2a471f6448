"""docs/pulsar.md: its examples run as they are written, over a real broker, and docs/local.md's command starts one."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

import pulsar
import pytest
from connectors.pulsar.topics import Topics
from maven import jars_of
from pages import examples, lines_of
from patience import until
from plugins_cli import Commands
from plugins_pulsar import FOLDER, PulsarMachine

pytestmark = pytest.mark.xdist_group("pulsar")
"""One broker, instead of one for each process."""


class Orders:
    """The page's topics, under names of one test."""

    def __init__(self, machine: PulsarMachine, folder: Path) -> None:
        own = uuid.uuid4().hex[:8]
        self.page = examples("pulsar.md", folder)
        self.source, self.target = Topics(machine, f"orders-{own}"), Topics(machine, f"orders-eur-{own}")
        self.environment = {"PULSAR": machine.servers}
        for name in ("orders.yaml", "orders.py"):
            text = (folder / name).read_text()
            for old in ("orders-eur", "orders"):
                text = re.sub(rf"(topic(?:: |=\"){old})(?=[,\"}}])", rf"\1-{own}", text)
            (folder / name).write_text(text)
        for topics in (self.source, self.target):
            machine.make_topic(topics.name, 4)

    def sell(self, first: int) -> None:
        for number in range(first, first + 20):
            body = json.dumps({"order": str(number), "currency": "EUR" if number % 2 else "USD"}).encode()
            self.source.produce(str(number % 4), [body], partition_key=str(number % 5))

    def sold(self) -> list[int]:
        """In euros."""
        found = [message for partition in "0123" for message in self.target.messages(partition)]
        numbers = [int(json.loads(message.data())["order"]) for message in found]
        assert [message.partition_key() for message in found] == [str(number % 5) for number in numbers]
        return sorted(numbers)

    def close(self) -> None:
        self.source.close()
        self.target.close()


def test_orders_in_euros_reach_their_topic_once(
    pulsar_server: PulsarMachine, tmp_path: Path, leasehold: Commands
) -> None:
    orders = Orders(pulsar_server, tmp_path)
    [run] = lines_of(orders.page, "run --until-idle")
    orders.sell(0)
    for line in (*lines_of(orders.page, "check orders.yaml"), run):
        done = leasehold(*line.split()[1:], cwd=tmp_path, env=orders.environment)
        assert done.ended() == 0, done.out + done.err
    orders.sell(20)
    again = leasehold(*run.split()[1:], cwd=tmp_path, env=orders.environment)
    assert again.ended() == 0, again.out + again.err
    assert orders.sold() == list(range(1, 40, 2))
    orders.close()


def test_the_same_as_a_program_delivers_until_it_is_stopped(
    pulsar_server: PulsarMachine, tmp_path: Path, python: Commands
) -> None:
    orders = Orders(pulsar_server, tmp_path)
    orders.sell(0)
    program = python("orders.py", cwd=tmp_path, env=orders.environment)

    def are_sold() -> bool:
        assert program.process.poll() is None, program.out + program.err
        return len(orders.sold()) == 10

    until(are_sold, "orders are sold", lambda: program.err[-500:])
    program.interrupt()
    assert program.ended() == 0, program.err
    assert orders.sold() == list(range(1, 20, 2))
    orders.close()


def test_one_command_starts_a_broker_until_it_is_interrupted(python: Commands) -> None:
    """That of `make pulsar`."""
    jars_of(FOLDER, "Pulsar")
    tests = str(Path(__file__).parents[2])
    broker = python("-m", "lab.servers.pulsar", "--port", "0", env={"PYTHONPATH": tests})
    until(lambda: broker.found(r"serves at (.*?), ") or broker.process.poll() is not None, "the broker serves")
    client = pulsar.Client(f"pulsar://{broker.found(r'serves at (.*?), ')}")
    assert len(client.get_topic_partitions("orders")) == 4
    client.create_producer("orders").send(b"{}")
    client.close()
    broker.interrupt()
    assert broker.ended() == 0, broker.err


@pytest.mark.parametrize("file", ["secure.yaml", "backlog.yaml"])
def test_the_other_settings_are_right(tmp_path: Path, leasehold: Commands, file: str) -> None:
    examples("pulsar.md", tmp_path)
    done = leasehold("check", file, env={"PULSAR_TOKEN": "hunter2", "PULSAR": "127.0.0.1:6650"})
    assert done.ended() == 0, done.err
    assert "hunter2" not in done.out + done.err
