"""The log as a streaming source for Spark, as well as Spark's Python sources can do it.

Arrow batches straight from the log's blocks, with only the column that is asked for; one Spark partition for each of the log's
that has something new; offsets bounded by rows, so that a backlog is taken in micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from leasehold.pipeline.connectors.log.store import Log

PAGE_EVENTS, PAGE_BYTES = 10_000, 4 << 20


@dataclass
class Range(InputPartition):
    """The events first <= sequence < end of one partition."""

    path: str
    partition: str
    first: int
    end: int


class LogSource(DataSource):
    """Options: path, and rows_max of one micro-batch."""

    @classmethod
    def name(cls) -> str:
        return "log"

    def schema(self) -> str:
        return "body BINARY"

    def streamReader(self, schema: Any) -> LogStreamReader:  # noqa: N802  # Spark's name
        return LogStreamReader(self.options["path"], int(self.options["rows_max"]))


class LogStreamReader(DataSourceStreamReader):
    """An offset is, for each partition, the sequence of the event to come."""

    def __init__(self, path: str, rows_max: int) -> None:
        self._path = path
        self._rows_max = rows_max
        self._log: Log | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None}  # connections stay in their process

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return dict.fromkeys(Log(self._path).partitions(), 0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._rows_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        self._log = self._log or Log(self._path)
        share = limit.max_rows // len(start) if isinstance(limit, ReadMaxRows) else 1 << 62
        return {name: min(first + share, self._log.partition(name).extent().end) for name, first in start.items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Range]:
        return [Range(self._path, name, first, end[name]) for name, first in start.items() if first < end[name]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        log, first = Log(partition.path).partition(partition.partition), partition.first
        try:
            while first < partition.end:
                _, blocks = log.read(first, events_max=PAGE_EVENTS, bytes_max=PAGE_BYTES)
                events = pa.concat_tables([block.events.select(["body"]) for block in blocks])
                wanted = events.slice(first - blocks[0].first, partition.end - first).combine_chunks()
                yield from wanted.to_batches()
                first += wanted.num_rows
        finally:
            log.close()
