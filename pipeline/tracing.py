"""What traces need from events and batches: contexts in properties, read and written, and the progress of a batch. Pure.

A context is a text of W3C Trace Context, in the property `traceparent` (with `tracestate`), or `Diagnostic-Id`, as Azure's SDKs
name it. Properties are untrusted: what is malformed is ignored, and what is kept is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PARENT, STATE, AZURE_ID = "traceparent", "tracestate", "Diagnostic-Id"
NAMES = (PARENT, STATE, AZURE_ID)
CONTEXTS_MAX = 32
"""How many distinct contexts of a batch are kept."""
STATE_CHARS_MAX = 512
EXAMINED_MAX = 1000
"""How many distinct texts of a page are examined: there may be as many as events, and none of them valid."""
_CONTEXT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_PARENT_CHARS, _TEXT_CHARS_MAX = 55, 255


class TraceContext(NamedTuple):
    """parent: `traceparent`; state: `tracestate`."""

    parent: str
    state: str | None = None

    @property
    def properties(self) -> dict[str, str]:
        """The context as properties or headers."""
        return {PARENT: self.parent} if self.state is None else {PARENT: self.parent, STATE: self.state}


class Contexts(NamedTuple):
    """The distinct contexts of a batch's events, at most CONTEXTS_MAX. are_one: every event has the same one."""

    found: tuple[TraceContext, ...] = ()
    are_one: bool = False


NO_CONTEXTS = Contexts()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformedBatch:
    """A batch that has been transformed, and is not sent yet."""

    start: str | None
    to: str
    events: int
    rows: int
    waited_s: float
    transform_s: float
    contexts: Contexts = NO_CONTEXTS


class BatchTracer(Protocol):
    """Traces the batches of one run of a partition."""

    @property
    def reads_contexts(self) -> bool: ...

    def begin(self, batch: TransformedBatch) -> TraceContext | None:
        """A context for the batch's output until `begin_delivery` gives the one to publish, of the same length."""
        ...

    def begin_delivery(self, to: str, place: str | None) -> TraceContext | None:
        """The context to publish with the batch that ends at `to` and is sent now. place: see `SinkWriter.place`."""
        ...


def contexts_in(columns: Iterable[pa.ChunkedArray]) -> Contexts:
    """columns: the properties of a batch's events (EVENT_SCHEMA)."""
    found: dict[str, str | None] = {}
    events = bearers = 0
    for chunk in (chunk for column in columns for chunk in column.chunks if len(chunk)):
        events += len(chunk)
        if chunk.null_count == len(chunk):
            continue
        count, parents = _parents_in(chunk)
        bearers += count
        for parent, state in parents:
            if len(found) == CONTEXTS_MAX:
                break
            found.setdefault(parent, state)
    contexts = tuple(TraceContext(parent, state) for parent, state in found.items())
    return Contexts(contexts, are_one=len(contexts) == 1 and bearers == events)


def _parents_in(chunk: pa.MapArray) -> tuple[int, Iterator[tuple[str, str | None]]]:
    """How many events have the only context of this chunk (0 if there are several), and its distinct valid contexts."""
    offsets = chunk.offsets.to_numpy()
    first, end = int(offsets[0]), int(offsets[-1])
    keys, items = chunk.keys.slice(first, end - first), chunk.items.slice(first, end - first)
    places = _places(keys, PARENT)
    if len(places) < len(chunk):
        places = _with_others(places, _places(keys, AZURE_ID), offsets - first)
    if not len(places):
        return 0, iter(())
    values = items.take(pa.array(places))
    distinct = values.unique()
    chars = pc.binary_length(distinct)
    is_likely = pc.and_(pc.greater_equal(chars, _PARENT_CHARS), pc.less_equal(chars, _TEXT_CHARS_MAX))
    valid = [text for text in distinct.filter(is_likely).slice(0, EXAMINED_MAX).to_pylist() if _is_context(text)]
    count = _count_rows(places, offsets - first) if len(distinct) == len(valid) == 1 else 0

    def parents() -> Iterator[tuple[str, str | None]]:
        for each in valid[:CONTEXTS_MAX]:
            place = int(places[pc.index(values, each).as_py()]) + first
            row = int(np.searchsorted(offsets, place, side="right")) - 1
            state = dict(chunk[row].as_py() or ()).get(STATE)
            yield each[:_PARENT_CHARS], state if state and len(state) <= STATE_CHARS_MAX else None

    return count, parents()


def _with_others(places: np.ndarray, others: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The places, and those others that are in rows with none of these places."""
    if not (len(places) and len(others)):
        return places if len(places) else others
    return np.append(places, others[~_have(places, offsets)[_rows_of(others, offsets)]])


def _count_rows(places: np.ndarray, offsets: np.ndarray) -> int:
    """How many rows have one of the places. Usually each row has exactly one, which takes less time to check than a search."""
    rows = len(offsets) - 1
    if len(places) == rows and (offsets[:-1] <= places).all() and (places < offsets[1:]).all():
        return rows
    return int(np.count_nonzero(_have(places, offsets)))


def _have(places: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """For each row, whether it has one of the places."""
    found = np.zeros(len(offsets) - 1, dtype=bool)
    found[_rows_of(places, offsets)] = True
    return found


def _rows_of(places: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    return np.searchsorted(offsets[1:], places, side="right")


def _is_context(text: str) -> bool:
    """Versions after 00 may have more fields."""
    return _CONTEXT.fullmatch(text) is not None and (len(text) == _PARENT_CHARS or not text.startswith("00"))


def _places(keys: pa.Array, name: str) -> np.ndarray:
    return np.flatnonzero(pc.equal(keys, name).to_numpy(zero_copy_only=False))


def with_pairs(properties: pa.MapArray, pairs: Mapping[str, str]) -> pa.MapArray:
    """The properties with the same pairs for each event, instead of a context that it had before."""
    events, more = len(properties), len(pairs)
    first, end = properties.offsets[0].as_py(), properties.offsets[-1].as_py()
    if first == end or properties.null_count == events:
        repeated = (_repeated([*side], events) for side in (pairs, pairs.values()))
        return pa.MapArray.from_arrays(pa.array(more * np.arange(events + 1), pa.int32()), *repeated)
    keys, items = (side.slice(first, end - first) for side in (properties.keys, properties.items))
    rows = np.repeat(np.arange(events), np.diff(properties.offsets.to_numpy()))
    has_other_name = pc.invert(pc.is_in(keys, value_set=pa.array(NAMES))).to_numpy(zero_copy_only=False)
    own = np.flatnonzero(has_other_name & properties.is_valid().to_numpy(zero_copy_only=False)[rows])
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows[own], minlength=events) + more)])
    places = np.empty(offsets[-1], dtype=np.int64)
    places[np.arange(len(own)) + more * rows[own]] = own
    for number in range(more):
        places[offsets[1:] - more + number] = end - first + number
    columns = (
        pa.concat_arrays([side, pa.array(added, side.type)]).take(pa.array(places))
        for side, added in ((keys, [*pairs]), (items, [*pairs.values()]))
    )
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), *columns)


def _repeated(texts: Sequence[str], times: int) -> pa.Array:
    """All texts in order, `times` times. Arrow's own `take` needs twenty times as long."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(each) for each in encoded], dtype=np.int32)
    size = int(ends[-1]) if encoded else 0
    offsets = np.concatenate([[0], (size * np.arange(times)[:, None] + ends).ravel()]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded) * times)]
    return pa.Array.from_buffers(pa.string(), times * len(encoded), buffers)
