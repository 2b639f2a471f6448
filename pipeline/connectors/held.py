"""What a broker holds of a lease, as JSON that changes in one step with the output of each batch. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.connectors.targets import target_of
from leasehold.pipeline.errors import FeedError, Fenced, SinkRejected
from leasehold.pipeline.limits import JSON_LEVELS_MAX
from leasehold.pipeline.publishing_writer import generation_lost
from leasehold.pipeline.sink import Claim, reset_command, to_write_again


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """position: the one up to which the broker has output. target: the partition that takes it. has_ended: it takes no more."""

    generation: int
    epoch: int
    owner: str
    position: str | None
    target: int
    has_ended: bool = False

    def encoded(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def decoded(text: str | None, where: str, remedy: str) -> Held:
    """Check a text that another program may have written. remedy: what to do in that case. Raises SinkRejected."""
    try:
        values = parsed_json(text or "", JSON_LEVELS_MAX)
        if not isinstance(values, dict) or values.keys() != {field.name for field in fields(Held)}:
            raise ValueError("other fields")
        held = Held(**values)
        is_fine = (
            *(type(number) is int and number >= 0 for number in (held.generation, held.epoch, held.target)),
            isinstance(held.owner, str),
            held.position is None or isinstance(held.position, str),
            isinstance(held.has_ended, bool),
        )
        if not all(is_fine):
            raise ValueError("other types")
    except ValueError as error:
        raise SinkRejected(f"{where} was written by another program ({error}): {remedy}") from error
    return held


def admit(claim: Claim, held: Held | None, where: str) -> None:
    """Raises Fenced if another claim has this epoch or a later one, and SinkRejected if a newer generation exists."""
    if held is None or held.generation < claim.generation:
        return
    if held.generation > claim.generation:
        raise generation_lost(claim, where, held.generation)
    if (held.epoch, held.owner) != (claim.epoch, claim.owner) and held.epoch >= claim.epoch:
        raise Fenced(f"{where} knows '{held.owner}' with epoch {held.epoch}: not {claim.epoch}", epoch=held.epoch)


def claimed(claim: Claim, held: Held | None, partitions: int, where: str) -> Held:
    """What a claim writes. Within a generation it continues at the broker's position, otherwise at the lease's.

    Raises SinkRejected.
    """
    begins = held is None or held.generation < claim.generation
    if held is not None and not begins:
        _check_order(claim, held.position, where)
    pinned = None if held is None else str(held.target)
    target = target_of(claim.partition, [str(number) for number in range(partitions)], pinned)
    if target is None:
        raise SinkRejected(f"{where} has output in partition {pinned}, and there are {partitions} now: add partitions")
    return Held(
        generation=claim.generation,
        epoch=claim.epoch,
        owner=claim.owner,
        position=claim.continuation if held is None or begins else held.position,
        target=int(target),
        has_ended=held is not None and not begins and held.has_ended,
    )


def _check_order(claim: Claim, position: str | None, where: str) -> None:
    """Raises SinkRejected if the broker's position is before the lease's."""
    try:
        is_behind = claim.compare(position, claim.continuation) < 0
    except FeedError as error:
        raise SinkRejected(f"{where} has a position that does not fit the lease's: {error}") from error
    if is_behind:
        there, back, on = position or "the beginning", reset_command(claim, position or "earliest"), claim.continuation
        raise SinkRejected(
            f"{where} is at {there}, and the lease is at {on} already. Look where the output ends. If it ends where the broker"
            f" is, which was restored, continue with {back}. If it ends where the lease is, or if the leases are new, continue"
            f" with {reset_command(claim, str(on))}. Otherwise {to_write_again(claim)}"
        )
