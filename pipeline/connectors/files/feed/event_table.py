"""Records of a file as an event table, column by column. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from leasehold.pipeline.connectors.files.feed.records import Content, Offsets
from leasehold.pipeline.event import EVENT_SCHEMA

ROW_BYTES = 128
"""The most bytes that an event takes in memory, in addition to its key, its body, and its partition's name twice."""


def event_table(partition: str, content: Content, sequence: int, lines: Offsets, written_us: int) -> pa.Table:
    """EVENT_SCHEMA. sequence: of the first record. lines: those on which records begin. written_us: the file's mtime."""
    count = len(content.bodies)
    numbers = pc.cast(pa.array(lines), pa.string())
    columns = [
        pa.repeat(pa.scalar(partition, pa.string()), count),
        pa.array(np.arange(sequence, sequence + count)),
        pc.binary_join_element_wise("line ", numbers, ""),
        pa.repeat(pa.scalar(written_us, EVENT_SCHEMA.field("enqueued_time").type), count),
        content.keys,
        content.bodies,
        _properties(partition, numbers),
        pa.nulls(count, pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=EVENT_SCHEMA)


def _properties(file: str, lines: pa.Array) -> pa.MapArray:
    """{"file": file, "line": line} for each line."""
    count = len(lines)
    names = pa.array(["file", "line"]).take(pa.array(np.tile((0, 1), count)))
    picks = np.zeros(2 * count, np.int64)
    picks[1::2] = np.arange(1, count + 1)
    values = pa.concat_arrays([pa.array([file], pa.string()), lines]).take(pa.array(picks))
    return pa.MapArray.from_arrays(pa.array(np.arange(0, 2 * count + 1, 2, dtype=np.int32)), names, values)
