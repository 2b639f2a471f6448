"""The rules for idempotent producers, as pure functions: who may attach, and what becomes of a batch with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from leasehold_emulators.eventhubs.messages import Numbered

NUMBER_MAX = 0x7FFFFFFF
LEVEL_MAX = 0x7FFF
REMEMBERED = 5  # how many of a producer's last batches are recognized if they are repeated

OUT_OF_ORDER = "com.microsoft:out-of-order-sequence"
STOLEN = "com.microsoft:producer-epoch-stolen"
OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
ARGUMENT = "com.microsoft:argument-error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """last: the number of the last event published at this level. recent: (first, last) of the last batches, the newest last."""

    id: int
    level: int
    last: int
    recent: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a link asks for; None leaves the choice to the service."""

    id: int | None = None
    level: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """replied: the number after which the client has to continue."""

    producer: Producer
    replied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    condition: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The batch is new. after: the producer once the batch is stored."""

    after: Producer


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The batch repeats a recent one: it is accepted, and not stored again."""


def following(number: int, steps: int = 1) -> int:
    """The number that is `steps` later; 0 follows the largest int32."""
    return (number + steps) % (NUMBER_MAX + 1)


def attached(
    known: Producer | None,
    asked: Asked,
    fresh_id: int,
    *,
    replies_known: bool = True,
    nothing: int = 0,
    null_raises: bool = False,
) -> Attached | Refusal:
    """The producer at the start of the link, or why the link is refused. known: the producer with the requested id, if any.

    - replies_known: whether a client that is behind gets the number that the service knows, or the one that it requested.
    - nothing: the last number of a producer that has published nothing, 0 or -1.
    - null_raises: whether a null level means the next level, or the present one.
    """
    if asked.level is not None and not 0 <= asked.level <= LEVEL_MAX:
        return Refusal(condition=OUT_OF_RANGE, description=f"The producer epoch {asked.level} is out of range.")
    if asked.last is not None and not 0 <= asked.last <= NUMBER_MAX:
        return Refusal(condition=OUT_OF_RANGE, description=f"The sequence number {asked.last} is out of range.")
    if known is None:
        return _begun(fresh_id if asked.id is None else asked.id, asked.level or 0, asked, nothing)
    level = known.level + null_raises if asked.level is None else asked.level
    if level > LEVEL_MAX:
        return Refusal(condition=OUT_OF_RANGE, description=f"There is no producer epoch above {known.level}.")
    if level < known.level:
        return _stolen(known, level)
    if level > known.level:
        return _begun(known.id, level, asked, nothing)
    if asked.last is None:
        return Attached(producer=known, replied=known.last)
    if not _is_behind(asked.last, known):
        text = f"Producer {known.id} has published up to {known.last} at epoch {level}, not up to {asked.last}."
        return Refusal(condition=OUT_OF_ORDER, description=text)
    return Attached(producer=known, replied=known.last if replies_known else asked.last)


def _begun(id_: int, level: int, asked: Asked, nothing: int) -> Attached:
    producer = Producer(id=id_, level=level, last=nothing if asked.last is None else asked.last)
    return Attached(producer=producer, replied=producer.last)


def _is_behind(last: int, known: Producer) -> bool:
    """Whether `last` may be the last number that a client knows, even if it has missed acknowledgements."""
    return last == known.last or any(last == following(first, -1) for first, _ in known.recent)


def _stolen(known: Producer, level: int) -> Refusal:
    text = f"Producer {known.id} is at epoch {known.level}: epoch {level} has been fenced off."
    return Refusal(condition=STOLEN, description=text)


def published(known: Producer, numbers: Sequence[Numbered | None]) -> Stored | Known | Refusal:
    """What becomes of a batch whose events carry these numbers."""
    first = numbers[0]
    if first is None or first.level is None or first.number is None or first.producer != known.id:
        text = f"The events of producer {known.id} have to carry its id, its epoch and their sequence numbers."
        return Refusal(condition=ARGUMENT, description=text)
    begin = first.number
    if list(numbers) != [(first.producer, first.level, (begin + i) & NUMBER_MAX) for i in range(len(numbers))]:
        text = f"The sequence numbers of a batch have to be consecutive; it begins with {begin}."
        return Refusal(condition=OUT_OF_ORDER, description=text)
    if first.level < known.level:
        return _stolen(known, first.level)
    if first.level > known.level:
        known = Producer(id=known.id, level=first.level, last=following(first.number, -1))
    span = (first.number, following(first.number, len(numbers) - 1))
    if span in known.recent:
        return Known()
    if first.number != following(known.last):
        text = f"Producer {known.id} has to continue with {following(known.last)}, not with {first.number}."
        return Refusal(condition=OUT_OF_ORDER, description=text)
    return Stored(after=replace(known, last=span[1], recent=(*known.recent, span)[-REMEMBERED:]))
