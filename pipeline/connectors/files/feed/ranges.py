"""Ranges of files, as executors read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from leasehold.pipeline.connectors.files.feed.reader import FileReader, Reading
from leasehold.pipeline.ranges import EventRange, RangeReader


@dataclass(frozen=True, slots=True)
class FilesRanges(RangeReader):
    """Reads ranges of files that have the same path on executors. `check` of a range is the fingerprint of its bytes.

    directory: the fixed part of the feed's pattern.
    """

    directory: str
    reading: Reading

    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        yield from FileReader(Path(self.directory, partition), partition, self.reading).read_range(planned)
