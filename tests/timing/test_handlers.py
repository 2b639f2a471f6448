"""How much faster one partition gets if a handler of 100 ms is called for many keys side by side."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from leasehold import Context, Event, FilesFeed, Pipeline, Processor, SqliteLeases

CALL_S = 0.1
KEYS, MAX = 1000, 64
SERIAL_EVENTS, EVENTS = 30, 3200
FASTER_MIN = 57.0


def written(folder: Path, events: int) -> Path:
    folder.mkdir()
    lines = (json.dumps({"customer": number % KEYS}) for number in range(events))
    (folder / "orders.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


async def rate(folder: Path, is_async: bool, parallel: dict[str, object] | None) -> float:
    """Events a second, from the first call to the end of the last one."""
    times: list[float] = []

    async def process_timed(changes: list[Event], context: Context) -> None:
        for _ in changes:
            times.append(time.monotonic())
            await asyncio.sleep(CALL_S)
            times.append(time.monotonic())

    def process_timed_in_a_thread(changes: list[Event], context: Context) -> None:
        for _ in changes:
            times.append(time.monotonic())
            time.sleep(CALL_S)
            times.append(time.monotonic())

    handler = process_timed if is_async else process_timed_in_a_thread
    feed = FilesFeed(path=str(folder / "*.jsonl"), key="customer")
    pipeline = Pipeline("orders", feed=feed, handler=handler, parallel=parallel)
    async with Processor(pipeline, leases=SqliteLeases(path=folder / "leases.db")) as processor:
        assert not (await processor.idle()).failed
    return len(times) / 2 / (max(times) - min(times))


@pytest.mark.parametrize("is_async", [True, False], ids=["async def", "plain function"])
async def test_64_calls_at_a_time_get_57_times_as_much_done_as_one_after_the_other(
    is_async: bool, tmp_path: Path
) -> None:
    serial = await rate(written(tmp_path / "serial", SERIAL_EVENTS), is_async, None)
    side_by_side = await rate(written(tmp_path / "parallel", EVENTS), is_async, {"key": "key", "max": MAX})
    assert side_by_side / serial >= FASTER_MIN, (side_by_side, serial)
