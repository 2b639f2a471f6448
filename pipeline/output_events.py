"""What is published of a batch's output: the events in it, and nothing else."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import SinkRejected
from pipeline.event import EVENT_SCHEMA
from pipeline.markers import without_markers

PUBLISHED_SCHEMA = pa.schema([EVENT_SCHEMA.field(name) for name in ("key", "body", "properties", "operation")])
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())


def events_of(table: pa.Table, taker: str) -> pa.Table:
    """`table` as PUBLISHED_SCHEMA, in the order of `sequence` where it has that. Raises SinkRejected.

    The other columns of the event schema may be there too: brokers give their own partition, sequence, offset and time.
    taker: "a log", for people.
    """
    names = table.column_names
    strange = sorted(name for name in set(names) if name not in EVENT_SCHEMA.names or names.count(name) > 1)
    if strange or "body" not in names:
        found = f"the output has {', '.join(map(repr, strange))}" if strange else "the output has no 'body'"
        raise SinkRejected(
            f"{found}: {taker} takes the columns body, key, properties and operation, each once, and body always."
            " Put the rest into it, as in: to_json(struct(a, b)) AS body"
        )
    if "sequence" in names and table.num_rows > 1:
        table = _sorted(table)
    columns = [
        _column(table[field.name], field, taker) if field.name in names else pa.nulls(table.num_rows, field.type)
        for field in PUBLISHED_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=PUBLISHED_SCHEMA)


def _sorted(table: pa.Table) -> pa.Table:
    sequence = _whole(table["sequence"])
    if _is_sorted(sequence):
        return table
    return table.take(pc.sort_indices(sequence))


def _is_sorted(sequence: pa.Array) -> bool:
    if pa.types.is_integer(sequence.type) and not sequence.null_count:  # as feeds have it: a third of the time
        numbers = sequence.to_numpy()
        return bool((numbers[:-1] <= numbers[1:]).all())
    return bool(pc.all(pc.less_equal(sequence[:-1], sequence[1:]), skip_nulls=False).as_py())


def _column(given: pa.ChunkedArray, field: pa.Field, taker: str) -> pa.Array:
    column = _whole(given)
    if not _is_taken(column.type, field.type):
        wanted = "STRING or BINARY" if field.name == "body" else str(field.type)
        raise SinkRejected(f"the output's column '{field.name}' is {column.type}, and {taker} takes {wanted}: cast it")
    if column.type != field.type:
        column = column.cast(field.type)
    return without_markers(column) if field.name == "properties" else column


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_taken(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_null(given):
        return True
    if pa.types.is_map(wanted):
        return pa.types.is_map(given) and _is_text(given.key_type) and _is_text(given.item_type)
    return _is_text(given) or (pa.types.is_binary(wanted) and _is_bytes(given))


def _is_text(given: pa.DataType) -> bool:
    return given in _TEXTS


def _is_bytes(given: pa.DataType) -> bool:
    return given in _BYTES
