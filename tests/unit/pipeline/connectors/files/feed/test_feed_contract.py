"""The feed contract over CSV and over JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from leasehold.pipeline.connectors.files.feed import FilesChangeFeed
from leasehold.pipeline.connectors.files.feed.reader import Reading
from leasehold.pipeline.contract import ChangeFeedContract, FeedHarness
from leasehold.pipeline.ranges import RangeReader


class CsvHarness(FeedHarness):
    partitions = ("a.csv", "below/a.csv")
    events_max = 8
    bytes_max = 4096

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for partition in self.partitions:
            (directory / partition).parent.mkdir(exist_ok=True)
            (directory / partition).write_bytes(b"\xef\xbb\xbfnumber,text\r\n")
        self.feed = FilesChangeFeed(
            f"{directory}/**/*.csv",
            poll_interval_s=0.005,
            reading=Reading(page_events_max=self.events_max, page_bytes_max=self.bytes_max),
        )

    async def append(self, partition: str, bodies: Sequence[bytes]) -> None:
        with (self.directory / partition).open("a", newline="") as file:
            csv.writer(file).writerows(json.loads(body).values() for body in bodies)

    async def make_other_reader(self, partition: str, bodies: Sequence[bytes]) -> RangeReader:
        (self.directory / "other").mkdir()
        other = CsvHarness(self.directory / "other")
        await other.append(partition, bodies)
        await other.feed.close()
        return other.feed.range_reader()


class JsonHarness(FeedHarness):
    partitions = ("a", "b")
    events_max = 8
    bytes_max = 4096

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for partition in self.partitions:
            (directory / partition).touch()
        self.feed = FilesChangeFeed(
            f"{directory}/?",
            format="jsonl",
            poll_interval_s=0.005,
            reading=Reading(page_events_max=self.events_max, page_bytes_max=self.bytes_max),
        )

    async def append(self, partition: str, bodies: Sequence[bytes]) -> None:
        with (self.directory / partition).open("ab") as file:
            file.writelines(body + b"\n" for body in bodies)

    async def make_other_reader(self, partition: str, bodies: Sequence[bytes]) -> RangeReader:
        (self.directory / "other").mkdir()
        other = JsonHarness(self.directory / "other")
        await other.append(partition, bodies)
        await other.feed.close()
        return other.feed.range_reader()


class TestCsvFiles(ChangeFeedContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[FeedHarness]:
        harness = CsvHarness(tmp_path)
        yield harness
        await harness.feed.close()


class TestJsonLinesFiles(ChangeFeedContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[FeedHarness]:
        harness = JsonHarness(tmp_path)
        yield harness
        await harness.feed.close()
