"""A dead letter: an event that could not be processed, whole, with why, when and where. Pure.

A letter is kept as its event's body, byte for byte, and an envelope: a JSON text with everything else, including the event's
properties. So a letter that becomes an event of a log or a hub has one property in addition to its body. A letter in a table or a
file also has a few columns for people.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

import pyarrow as pa

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.errors import Poison
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.limits import JSON_LEVELS_MAX, REPLAY
from leasehold.pipeline.sink import Claim, Output

PROPERTY = "dead-letter"
LEASE = "/dead-letters"
"""Follows the pipeline's name, for the box's own fence and position: no pipeline's name has a slash."""
ERROR_CHARS_MAX = 4_000
"""The longest reason that is kept; a trigger or a destination may have written it."""

_TIME = pa.timestamp("us", tz="UTC")
DEAD_SCHEMA = pa.schema(
    [
        *EVENT_SCHEMA,
        pa.field("error", pa.string(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("failed_at", _TIME, nullable=False),
    ]
)
"""An event that is dead. attempts: how often it was seen to fail. failed_at: by the clock of its host."""

LETTER_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in ("pipeline", "partition")),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
        pa.field("failed_at", _TIME, nullable=False),
        pa.field("body", pa.binary()),
        pa.field("envelope", pa.string(), nullable=False),
    ]
)
"""envelope: everything but the body, as JSON; the body too if that is null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """partition, sequence, offset, enqueued_time, key, properties, operation, body: the event's own.

    by: the pipeline's lease that wrote it: `pipeline`, or its replay. generation, start, to: of the batch that it was found in.
    """

    pipeline: str
    by: str
    partition: str
    generation: int
    start: str | None
    to: str
    sequence: int
    offset: str
    enqueued_time: str
    key: str | None
    properties: Sequence[Sequence[str | None]] | None
    operation: str | None
    error: str
    attempts: int
    host: str
    failed_at: str
    body: bytes | None


_ENVELOPE = tuple(field.name for field in fields(Letter) if field.name != "body")


def dead_events(events: pa.Table, poison: Sequence[Poison], at: datetime) -> pa.Table:
    """The poison events as DEAD_SCHEMA. events: a batch's, with the poison among them."""
    found = events.take(pa.array([each.index for each in poison], pa.int64()))
    reasons = [_shortened(each.reason) for each in poison], [each.attempts for each in poison], [at] * len(poison)
    columns = [pa.array(values, field.type) for values, field in zip(reasons, list(DEAD_SCHEMA)[-3:], strict=True)]
    return pa.Table.from_arrays([*found.combine_chunks().columns, *columns], schema=DEAD_SCHEMA)


def _shortened(reason: str) -> str:
    """The reason, bounded and without lone surrogates, which no system stores: a letter must not be lost because of it."""
    return reason[:ERROR_CHARS_MAX].encode(errors="replace").decode()


def letters_of(claim: Claim, output: Output) -> pa.Table:
    """The letters of an output with dead events, as LETTER_SCHEMA."""
    assert output.dead is not None, "an output without dead events has no letters"
    rows = []
    for event in output.dead.to_pylist():
        letter = Letter(
            pipeline=claim.pipeline.removesuffix(REPLAY),
            by=claim.pipeline,
            generation=claim.generation,
            start=output.start,
            to=output.to,
            host=claim.owner,
            **{**event, **{name: event[name].isoformat() for name in ("enqueued_time", "failed_at")}},
        )
        rows.append({**event, "pipeline": letter.pipeline, "host": letter.host, "envelope": _envelope(letter)})
    return pa.Table.from_pylist(rows, schema=LETTER_SCHEMA)


def published(letters: pa.Table) -> pa.Table:
    """Letters as a log or a hub takes them: the body as it was, and the envelope as a property."""
    properties = [[(PROPERTY, envelope)] for envelope in letters["envelope"].to_pylist()]
    return pa.table(
        {
            "sequence": letters["sequence"],
            "body": letters["body"],
            "properties": pa.array(properties, EVENT_SCHEMA.field("properties").type),
        }
    )


def letter_in(body: bytes | None, envelope: str) -> Letter | None:
    """The letter; None if the envelope is not that of a dead letter. A hub has no null bodies: the envelope marks them."""
    try:
        found = parsed_json(envelope, JSON_LEVELS_MAX)
        return Letter(**{name: found[name] for name in _ENVELOPE}, body=None if "body" in found else body)
    except (ValueError, KeyError, TypeError):
        return None


def kept_events(partition: str, letters: Iterable[tuple[int, datetime, bytes | None, str]]) -> pa.Table:
    """Letters that are kept elsewhere, as a log has them (EVENT_SCHEMA). letters: number, time, body and envelope of each."""
    events = [
        {
            "partition": partition,
            "sequence": number,
            "offset": str(number),
            "enqueued_time": failed_at,
            "body": body,
            "properties": [(PROPERTY, envelope)],
        }
        for number, failed_at, body, envelope in letters
    ]
    return pa.Table.from_pylist(events, EVENT_SCHEMA)


def letter_of(event: Mapping[str, Any]) -> Letter | None:
    """The letter in an event of a log or a hub; None if it is not a dead letter."""
    envelope = dict(event["properties"] or ()).get(PROPERTY)
    return None if envelope is None else letter_in(event["body"], envelope)


def event_of(letter: Letter) -> dict[str, Any]:
    """The event as it was: a row of EVENT_SCHEMA."""
    found = {name: getattr(letter, name) for name in EVENT_SCHEMA.names}
    properties = None if letter.properties is None else [(key, value) for key, value in letter.properties]
    return {**found, "properties": properties, "enqueued_time": datetime.fromisoformat(letter.enqueued_time)}


def _envelope(letter: Letter) -> str:
    """The envelope in ASCII: PostgreSQL's texts cannot hold a NUL, which JSON escapes."""
    values = asdict(letter)
    if letter.body is not None:
        del values["body"]
    return json.dumps(values)
