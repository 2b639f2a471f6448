"""What tests of the sink `files` with `format: delta` share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from delta_log import LOG, read_log
from delta_readers import read_rows
from unit.pipeline.connectors.files.sink.places import Permit, claim, output

from leasehold.pipeline.connectors.files.delta import DeltaSink, location_of
from leasehold.pipeline.connectors.files.sink import Directory

__all__ = ["Permit", "claim", "numbers_in", "output", "sink_in"]


def sink_in(path: Path, *, key: Sequence[str] = ()) -> DeltaSink:
    return DeltaSink(Directory(path), location_of(path), key=key)


def numbers_in(path: Path, partition: str = "p") -> list[int]:
    """The sequences of a partition's rows. Their order is the log's; which they are, DuckDB and Polars have to agree on."""
    if not (path / LOG).exists():
        return []
    in_order = [row["sequence"] for row in read_log(path).rows() if row["partition"] == partition]
    read = [row["sequence"] for row in read_rows(path, "sequence", "partition") if row["partition"] == partition]
    assert read == sorted(in_order)
    return in_order
