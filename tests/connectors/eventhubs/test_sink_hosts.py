"""Hosts that publish to a hub: files become events there once each, through crashes of links, hosts that follow each other, and
batches larger than a hub takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from connectors.eventhubs.feeds import events, feed
from patience import until_async
from plugins_eventhubs import EventHubs

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
from leasehold.pipeline.connectors.targets import target_of
from leasehold.pipeline.producer import decoded
from leasehold.service.config.load import parse
from leasehold.service.processor import ProcessorCore
from leasehold.service.wiring.build import pipelines_of

HUB, SOURCE = "transformed-event", "raw-event"
TIMING = Timing(balance_s=0.3, call_timeout_s=3.0)
SETTINGS = """
leases: {{type: sqlite, path: leases.db}}
pipelines:
  - name: generate
    feed: {{type: files, path: "numbers-*.jsonl"}}
    sink: {{type: eventhubs, connection_string: "{connection_string}", event_hub: {hub}, consumer_group: sinks,
           timeout_s: 1}}
"""


FROM_HUB_TO_HUB = """
leases: {{type: sqlite, path: leases.db}}
pipelines:
  - name: generate
    feed: {{type: files, path: "numbers-*.jsonl", key: name}}
    sink: {{type: eventhubs, connection_string: "{connection_string}", event_hub: {source}, consumer_group: sinks}}
  - name: copy
    feed: {{type: eventhubs, connection_string: "{connection_string}", event_hub: {source}, trusts_properties: true}}
    sink: {{type: eventhubs, connection_string: "{connection_string}", event_hub: {hub}, consumer_group: sinks}}
"""


async def run(eventhubs: EventHubs, folder: Path, host: str, text: str = SETTINGS) -> None:
    """Until all that is there has been published."""
    text = text.format(connection_string=eventhubs.connection_string, hub=HUB, source=SOURCE)
    settings = parse(text, {}, folder=folder, source="here")
    store = SqliteStore(folder / "leases.db")
    processor = ProcessorCore(pipelines_of(settings), store, host=host, timing=TIMING)
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


async def test_the_tail_in_the_lease_of_an_idle_host_follows_what_others_publish(
    eventhubs: EventHubs, tmp_path: Path
) -> None:
    write(tmp_path, "numbers-a.jsonl", range(3), 10)
    text = SETTINGS.format(connection_string=eventhubs.connection_string, hub=HUB)
    settings, store = parse(text, {}, folder=tmp_path, source="here"), SqliteStore(tmp_path / "leases.db")
    processor = ProcessorCore(pipelines_of(settings), store, host="first", timing=TIMING)
    target = target_of("numbers-a.jsonl", "0123", None)
    assert target is not None

    async def has_followed() -> bool:
        lease = (await processor.keeper.read("generate", "numbers-a.jsonl")).lease
        return bool(decoded(lease.sink_state).tail == eventhubs.control.partition(HUB, target).end - 1)

    await processor.start()
    try:
        await processor.idle()
        eventhubs.control.fill(HUB, target, 200_000, 20)
        await until_async(has_followed)
    finally:
        await processor.stop()


async def test_a_key_survives_from_hub_to_hub_if_the_feed_trusts_properties(
    eventhubs: EventHubs, tmp_path: Path
) -> None:
    lines = [json.dumps({"name": f"key {number % 3}", "number": number}) + "\n" for number in range(20)]
    (tmp_path / "numbers-a.jsonl").write_text("".join(lines))
    await run(eventhubs, tmp_path, "first", FROM_HUB_TO_HUB)
    target = target_of("numbers-a.jsonl", "0123", None)
    async with feed(eventhubs, HUB, limits=ReceiverLimits(trusts_properties=True)) as made:
        found = await events(made, 20, target)
    assert [(event["key"], json.loads(event["body"])["number"]) for event in found] == [
        (f"key {number % 3}", number) for number in range(20)
    ]
    assert {name for event in found for name, _ in event["properties"]} & {"leasehold-key", "leasehold-lease"} == {
        "leasehold-lease"
    }
