"""What a claim has to know and to close before it publishes to a hub. The decisions are pure.

The service keeps a producer per partition and group. Each claim attaches its group at a higher level, with a starting number of
its own making: that level is then nobody else's, since the service refuses another number at it (where it should not, its reply
shows it). A group whose levels are used up, or whose lease got a new generation, is closed by the level above all claims.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.producer import LEVEL_MAX, NOTHING_YET, Numbers, ProducerState, group_of
from pipeline.sink import Claim

CLOSING_LEVEL = LEVEL_MAX + 1
GENERATIONS_CLOSED = 3
"""How many generations back a claim closes groups that its lease document knows nothing of."""


def target_of(partition: str, targets: Sequence[str], pinned: str | None) -> str | None:
    """The hub's partition that a source partition is published to, None where the pinned one is not there.

    The one of the same name; else always the same one of those that are there, and as few as possible others when the hub grows.
    It is pinned in the lease with the first claim.
    """
    wanted = pinned or partition
    if wanted in targets:
        return wanted
    return None if pinned else max(targets, key=lambda target: _weight(partition, target), default=None)


def _weight(partition: str, target: str) -> bytes:
    return hashlib.blake2b(f"{target}/{partition}".encode(), digest_size=8).digest()


def group(claim: Claim, state: ProducerState, *, generations_back: int = 0, series: int | None = None) -> int:
    generation = claim.generation - generations_back
    return group_of(claim.pipeline, claim.partition, generation, state.series if series is None else series)


def to_close(claim: Claim, state: ProducerState) -> list[int]:
    """The groups of earlier claims that are not this claim's."""
    ours = group(claim, state)
    if state.group is not None:
        return [] if state.group == ours else [state.group]
    back = range(1, min(claim.generation, GENERATIONS_CLOSED) + 1)
    earlier = [group(claim, state, generations_back=steps, series=0) for steps in back]
    if state.series:
        earlier.append(group(claim, state, series=state.series - 1))
    return earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The events behind the sequence `behind` have to be searched for markers; those up to it hold none that is news.

    is_binding: whether this lease may have published some of them, so that retention must not have forgotten any.
    """

    behind: int
    is_binding: bool


def tail_of(claim: Claim, state: ProducerState, known: Numbers, before: int) -> Tail:
    """Where markers of this lease may be that its document does not know of.

    known: what the service knew of our group before we attached. before: the partition's end before that question, or an older
    one. If the group stands as the last checkpoint left it, nothing was published up to `before`; a group that the service does
    not know has published nothing at all.
    """
    has_published = state.group in (group(claim, state), group(claim, state, series=max(0, state.series - 1)))
    has_numbers = known.number not in (0, NOTHING_YET)  # else the service may have forgotten them, or never had any
    is_untouched = (
        has_numbers and state.group == known.group and (known.level, known.number) == (state.level - 1, state.number)
    )
    is_unknown = known.level == 0 and not has_numbers
    is_new = not has_published and is_unknown and (state.group is not None or not state.series)
    if is_untouched:
        return Tail(behind=max(before, state.tail), is_binding=False)
    if is_new:
        return Tail(behind=before, is_binding=False)
    return Tail(behind=state.tail if has_published else min(before, state.tail), is_binding=has_published)
