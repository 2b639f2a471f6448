"""Dead letters in files, as the streams of a feed. A partition has two: what a pipeline wrote, and what its replays wrote.

Each stream has a manifest of its own. A letter's number is made of its manifest's entry and its row in the entry's file.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from itertools import accumulate
from typing import NamedTuple, TypeVar

import pyarrow as pa

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.connectors.files.sink.entry import DataFile, folders_of
from leasehold.pipeline.connectors.files.sink.formats import decoded
from leasehold.pipeline.connectors.files.sink.manifest import head_of
from leasehold.pipeline.connectors.files.sink.snapshot import Snapshot, snapshot_of
from leasehold.pipeline.connectors.files.sink.storage import FilesError, Storage
from leasehold.pipeline.dead_letters.merged_feed import NONE_READ, LetterStretch
from leasehold.pipeline.dead_letters.record import LEASE, kept_events, letter_in
from leasehold.pipeline.errors import FeedUnavailable
from leasehold.pipeline.limits import JSON_LEVELS_MAX, REPLAY

T = TypeVar("T")
STREAMS = ("own", "replay")
ROWS_MAX = 2**32
THREADS = 2
SOMETHING_ELSE = "one of their files holds something else: give them a place of their own"


class _Counted(NamedTuple):
    """before: how many letters the stream has before this file."""

    file: DataFile
    before: int


class FileLetters:
    """Implements leasehold.pipeline.dead_letters.merged_feed.LetterStreams over the files of one pipeline's letters. It closes
    the place.

    As events, letters of the pipeline have even sequences, and letters of its replays odd ones. People look for them by these.
    """

    def __init__(self, place: Storage, pipeline: str) -> None:
        self._place = place
        self._leases = dict(zip(STREAMS, (pipeline + LEASE, pipeline + REPLAY + LEASE), strict=True))
        self._pipeline = pipeline
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="file-letters")

    @property
    def identity(self) -> str:
        return f"{self._place.identity} dead letters of {self._pipeline}"

    async def list_partitions(self) -> Sequence[str]:
        found = [await self._snapshot(lease) for lease in self._leases.values()]
        return list({each.partition for snapshot in found for each in snapshot.partitions})

    async def list_streams(self, partition: str) -> Sequence[str]:
        return STREAMS

    async def find_end(self, partition: str, stream: str) -> int:
        folders = folders_of(self._leases[stream], partition)
        head = await self._call(lambda: head_of(self._place, folders))
        return NONE_READ if head is None else _letter_number(head.version + 1, 0) - 1

    async def count(self, partition: str, stream: str, behind: int) -> int:
        snapshot = await self._snapshot(self._leases[stream], partition)
        return sum(each.file.rows - _read_of(each.file, behind) for each in _counted(snapshot.files))

    async def read(self, partition: str, stream: str, behind: int, end: int) -> AsyncGenerator[LetterStretch, None]:
        """Yield letters file by file. Earlier files are not read, but the manifest is."""
        snapshot = await self._snapshot(self._leases[stream], partition)
        for each in _counted(snapshot.files):
            skipped = _read_of(each.file, behind)
            if skipped < each.file.rows and _letter_number(each.file.version, 0) <= end:
                events = await self._events(snapshot, each, stream)
                numbers = range(
                    _letter_number(each.file.version, skipped), _letter_number(each.file.version, each.file.rows)
                )
                yield LetterStretch(numbers, events.slice(skipped))

    async def close(self) -> None:
        await self._call(self._place.close)
        self._threads.shutdown(wait=False)

    async def _snapshot(self, lease: str, partition: str | None = None) -> Snapshot:
        return await self._call(lambda: snapshot_of(self._place, pipeline=lease, partition=partition))

    async def _events(self, snapshot: Snapshot, counted: _Counted, stream: str) -> pa.Table:
        [partition] = snapshot.partitions
        alone = Snapshot(self._place, (replace(partition, files=(counted.file,)),))
        [(file, content)] = await self._call(lambda: list(alone.contents()))
        letters = await self._call(lambda: list(_letters(content, file.format)))
        first, step = counted.before * len(STREAMS) + STREAMS.index(stream), len(STREAMS)
        rows = ((first + n * step, *letter) for n, letter in enumerate(letters))
        return kept_events(partition.partition, rows)

    async def _call(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except FilesError as error:
            raise FeedUnavailable(f"dead letters: {error}") from error


def _letter_number(version: int, row: int) -> int:
    return version * ROWS_MAX + row


def _read_of(file: DataFile, behind: int) -> int:
    """How many of a file's letters have numbers up to `behind`."""
    return min(file.rows, max(0, behind + 1 - _letter_number(file.version, 0)))


def _counted(files: Sequence[DataFile]) -> list[_Counted]:
    before = accumulate((file.rows for file in files), initial=0)
    return [_Counted(file, count) for file, count in zip(files, before, strict=False)]


def _letters(content: bytes, format: str) -> Iterable[tuple[datetime, bytes | None, str]]:
    """For each letter: when it failed, its body and its envelope. Raises FilesError."""
    for body, envelope in _lines(content) if format == "jsonl" else _rows(content):
        letter = letter_in(body, envelope)
        if letter is None:
            raise FilesError(SOMETHING_ELSE)
        yield datetime.fromisoformat(letter.failed_at), letter.body, envelope


def _rows(content: bytes) -> Iterable[tuple[bytes | None, str]]:
    table = decoded(content, "parquet")
    return zip(table["body"].to_pylist(), table["envelope"].to_pylist(), strict=True)


def _lines(content: bytes) -> Iterable[tuple[bytes | None, str]]:
    """The rows of JSON lines of any length, which Arrow's reader does not take."""
    for line in content.splitlines():
        try:
            row = parsed_json(line, JSON_LEVELS_MAX)
            yield None if row["body"] is None else base64.b64decode(row["body"]), row["envelope"]
        except (ValueError, KeyError, TypeError):
            raise FilesError(SOMETHING_ELSE) from None
