"""`batch_events_max` is a maximum: batches are cut inside the pages of feeds, which hold up to 10,000 events."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from unit.pipeline.bounds import BATCH_EVENTS_MAX, batch_sizes

from leasehold.pipeline.connectors.files.feed import FilesFeed
from leasehold.pipeline.connectors.files.feed.position import Fingerprint
from leasehold.pipeline.connectors.log import LogFeed
from leasehold.pipeline.connectors.log.partition_file import BLOCK_SCHEMA
from leasehold.pipeline.connectors.log.store import Log
from leasehold.pipeline.connectors.memory import MemoryFeed

EVENTS = 12_345


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
async def test_batches_of_files_hold_at_most_so_many_events(tmp_path: Path, name: str) -> None:
    lines = [json.dumps({"n": n}) if name == "a.jsonl" else str(n) for n in range(EVENTS)]
    header = [] if name == "a.jsonl" else ["n"]
    (tmp_path / name).write_text("\n".join([*header, *lines, ""]))
    feed = FilesFeed(str(tmp_path / name))
    [partition] = await feed.partitions()
    sizes = await batch_sizes(feed, partition.name, EVENTS)
    assert max(sizes) == BATCH_EVENTS_MAX
    await feed.close()


async def test_a_page_of_a_file_is_fingerprinted_once_however_often_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once more for the page's own end."""
    file = tmp_path / "a.jsonl"
    file.write_text("{}\n" * EVENTS)
    counted = []
    extended = Fingerprint.extended

    def counting(self: Fingerprint, data: bytes) -> Fingerprint:
        counted.append(len(data))
        return extended(self, data)

    monkeypatch.setattr(Fingerprint, "extended", counting)
    feed = FilesFeed(str(file))
    [partition] = await feed.partitions()
    await batch_sizes(feed, partition.name, EVENTS)
    assert sum(counted) < 2.1 * file.stat().st_size
    await feed.close()


async def test_batches_of_a_log_hold_at_most_so_many_events(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([{"body": b"x"}] * EVENTS, schema=BLOCK_SCHEMA)
    with closing(Log(tmp_path)) as log:
        log.prepare()
        log.partition("0", new=True).append(rows)
    feed = LogFeed(tmp_path)
    assert max(await batch_sizes(feed, "0", EVENTS)) == BATCH_EVENTS_MAX
    await feed.close()


async def test_batches_of_the_memory_feed_hold_at_most_so_many_events() -> None:
    feed = MemoryFeed("a")
    feed.append("a", [b"x"] * EVENTS)
    assert max(await batch_sizes(feed, "a", EVENTS)) == BATCH_EVENTS_MAX
