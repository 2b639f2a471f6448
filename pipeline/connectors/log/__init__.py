"""The embedded log: a directory of partitions, kept in SQLite, written and read by any number of processes of one machine."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pyarrow as pa

from leasehold.pipeline.connectors.log.feed import LogChangeFeed
from leasehold.pipeline.connectors.log.partition_file import BLOCK_SCHEMA
from leasehold.pipeline.connectors.log.sink import LogOutputSink
from leasehold.pipeline.connectors.log.store import Log

__all__ = ["LogChangeFeed", "LogOutputSink", "append"]


def append(
    path: str | os.PathLike[str],
    partition: str,
    bodies: Iterable[bytes | str | None],
    *,
    keys: Iterable[str | None] | None = None,
) -> int:
    """Put events into a log by hand, as one atomic batch; the log and the partition are created if they are missing.

    Returns the sequence of the first event. It blocks, and nothing recognises a repetition: use a pipeline for what must be
    delivered exactly once. Raises LogUnavailable.
    """
    events = [body.encode() if isinstance(body, str) else body for body in bodies]
    columns = {"body": events, "key": list(keys) if keys is not None else [None] * len(events)}
    log = Log(path)
    log.prepare()
    try:
        table = pa.table([columns.get(name, [None] * len(events)) for name in BLOCK_SCHEMA.names], BLOCK_SCHEMA)
        return log.partition(partition, new=True).append(table)
    finally:
        log.close()
