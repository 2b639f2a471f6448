"""Where a lease stands in a stream: the newest message on its own subject, written by compare-and-swap. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace

from leasehold import Claim, SinkRejected
from leasehold.pipeline.connectors.nats.message import parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """position: up to where the stream holds output. has_ended: nothing more is taken in this generation."""

    generation: int
    epoch: int
    owner: str
    position: str | None
    has_ended: bool = False

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def moved(self, to: str) -> Entry:
        return replace(self, position=to)

    def ended(self) -> Entry:
        return replace(self, has_ended=True)


def claimed(claim: Claim, held: Entry | None) -> Entry:
    """What a claim writes: within a generation it goes on where the stream stands, else where the lease does."""
    begins = held is None or held.generation < claim.generation
    return Entry(
        generation=claim.generation,
        epoch=claim.epoch,
        owner=claim.owner,
        position=claim.continuation if begins or held is None else held.position,
        has_ended=held is not None and not begins and held.has_ended,
    )


def decoded(data: bytes, subject: str) -> Entry:
    """Anyone may have published there. Raises SinkRejected."""
    try:
        values = parsed(data.decode())
        if not isinstance(values, dict) or set(values) != {field.name for field in fields(Entry)}:
            raise ValueError("other fields")
        entry = Entry(**values)
        is_fine = (
            *(type(number) is int and number >= 0 for number in (entry.generation, entry.epoch)),
            isinstance(entry.owner, str),
            entry.position is None or isinstance(entry.position, str),
            isinstance(entry.has_ended, bool),
        )
        if not all(is_fine):
            raise ValueError("other types")
    except ValueError as error:
        raise SinkRejected(
            f"what stands on '{subject}' was written by somebody else ({error}): delete that message, or reset the lease"
        ) from error
    return entry
