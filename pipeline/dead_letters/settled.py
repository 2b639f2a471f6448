"""Which dead letters still need attention: derived from how far the replay has read them, and from the letters themselves.

A replay moves its position only behind letters whose events it has processed, or has written as dead letters again. So a letter
behind the position is open. One before it went through, or a later letter of the same event stands for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Literal

from pipeline.dead_letters.record import Letter, letter_of
from pipeline.dead_letters.store import Kept, LetterBox, until_now
from pipeline.errors import FeedError
from pipeline.limits import REPLAY

LetterState = Literal["open", "replayed", "failed_again", "unknown"]
"""open: no replay has processed it yet. replayed: its event went through. failed_again: a newer letter stands for it.
unknown: how far the replay got could not be found out."""

NO_REASONS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Replayed:
    """How far a pipeline's letters were replayed, by the partition of its feed.

    positions: among the letters. A partition that is missing was never replayed.
    unknown: partitions whose position could not be found out, and why. everything: why none of them could.
    """

    positions: Mapping[str, str | None]
    unknown: Mapping[str, str] = field(default_factory=lambda: NO_REASONS)
    everything: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """again: the number of the letter that stands for one that failed again."""

    kept: Kept
    state: LetterState
    again: int | None = None


async def judge(
    box: LetterBox, pipeline: str, letters: Sequence[Kept], replayed: Replayed
) -> tuple[list[Judged], list[str]]:
    """The state of each letter, and why some are unknown.

    letters: read after `replayed` was. A letter that failed again is written before the position moves, so it is among them.
    """
    if replayed.everything is not None:
        return [Judged(kept, "unknown") for kept in letters], [replayed.everything] if letters else []
    names = sorted({kept.letter.partition for kept in letters})
    unknown = {name: replayed.unknown[name] for name in names if name in replayed.unknown}
    unread: set[tuple[object, ...]] = set()
    for name in names:
        if name in replayed.positions and name not in unknown:
            try:
                unread |= await _find_unread(box, pipeline, name, replayed.positions[name])
            except FeedError as error:
                unknown[name] = str(error)
        elif name not in unknown:
            unread |= {_id(kept.number, kept.letter) for kept in letters if kept.letter.partition == name}
    return judged(letters, unread, unknown), [f"partition '{name}': {why}" for name, why in unknown.items()]


def judged(letters: Sequence[Kept], unread: Collection[tuple[object, ...]], unknown: Collection[str]) -> list[Judged]:
    """unread: the letters behind the replay's position. unknown: partitions whose position is not known. Pure."""
    of_event = defaultdict[tuple[str, int], list[Kept]](list)
    for kept in letters:
        of_event[kept.letter.partition, kept.letter.sequence].append(kept)

    def is_unread(kept: Kept) -> bool:
        return _id(kept.number, kept.letter) in unread

    def judged_one(kept: Kept) -> Judged:
        if kept.letter.partition in unknown:
            return Judged(kept, "unknown")
        again = _again(kept, of_event[kept.letter.partition, kept.letter.sequence])
        if is_unread(kept):
            # Its newer letter is there, but the batch was not finished. The next replay leaves out what has one.
            again = again if again is not None and is_unread(again) else None
        if again is not None:
            return Judged(kept, "failed_again", again.number)
        return Judged(kept, "open" if is_unread(kept) else "replayed")

    return [judged_one(kept) for kept in letters]


def _again(kept: Kept, of_event: Iterable[Kept]) -> Kept | None:
    """The letter that a replay wrote next of the same event; None for none.

    Letters of a replay have numbers that grow. Those of the pipeline are numbered apart from them in files, so the time decides
    there, if an operator's reset made the pipeline write several letters of one event.
    """
    written = sorted((other for other in of_event if _by_replay(other)), key=lambda other: other.number)
    if _by_replay(kept):
        return next((other for other in written if other.number > kept.number), None)
    if sum(not _by_replay(other) for other in of_event) == 1:
        return next(iter(written), None)
    return next((other for other in written if _failed_at(other) > _failed_at(kept)), None)


def _by_replay(kept: Kept) -> bool:
    return kept.letter.by == kept.letter.pipeline + REPLAY


def _failed_at(kept: Kept) -> datetime:
    return datetime.fromisoformat(kept.letter.failed_at)


async def _find_unread(box: LetterBox, pipeline: str, partition: str, position: str | None) -> set[tuple[object, ...]]:
    """What a replay that begins now would read. Raises FeedUnavailable, PositionLost."""
    feed = box.by_partition or box.feed
    if await feed.lag(partition, position) == 0:
        return set()
    found = set()
    async with aclosing(until_now(feed, partition, position)) as pages:
        async for page in pages:
            for event in page.events.to_pylist():
                letter = letter_of(event)
                if letter is not None and letter.pipeline == pipeline:
                    found.add(_id(event["sequence"], letter))
    return found


def _id(number: int, letter: Letter) -> tuple[object, ...]:
    """A hub numbers the letters of each of its partitions apart, and one partition's letters may lie in several of them."""
    return letter.partition, number, letter.by, letter.sequence, letter.generation, letter.failed_at
