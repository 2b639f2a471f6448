"""A hub's events into a log by the command line: checked, run, counted."""

from __future__ import annotations

from pathlib import Path

from connectors.eventhubs.clients import HUB
from plugins_cli import Command
from plugins_eventhubs import EventHubs

from leasehold.pipeline.connectors.log import LogFeed

SETTINGS = """
leases: {type: sqlite, path: leases.db}
api: {enabled: false}
pipelines:
  - name: copy
    feed: {type: eventhubs, connection_string: "${HUBS}", event_hub: raw-event}
    sink: {type: log, path: out}
"""
OTHERS = """
  - name: other
    feed: {type: eventhubs, connection_string: "${HUBS}", event_hub: elsewhere}
    sink: {type: log, path: other}
"""


def leasehold(eventhubs: EventHubs, folder: Path, *arguments: str, more: str = "") -> tuple[int, str]:
    """Exit code and all that was said. more: pipelines."""
    (folder / "bank.yaml").write_text(SETTINGS + more)
    command = Command(*arguments, "bank.yaml", cwd=folder, env={"HUBS": eventhubs.connection_string})
    code = command.ended()
    assert eventhubs.key not in command.out + command.err
    return code, command.out + command.err


async def copied(folder: Path) -> list[str]:
    feed = LogFeed(folder / "out")
    found = []
    for partition in await feed.partitions():
        pages = feed.open(partition.name, None)
        left = await feed.lag(partition.name, None)
        while left:
            bodies = (await anext(pages)).events["body"].to_pylist()
            found += [body.decode() for body in bodies]
            left -= len(bodies)
        await pages.aclose()
    await feed.close()
    return sorted(found)


async def test_until_idle_and_lag(eventhubs: EventHubs, tmp_path: Path) -> None:
    for partition in "012":
        eventhubs.control.append(HUB, partition, [f"{partition}-{n}" for n in range(100)])
    code, said = leasehold(eventhubs, tmp_path, "run", "--until-idle")
    assert code == 0, said
    made = [f"{partition}-{n}" for partition in "012" for n in range(100)]
    assert await copied(tmp_path) == sorted(made)
    eventhubs.control.append(HUB, "3", ["3-0", "3-1"])
    code, said = leasehold(eventhubs, tmp_path, "lag")
    assert code == 0, said
    assert [line.split()[1] for line in said.splitlines() if line.split()[:1] == ["all"]] == ["2"], said
    code, said = leasehold(eventhubs, tmp_path, "run", "--until-idle")
    assert code == 0, said
    assert await copied(tmp_path) == sorted([*made, "3-0", "3-1"])


def test_check_tells_which_hub_is_there_and_which_is_not(eventhubs: EventHubs, tmp_path: Path) -> None:
    code, said = leasehold(eventhubs, tmp_path, "check", "--probe", more=OTHERS)
    assert code == 2
    host = f"{eventhubs.host}:{eventhubs.port}"
    assert f"copy: feed: fine, 4 partitions now (eventhubs:{host}/raw-event)" in said
    assert f"other: feed: FAILED: event hub {host}/elsewhere" in said
    assert "check the name of the hub" in said


def test_check_tells_that_a_consumer_group_is_not_there(eventhubs: EventHubs, tmp_path: Path) -> None:
    more = """
  - name: other
    feed: {type: eventhubs, connection_string: "${HUBS}", event_hub: raw-event, consumer_group: nobody}
    sink: {type: eventhubs, connection_string: "${HUBS}", event_hub: transformed-event, consumer_group: none}
"""
    code, said = leasehold(eventhubs, tmp_path, "check", "--probe", more=more)
    assert code == 2
    for part, group in (("feed", "nobody"), ("sink", "none")):
        [line] = [line for line in said.splitlines() if line.startswith(f"other: {part}: FAILED")]
        assert f"consumer group '{group}'" in line
        assert "check the name of the hub and of the consumer group" in line
