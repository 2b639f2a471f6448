"""docs/sinks.md: its destination is short and holds the contract, its settings load, and its picture is what the limiter does."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import yaml

from leasehold.pipeline.async_sink import AsyncSink, Converted, Limits
from leasehold.pipeline.async_sink.request_scheduler import RequestScheduler
from leasehold.pipeline.contract import Row, SinkContract, SinkHarness
from leasehold.pipeline.errors import SinkRejected
from leasehold.service.config.custom import CustomSink

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "sinks.md").read_text()
EXAMPLE = re.findall(r"<!-- example: redis_sink.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)[0]


def module_of(name: str, path: Path) -> Any:
    spec = util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Redis:
    """As much of it as the example asks for. loading: how many of the next commands find it still loading."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.loading = 3
        self.refuses = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while header := await reader.readline():
            parts = [await self._part(reader) for _ in range(int(header[1:]))]
            self.loading -= 1
            if self.loading >= 0:
                writer.write(b"-LOADING Redis is loading the dataset in memory\r\n")
            elif self.refuses:
                writer.write(b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n")
            else:
                self.values[parts[1].decode()] = json.loads(parts[2])
                writer.write(b"+OK\r\n")
        writer.close()

    async def _part(self, reader: asyncio.StreamReader) -> bytes:
        size = int((await reader.readline())[1:])
        return (await reader.readexactly(size + 2))[:-2]


class RedisHarness(SinkHarness):
    def __init__(self, example: Any, redis: Redis, port: int) -> None:
        self.partitions = ("a", "b")
        self.example, self.redis, self.port = example, redis, port

    async def sink(self) -> AsyncSink:
        sink: AsyncSink = self.example.sink(port=self.port)
        await sink.prepare()
        return sink

    async def rows(self, partition: str) -> list[Row]:
        values = [value for value in self.redis.values.values() if value["partition"] == partition]
        return [Row(value["sequence"]) for value in sorted(values, key=lambda value: int(value["sequence"]))]


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[RedisHarness]:
    (tmp_path / "redis_sink.py").write_text(EXAMPLE)
    redis = Redis()
    server = await asyncio.start_server(redis.serve, "127.0.0.1", 0)
    async with server:
        yield RedisHarness(
            module_of("redis_sink", tmp_path / "redis_sink.py"), redis, server.sockets[0].getsockname()[1]
        )
    await asyncio.sleep(0)


class TestTheDestinationOfThePage(SinkContract):
    @pytest.fixture
    def harness(self, harness: RedisHarness) -> RedisHarness:
        return harness


async def test_what_it_refuses_stops_the_partition(harness: RedisHarness) -> None:
    harness.redis.refuses = True
    suite = TestTheDestinationOfThePage()
    with pytest.raises(SinkRejected, match="Redis refuses suite/a/1/0: -WRONGTYPE"):
        await suite.test_output_arrives_in_order_and_moves_the_position(harness)


async def test_the_fuse_of_the_page_stops_for_a_minute(tmp_path: Path) -> None:
    [text] = re.findall(r"<!-- example: fuse.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "fuse.py").write_text(text)
    desk = RequestScheduler(Limits(batch_entries_max=100), None, limiter=module_of("fuse", tmp_path / "fuse.py").Fuse())
    for number in range(100):
        desk.take(Converted(value=number, bytes=1), str(number), 0.0)
    request = desk.next(0.0)
    assert len(request.entries) == 50
    assert desk.due_in_s(0.0) is None  # no more than 50 at a time
    desk.failed(request, 1.0, retry_after_s=None, jitter=0.0)
    assert desk.due_in_s(1.0) == 60.0
    assert (desk.limit, desk.queued_again, desk.throttled) == (50, 50, 1)


def test_a_destination_takes_less_than_sixty_lines() -> None:
    assert len(EXAMPLE.splitlines()) < 60


def test_its_settings_are_those_of_a_sink_to_import() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    settings = CustomSink(**yaml.safe_load(example)["pipelines"][0]["sink"])
    assert (settings.type, settings.options) == ("redis_sink:sink", {"host": "10.0.0.5"})


def test_the_picture_shows_what_the_limiter_does_now() -> None:
    """If the limiter was changed on purpose: python docs/rate_limiter.py."""
    script = module_of("rate_limiter", DOCS / "rate_limiter.py")
    looks = script.simulated()
    assert script.FILE.read_text() == script.drawn(looks)
    full = script.LIMITS.in_flight_entries_max
    limits = {name: [look.limit for look in looks if start < look.at < end] for name, start, end in BETWEEN}
    assert set(limits["well"]) == {full}
    assert max(limits["takes less"]) < full / 2
    assert max(limits["throttled"]) < full / 4
    assert set(limits["items fail"]) == {full}  # each for a reason of its own: sending less would not help
    assert min(limits["half stalls"]) < full
    assert set(limits["dead"]) == {1}
    ten_s_later = [look for look in looks if look.at > script.PHASES[-1].start + 10]
    assert {look.limit for look in ten_s_later} == {full}
    rates = [look.rate for look in ten_s_later]
    assert sum(rates) / len(rates) >= 0.9 * full / script.TAKES_S


BETWEEN = (
    ("well", 1, 10),
    ("takes less", 12, 30),
    ("throttled", 32, 45),
    ("items fail", 55, 62),
    ("half stalls", 62, 75),
    ("dead", 80, 135),
)
