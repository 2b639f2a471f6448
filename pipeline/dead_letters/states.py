"""The sink states of a sink and of the box beside it, which share the lease's one text. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from hashlib import sha256

from pipeline.limits import JSON_LEVELS_MAX
from pipeline.nesting import parsed_json


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """letters: the state of the box's own sink. box: which one. since: where the box ended before it was ahead of the sink,
    so that nobody needs to look before that place for what is buried; None where that is not known. at: the box's position, where
    it is ahead: a sink that has settled it does not look for it again.
    """

    sink: str
    letters: str = ""
    box: str = ""
    since: str | None = None
    at: str | None = None

    def encoded(self) -> str:
        kept = {name: each for name, each in asdict(self).items() if each is not None}
        return json.dumps(kept, separators=(",", ":"))


_NAMES = {field.name for field in fields(States)}


def states_in(state: str, box: str) -> States:
    """For this box. What another one has left, or none, is the sink's state alone: then the box begins where the lease stands."""
    found = _found(state)
    if found is None:
        return States(sink=state, box=box)
    if found.get("box", box) != box:
        return States(sink=found["sink"], box=box)
    return States(**{**found, "box": box})


def sink_alone(state: str) -> str:
    """Without what a box has left that is there no more."""
    found = _found(state)
    return state if found is None else found["sink"]


def box_id(identity: str) -> str:
    """Short, since the text is bounded, and identities are not."""
    return sha256(identity.encode()).hexdigest()[:12]


def _found(state: str) -> dict[str, str] | None:
    try:
        found = parsed_json(state, JSON_LEVELS_MAX)
    except ValueError:
        return None
    if not isinstance(found, dict) or not {"sink", "letters"} <= found.keys() <= _NAMES:
        return None
    return found if all(isinstance(each, str) for each in found.values()) else None
