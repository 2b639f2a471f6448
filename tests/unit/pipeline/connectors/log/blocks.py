"""What a third party reads in a log."""

from __future__ import annotations

from pathlib import Path

from leasehold.pipeline.connectors.log.partition_file import Block
from leasehold.pipeline.connectors.log.store import Log


def blocks_in(path: Path, partition: str) -> list[Block]:
    """What a third party reads."""
    log = Log(path)
    try:
        extent = log.partition(partition).extent()
        return log.partition(partition).read(extent.first, events_max=10**9, bytes_max=10**12)[1]
    finally:
        log.close()
