"""Hosts that publish to a hub: files become events there once each, through crashes of links, hosts that follow each other, and
batches larger than a hub takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leases.stores.sqlite import SqliteStore
from leases.timing import Timing
from service.config import parse
from service.processor import Processor
from service.wiring import pipelines_of
from tests.plugins_eventhubs import EventHubs

HUB = "transformed-event"
TIMING = Timing(duration_s=3.0, renew_s=0.8, balance_s=0.3, call_timeout_s=0.5, margin_s=0.3)
SETTINGS = """
leases: {{type: sqlite, path: leases.db}}
pipelines:
  - name: generate
    feed: {{type: files, path: "numbers-*.jsonl"}}
    sink: {{type: eventhubs, connection_string: "{connection_string}", event_hub: {hub}, timeout_s: 1}}
"""


async def run(eventhubs: EventHubs, folder: Path, host: str) -> None:
    """Until all that is there has been published."""
    text = SETTINGS.format(connection_string=eventhubs.connection_string, hub=HUB)
    settings = parse(text, {}, folder=folder, source="here")
    store = SqliteStore(folder / "leases.db")
    processor = Processor(pipelines_of(settings), store, host=host, timing=TIMING)
    await processor.start()
    try:
        await processor.idle()
    finally:
        await processor.stop()


def write(folder: Path, name: str, numbers: range, size: int) -> None:
    with (folder / name).open("a") as file:
        file.writelines(json.dumps({"number": number, "pad": "x" * size}) + "\n" for number in numbers)


def published(eventhubs: EventHubs) -> list[list[int]]:
    """The numbers of each source, as its events lie in the hub."""
    events = [each for name in "0123" for each in eventhubs.control.events(HUB, name)]
    sources = sorted({each.properties["leasehold-lease"] for each in events})
    return [
        [json.loads(each.body)["number"] for each in events if each.properties["leasehold-lease"] == source]
        for source in sources
    ]


@pytest.mark.parametrize("fault", ["none", "cut", "cut_after", "lose_ack", "throttle", "detach_after"])
async def test_every_record_of_every_file_is_published_once(eventhubs: EventHubs, tmp_path: Path, fault: str) -> None:
    """Two and a half batches' worth for each file, some of it while batches are lost, and the rest by another host."""
    files = {f"numbers-{name}.jsonl": 1500 for name in "ab"}
    for name, count in files.items():
        write(tmp_path, name, range(count), 500)
    if fault != "none":
        eventhubs.control.fault(fault, of="send", after=1, times=4)
    await run(eventhubs, tmp_path, "first")
    assert published(eventhubs) == [list(range(count)) for count in files.values()]
    for name, count in files.items():
        write(tmp_path, name, range(count, count + 3), 10)
    await run(eventhubs, tmp_path, "second")
    assert published(eventhubs) == [list(range(count + 3)) for count in files.values()]
    assert eventhubs.control.count("batches", hub=HUB) >= 6
