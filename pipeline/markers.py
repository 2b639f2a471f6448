"""Protocol F's marker: a published batch's description of itself, from which a lease's progress can be read.

A marker is a handful of properties under the reserved prefix `leasehold-`. If a broker keeps only events, every event has the
marker and its index in the batch, and the position is found by reading the partition's tail. If a broker keeps batches, each may
have one marker (docs/protocol.md, (b)).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.pipeline.errors import PipelineError

Compare = Callable[[str | None, str | None], int]
PREFIX = "leasehold-"
INTEGER_DIGITS_MAX = 19
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One atomic batch of one lease. It covers the positions after `start` up to `to` with `count` events."""

    lease: str
    generation: int
    level: int
    start: str | None
    to: str
    count: int

    def properties(self) -> dict[str, str]:
        """What every event of the batch has, except its index."""
        named = {
            "lease": self.lease,
            "generation": str(self.generation),
            "level": str(self.level),
            "from": self.start,
            "to": self.to,
            "count": str(self.count),
        }
        return {PREFIX + name: value for name, value in named.items() if value is not None}


class Search:
    """Searches a tail, event by event, for the newest marker of one generation of a lease, or, with None, of its latest one.

    A batch counts only once all of its events were seen, from the first to the last. It does not count if the tail cuts it off,
    or if some of it is still on its way. Events of other batches may be in between.

    Every publisher can copy or forge a marker. A copy of an earlier batch does not count, nor does a marker with a position that
    `compare` refuses. A marker that was forged with a later position than the others counts (docs/guarantees.md).

    newest: the newest marker so far of a complete batch. later: the latest generation of the lease's markers so far, or the given
    one if that is later; -1 if there is neither.
    """

    def __init__(self, lease: str, generation: int | None, compare: Compare = lambda a, b: 1) -> None:
        """compare: orders the feed's positions. By default, each batch has a later position than the batches before."""
        self.newest: Marker | None = None
        self.later = -1 if generation is None else generation
        self._lease = lease
        self._generation = generation
        self._compare = compare
        self._counting: Marker | None = None
        self._seen = 0

    def see(self, properties: Mapping[str, str]) -> None:
        marker, index = marker_in(properties), _integer(properties, "index")
        if marker is None or marker.lease != self._lease:
            return
        if marker.generation > self.later:
            self.later = marker.generation
            if self._generation is None:
                self.newest = self._counting = None
        if marker.generation == (self.later if self._generation is None else self._generation):
            self._count(marker, index)

    def _count(self, marker: Marker, index: int | None) -> None:
        if index == 0:
            self._counting, self._seen = marker, 0
        if marker != self._counting or index != self._seen:
            self._counting = None
            return
        self._seen += 1
        if self._seen == marker.count and self._is_ahead(marker):
            self.newest = marker

    def _is_ahead(self, marker: Marker) -> bool:
        try:
            if self._compare(marker.to, None if self.newest is None else self.newest.to) > 0:
                return True
            why = "is a copy of an earlier one"
        except PipelineError as error:
            why = f"names no position ({error})"
        _log.warning(
            "a marker of lease '%s' %s: let nothing but Leasehold publish properties that begin with `%s`",
            self._lease,
            why,
            PREFIX,
        )
        return False


def lease_of(pipeline: str, partition: str) -> str:
    """The name of a lease in its markers. No two leases share one, whatever characters their names have."""
    return f"{quote(pipeline, safe='')}/{quote(partition, safe='')}"


def marker_in(properties: Mapping[str, str]) -> Marker | None:
    """The marker in these properties, or None if they have no complete one."""
    lease, to = properties.get(PREFIX + "lease"), properties.get(PREFIX + "to")
    generation, level, count = (_integer(properties, name) for name in ("generation", "level", "count"))
    if lease is None or to is None or generation is None or level is None or not count:
        return None
    start = properties.get(PREFIX + "from")
    return Marker(lease=lease, generation=generation, level=level, start=start, to=to, count=count)


def without_markers(properties: pa.MapArray) -> pa.MapArray:
    """Users' properties alone: an event that is published again has the marker of its new batch, not that of its source."""
    if properties.null_count == len(properties):
        return properties
    keep = pc.invert(pc.starts_with(properties.keys, PREFIX))
    if pc.all(keep).as_py() is not False:
        return properties
    kept_before = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(keep.cast(pa.int32()))])
    return pa.MapArray.from_arrays(
        kept_before.take(properties.offsets),
        properties.keys.filter(keep),
        properties.items.filter(keep),
        mask=properties.is_null(),
    )


def _integer(properties: Mapping[str, str], name: str) -> int | None:
    text = properties.get(PREFIX + name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= INTEGER_DIGITS_MAX else None
