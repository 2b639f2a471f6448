"""A block: the events of one append, as compressed Arrow.

Only what the producer said is stored. Partition, sequence, offset and time are the log's to say, and are added on reading.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.event import EVENT_SCHEMA
from pipeline.output_events import PUBLISHED_SCHEMA

BLOCK_SCHEMA = PUBLISHED_SCHEMA
# Arrow's own threads would cost ten times the work itself for a small block, and half as much again for a large one.
_WRITING = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READING = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A block on its way to the disk."""

    body: bytes
    events: int
    decoded_bytes: int

    def digest(self, marker: str | None) -> bytes:
        """Tells one batch from another, and a damaged block from a good one."""
        return digest(self.body, marker)


@dataclass(frozen=True, slots=True)
class Block:
    """A block as it was read. first: sequence of its first event. enqueued: microseconds since 1970. events: BLOCK_SCHEMA."""

    first: int
    enqueued: int
    marker: str | None
    events: pa.Table


def encoded(events: pa.Table) -> Encoded:
    """`events`: BLOCK_SCHEMA."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, BLOCK_SCHEMA, options=_WRITING) as stream:
        stream.write_table(events.combine_chunks())
    return Encoded(out.getvalue().to_pybytes(), events.num_rows, events.nbytes)


def decoded(body: bytes) -> pa.Table:
    """BLOCK_SCHEMA. Raises pa.ArrowException where the bytes are no block."""
    return pa.ipc.open_stream(body, options=_READING).read_all()


def digest(body: bytes, marker: str | None) -> bytes:
    hashed = hashlib.blake2b((marker or "").encode(), digest_size=16)
    hashed.update(body)
    return hashed.digest()


def events_in(partition: str, blocks: Sequence[Block], start: int) -> pa.Table:
    """The events of consecutive blocks from the sequence `start` on, EVENT_SCHEMA."""
    stored = pa.concat_tables([block.events for block in blocks]).slice(start - blocks[0].first).combine_chunks()
    count = stored.num_rows
    sequence = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=start - 1)
    ends = pa.array([block.first + block.events.num_rows - start for block in blocks], pa.int32())
    times = pa.array([block.enqueued for block in blocks], EVENT_SCHEMA.field("enqueued_time").type)
    given = {
        "partition": pa.repeat(pa.scalar(partition, pa.string()), count),
        "sequence": sequence,
        "offset": sequence.cast(pa.string()),
        "enqueued_time": pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, times)),
    }
    return pa.table([given[name] if name in given else stored[name] for name in EVENT_SCHEMA.names], EVENT_SCHEMA)


def pages_of(events: pa.Table, events_max: int, bytes_max: int) -> Iterator[pa.Table]:
    """`events` in slices that keep both limits; a slice of one event may be larger in bytes."""
    for at in range(0, events.num_rows, events_max):
        yield from _halved(events.slice(at, events_max), bytes_max)


def _halved(events: pa.Table, bytes_max: int) -> Iterator[pa.Table]:
    if events.num_rows <= 1 or events.nbytes <= bytes_max:
        yield events
    else:
        half = events.num_rows // 2
        yield from _halved(events.slice(0, half), bytes_max)
        yield from _halved(events.slice(half), bytes_max)
