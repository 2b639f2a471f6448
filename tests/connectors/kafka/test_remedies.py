"""Whatever feed and sink `kafka` refuse for good: what the error says makes the pipeline continue, on a real broker."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from connectors.kafka.topics import Topics, committed
from patience import PATIENCE_S
from plugins_cli import Commands

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""

COPY = """
api: {{port: 0}}
pipelines:
  - name: copy
    feed: {{type: kafka, servers: "{servers}", topic: {source}}}
    sink: {{type: kafka, servers: "{servers}", topic: {target}}}
"""


class Copy:
    """One partition, copied to another topic by hosts of the command line. 0 and 1 are copied, 2 and 3 are not."""

    def __init__(self, topics: Topics, folder: Path, leasehold: Commands) -> None:
        self.source, self.target = (replace(topics, name=f"{topics.name}-{each}") for each in ("source", "target"))
        self.group = f"leasehold.{self.target.name}/copy/0"
        self.client = topics.machine.admin()
        self._leasehold = leasehold
        names = {"servers": topics.machine.servers, "source": self.source.name, "target": self.target.name}
        (folder / "copy.yaml").write_text(COPY.format(**names))
        for each in (self.source, self.target):
            each.machine.make_topic(each.name, 1)
        self.source.produce(0, [b"0", b"1"])
        self.runs()
        self.source.produce(0, [b"2", b"3"])

    def runs(self) -> None:
        code, said = self.ran("run", "--until-idle", "copy.yaml")
        assert code == 0, said

    def is_refused(self) -> str:
        code, said = self.ran("run", "--until-idle", "copy.yaml")
        assert code == 1, said
        return said

    def obey(self, said: str, choice: int) -> None:
        """Run one of the commands that it names."""
        commands = list(dict.fromkeys(re.findall(r"`leasehold (leases reset [^`]*)`", said)))
        code, said = self.ran(*shlex.split(commands[choice].replace("FILE", "copy.yaml").replace("PIPELINE", "copy")))
        assert code == 0, said

    def ran(self, *line: str) -> tuple[int, str]:
        done = self._leasehold(*line)
        return done.ended(), done.out + done.err

    async def delivered(self) -> list[int]:
        return [int(record.value or b"") for record in await committed(self.target)]

    def create_again(self, topics: Topics) -> None:
        topics.machine.delete_topic(topics.name)
        topics.machine.make_topic(topics.name, 1)

    def delete_group(self) -> None:
        self.client.delete_consumer_groups([self.group])[self.group].result(PATIENCE_S)


@pytest.fixture
def copy(topics: Topics, tmp_path: Path, leasehold: Commands) -> Copy:
    return Copy(topics, tmp_path, leasehold)


def retain_one(copy: Copy) -> None:
    place = TopicPartition(copy.source.name, 0, 3)
    copy.client.delete_records([place])[TopicPartition(copy.source.name, 0)].result(PATIENCE_S)


def create_source_again(copy: Copy) -> None:
    copy.create_again(copy.source)
    copy.source.produce(0, [b"4"])


def create_target_again(copy: Copy) -> None:
    copy.create_again(copy.target)


def forget_position(copy: Copy) -> None:
    """As the brokers do after `offsets.retention.minutes`."""
    copy.delete_group()


@pytest.mark.parametrize(
    ("harm", "choice", "delivered"),
    [
        (retain_one, 0, [0, 1, 3]),
        (create_source_again, 0, [0, 1, 4]),
        (create_source_again, 1, [0, 1]),
        (create_target_again, 1, [0, 1, 2, 3]),
        (forget_position, 0, [0, 1, 2, 3]),
    ],
)
async def test_each_command_that_a_refusal_names_makes_the_pipeline_continue(
    copy: Copy, harm: Callable[[Copy], None], choice: int, delivered: list[int]
) -> None:
    harm(copy)
    copy.obey(copy.is_refused(), choice)
    copy.source.produce(0, [b"9"])
    copy.runs()
    assert await copy.delivered() == [*delivered, 9]


async def test_a_group_that_another_program_used_has_to_be_deleted(copy: Copy) -> None:
    """A reset is refused, too, and would not help."""
    place = TopicPartition(copy.target.name, 0, 7, "theirs")
    written = copy.client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(copy.group, [place])])
    written[copy.group].result(PATIENCE_S)
    _, reset = copy.ran("leases", "reset", "copy.yaml", "copy", "0", "--to", "earliest", "--yes")
    for refusal in (copy.is_refused(), reset):
        assert re.search(rf"group '{copy.group}'.*delete the group", refusal), refusal
    copy.delete_group()
    copy.obey(copy.is_refused(), 0)
    copy.runs()
    assert await copy.delivered() == [0, 1, 2, 3]
