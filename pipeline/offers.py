"""What an object offers beside what its protocol demands: asked for every batch and every scan, so the answer is kept."""

from __future__ import annotations

_KNOWN: dict[tuple[type, type], bool] = {}


def offers(thing: object, protocol: type) -> bool:
    """Whether all that a `runtime_checkable` protocol names is there. Objects of one class offer the same."""
    asked = type(thing), protocol
    known = _KNOWN.get(asked)
    if known is None:
        known = _KNOWN[asked] = isinstance(thing, protocol)
    return known
