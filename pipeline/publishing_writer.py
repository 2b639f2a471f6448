"""Protocol F, the sink's side, over any broker (docs/protocol.md, (b)): where a claim begins, and how a batch is published.

A claim raises the owner level in the lease document; the sink attaches at that level, which closes the earlier ones, and only
then looks for the lease's newest marker, which has the position. A batch is one atomic publication, and the numbers of its events
follow those of the last batch. An empty output only moves the position.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cmp_to_key

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.pipeline.errors import Fenced, PipelineError, SinkRejected
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.markers import Marker, lease_of, without_markers
from leasehold.pipeline.producer import LEVEL_MAX, ProducerState, number_after
from leasehold.pipeline.sink import Claim, Output, Permit, SinkWriter
from leasehold.pipeline.tracing import with_pairs
from leasehold.pipeline.values import checked

PUBLISHED_SCHEMA = pa.schema([EVENT_SCHEMA.field(name) for name in ("key", "body", "properties", "operation")])
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())


def events_of(table: pa.Table, taker: str) -> pa.Table:
    """`table` as PUBLISHED_SCHEMA, in the order of `sequence` if it has that column. Raises SinkRejected, OutputRefused.

    It may have the other columns of the event schema, which are left out: brokers assign their own partition, sequence, offset
    and time. taker: "a log", for people.
    """
    names = table.column_names
    strange = sorted(name for name in set(names) if name not in EVENT_SCHEMA.names or names.count(name) > 1)
    if strange or "body" not in names:
        found = f"the output has {', '.join(map(repr, strange))}" if strange else "the output has no 'body'"
        raise SinkRejected(
            f"{found}: {taker} takes the columns body, key, properties and operation, each once, and body always."
            " Put the rest into it, as in: to_json(struct(a, b)) AS body"
        )
    for name in PUBLISHED_SCHEMA.names:
        if name in names:
            _check_taken(table.schema.field(name), taker)
    table = checked(table, taker)
    if "sequence" in names and table.num_rows > 1:
        table = _sorted(table)
    columns = [
        _column(table[field.name], field) if field.name in names else pa.nulls(table.num_rows, field.type)
        for field in PUBLISHED_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=PUBLISHED_SCHEMA)


def traced_events_of(output: Output, taker: str) -> pa.Table:
    """As `events_of`, with the output's trace context."""
    events = events_of(output.table, taker)
    return events if output.trace is None else traced(events, output.trace.properties)


def traced(events: pa.Table, pairs: Mapping[str, str]) -> pa.Table:
    """Each event with these properties, instead of a trace context that it had. events: PUBLISHED_SCHEMA."""
    place = PUBLISHED_SCHEMA.get_field_index("properties")
    properties = with_pairs(_whole(events.column(place)), pairs)
    return events.set_column(place, PUBLISHED_SCHEMA.field(place), properties)


def sequences_of(table: pa.Table) -> list[int | None]:
    """The `sequence` of each row, in the order in which `events_of` has the rows; None for each if they are unknown."""
    column = table["sequence"] if "sequence" in table.column_names else None
    if column is None or column.null_count or not pa.types.is_integer(column.type):
        return [None] * int(table.num_rows)
    return sorted(column.to_pylist())


def _sorted(table: pa.Table) -> pa.Table:
    sequence = _whole(table["sequence"])
    if _is_sorted(sequence):
        return table
    return table.take(pc.sort_indices(sequence))


def _is_sorted(sequence: pa.Array) -> bool:
    if pa.types.is_integer(sequence.type) and not sequence.null_count:  # as feeds have it: takes a third of the time
        numbers = sequence.to_numpy()
        return bool((numbers[:-1] <= numbers[1:]).all())
    return bool(pc.all(pc.less_equal(sequence[:-1], sequence[1:]), skip_nulls=False).as_py())


def _check_taken(given: pa.Field, taker: str) -> None:
    """Raises SinkRejected."""
    wanted = PUBLISHED_SCHEMA.field(given.name).type
    if not _is_taken(given.type, wanted):
        what = "STRING or BINARY" if given.name == "body" else str(wanted)
        raise SinkRejected(f"the output's column '{given.name}' is {given.type}, and {taker} takes {what}: cast it")


def _column(given: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    column = _whole(given)
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


def newest(claim: Claim, held: str | None) -> str | None:
    """The marker's position, or the lease's if empty outputs have moved it further (R4)."""
    return max(held, claim.continuation, key=cmp_to_key(claim.compare))


def marker_of(claim: Claim, level: int, output: Output, count: int) -> Marker:
    return Marker(
        lease=lease_of(claim.pipeline, claim.partition),
        generation=claim.generation,
        level=level,
        start=output.start,
        to=output.to,
        count=count,
    )


def published(state: ProducerState, events: int, last: int) -> ProducerState:
    """The state after this many events. last: the broker's sequence that all events of later batches exceed."""
    return replace(state, number=number_after(state.number, events), tail=last)


def outranked(message: str, state: ProducerState, held: tuple[int, int]) -> Fenced:
    """held: the series and level that the broker knows; the next claim exceeds them."""
    series, level = held
    return Fenced(message, state=replace(state, series=series, level=min(level, LEVEL_MAX)).encoded())


def generation_lost(claim: Claim, where: str, held: int) -> PipelineError:
    """For a lease whose document was deleted, or restored after a reset: no claim of it can outrank the later generation."""
    return SinkRejected(
        f"lease '{lease_of(claim.pipeline, claim.partition)}' is of generation {claim.generation}, and {where} holds output of"
        f" its generation {held}: its document was deleted or restored. Reset the lease until it is of that generation or later"
    )


class PublishingWriter(SinkWriter):
    """One claim's way into a broker. A cancelled write is stored whole, or never."""

    position: str | None = None
    state: str = ""

    def __init__(
        self, state: ProducerState, *, position: str | None, compare: Callable[[str | None, str | None], int]
    ) -> None:
        self.position = position
        self.state = state.encoded()
        self._state = state
        self._compare = compare

    async def write(self, output: Output, permit: Permit) -> None:
        assert self._compare(output.start, self.position) == 0, "a write starts where the one before ended"
        if output.table.num_rows:
            permit.check()
            self._state = await self._publish(output, permit)
            self.state = self._state.encoded()
        self.position = output.to

    @abstractmethod
    async def _publish(self, output: Output, permit: Permit) -> ProducerState:
        """Publish all of it or nothing. Returns the state after it. Raises what `SinkWriter.write` does."""
