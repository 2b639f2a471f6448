"""The part of a pause order that belongs to a copy of the leases to another lease store. Pure.

`leasehold.service.group.copying` marks both stores, so that no host works on half a copy, or on leases that have moved away.
Every release of Leasehold obeys the order as a pause.

    source: begun -> sealed -> done        no host takes a lease; the mark `done` stays for ever
    target: begun, and then the order that the source had, or none
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from leasehold.leases.document import NAME_BYTES_MAX, Fields
from leasehold.leases.errors import GroupMoved

Side = Literal["source", "target"]
State = Literal["begun", "sealed", "done"]
SIDES: tuple[Side, ...] = get_args(Side)
STATES: tuple[State, ...] = get_args(State)
PLACE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedBefore:
    """The order that a pipeline had before the copy."""

    paused: bool
    by: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """- copy: the id of the copy, the same in both stores.
    - side: which of the two this store is. other: names the other one, for people.
    - before: the order before the copy, if there was one. Only the source has it.
    """

    copy: str
    side: Side
    other: str
    state: State = "begun"
    before: PausedBefore | None = None

    def why(self, pipeline: str, at: str) -> str:
        """Why no host may process the pipeline here, and what to do."""
        since = f" at {at}" if at else ""
        if self.state == "done":
            return (
                f"the leases of pipeline '{pipeline}' were moved to {self.other}{since}: run the configuration that names"
                " that lease store"
            )
        direction = "to" if self.side == "source" else "from"
        return (
            f"the leases of pipeline '{pipeline}' are being copied {direction} {self.other} (begun{since}): run `leasehold"
            " leases copy` again to complete that, or with --cancel to give it up"
        )


def move_fields(move: Move) -> Mapping[str, object]:
    """The fields of a move, as `move_in` reads them."""
    before = move.before
    return {
        "copy": move.copy,
        "side": move.side,
        "other": move.other,
        "state": move.state,
        **({} if before is None else {"before": {"paused": before.paused, "by": before.by, "at": before.at}}),
    }


def move_in(fields: Fields) -> Move:
    """Raises InvalidDocument."""
    side, state = fields.text("side", NAME_BYTES_MAX), fields.text("state", NAME_BYTES_MAX)
    found_side = next((each for each in SIDES if each == side), None)
    found_state = next((each for each in STATES if each == state), None)
    if found_side is None:
        fields.refuse("side", f"is {side!r}, and must be one of {', '.join(SIDES)}")
    if found_state is None:
        fields.refuse("state", f"is {state!r}, and must be one of {', '.join(STATES)}")
    return Move(
        copy=fields.text("copy", NAME_BYTES_MAX),
        side=found_side,
        other=fields.text("other", PLACE_BYTES_MAX),
        state=found_state,
        before=_before_in(fields.inner("before")) if fields.has("before") else None,
    )


def _before_in(fields: Fields) -> PausedBefore:
    by, at = (fields.text(name, NAME_BYTES_MAX) for name in ("by", "at"))
    return PausedBefore(paused=fields.boolean("paused"), by=by, at=at)


def refuse_moved(move: Move | None, pipeline: str, at: str) -> None:
    """Raises GroupMoved."""
    if move is not None:
        raise GroupMoved(move.why(pipeline, at))
