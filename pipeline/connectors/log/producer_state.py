"""The broker's state for one lease's producer (a line), and the rules for accepting batches. The decisions are pure.

Each lease has one producer. Each claim has a rank (generation, series, level), larger than every earlier one's, and a line of
sequence numbers of its own. Once a claim has attached, a lower rank cannot publish, as Event Hubs refuses a lower owner level,
and no rank attaches twice. Event Hubs has neither generation nor series: they let a lease's next producer group close the one
before.
"""

from __future__ import annotations

import sqlite3
from dataclasses import asdict, dataclass, fields, replace

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.connectors.log.partition_file import OutOfOrder, Outranked, ProducerEnded
from leasehold.pipeline.limits import JSON_LEVELS_MAX
from leasehold.pipeline.markers import marker_in
from leasehold.pipeline.producer import number_after


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """One claim on a lease's producer."""

    lease: str
    generation: int
    series: int
    level: int
    group: int

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.generation, self.series, self.level


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseProducer(Producer):
    """What the broker knows of one lease's producer."""

    number: int = 0
    """The number of the last event published at this level; 0 for none."""
    batch_number: int | None = None
    batch_first: int | None = None
    batch_digest: bytes | None = None
    marker: str | None = None
    """The newest marker of this generation; it outlives its block."""
    ended: bool = False
    """Whether nothing more is accepted."""

    def published(self, number: int, events: int, first: int, digest: bytes, marker: str | None) -> LeaseProducer:
        """The producer after a batch, stored at `first`, whose first event has this number. Raises OutOfOrder, ProducerEnded."""
        if self.ended:
            raise ProducerEnded(f"lease '{self.lease}' has ended: nothing more is taken from it")
        if number != number_after(self.number):
            raise OutOfOrder(
                f"group {self.group} is at number {self.number} of level {self.level}, and {number} was sent: another"
                " process publishes at the same level"
            )
        return replace(
            self,
            number=number_after(self.number, events),
            batch_number=number,
            batch_first=first,
            batch_digest=digest,
            marker=self.marker if marker is None else marker,
        )

    def closed(self) -> LeaseProducer:
        return replace(self, ended=True)

    @property
    def position(self) -> str | None:
        """The position up to which the log has the lease's output of this generation."""
        marker = marker_in(parsed_json(self.marker, JSON_LEVELS_MAX)) if self.marker is not None else None
        return marker.to if marker is not None else None

    def repeated(self, number: int, digest: bytes) -> int | None:
        """The place of the last batch, if this is that batch again; None otherwise."""
        return self.batch_first if (self.batch_number, self.batch_digest) == (number, digest) else None


def attached(held: LeaseProducer | None, producer: Producer, number: int = 0) -> LeaseProducer:
    """The line of a new claim: it starts again after `number`, and keeps only the marker. Raises Outranked.

    A rank attaches once. A lease document that was restored gives its rank out again, and what an earlier tenure has in
    flight would pass for this one's.
    """
    if held is not None and held.rank >= producer.rank:
        raise _outranked(held, producer)
    new = LeaseProducer(**asdict(producer), number=number)
    if held is None or held.generation != producer.generation:
        return new
    return replace(new, marker=held.marker, ended=held.ended)


def admitted(held: LeaseProducer | None, producer: Producer) -> LeaseProducer:
    """The line of a producer that is still the last to have attached. Raises Outranked."""
    if held is None or held.rank < producer.rank:
        raise Outranked(f"lease '{producer.lease}' is not attached: its log was deleted or restored; attach again")
    if held.rank > producer.rank:
        raise _outranked(held, producer)
    return held


def load(connection: sqlite3.Connection, lease: str) -> LeaseProducer | None:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM producers WHERE lease = ?", (lease,)).fetchall()  # noqa: S608
    return LeaseProducer(**dict(zip(_NAMES, rows[0], strict=True))) if rows else None


def save(connection: sqlite3.Connection, line: LeaseProducer) -> None:
    connection.execute(
        f"REPLACE INTO producers ({_COLUMNS}) VALUES ({', '.join('?' * len(_NAMES))})",  # noqa: S608  # names of ours
        tuple(asdict(line).values()),
    )


_NAMES = tuple(field.name for field in fields(LeaseProducer))
_COLUMNS = ", ".join(f'"{name}"' for name in _NAMES)


def _outranked(held: LeaseProducer, producer: Producer) -> Outranked:
    return Outranked(
        f"lease '{producer.lease}' is claimed at {_rank(held)}, and {_rank(producer)} does not outrank it: stop, or claim above",
        held=(held.generation, held.series, held.level),
    )


def _rank(producer: Producer) -> str:
    return f"level {producer.level} (generation {producer.generation}, series {producer.series})"
