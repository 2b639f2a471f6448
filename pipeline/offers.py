"""Which optional protocols an object implements. This is used for every batch and every scan, so the answer is kept."""

from __future__ import annotations

import warnings

_KNOWN: dict[tuple[type, type], bool] = {}
_RENAMED = {"held_back": "find_held_back", "moved": "wait_for_progress"}
"""Old name of a method -> its name since 0.2.0. The old names go with 0.3.0."""


def offers(thing: object, protocol: type) -> bool:
    """Whether all that a `runtime_checkable` protocol names is there. Objects of one class offer the same."""
    asked = type(thing), protocol
    known = _KNOWN.get(asked)
    if known is None:
        _add_new_names(*asked)
        known = _KNOWN[asked] = isinstance(thing, protocol)
    return known


def _add_new_names(kind: type, protocol: type) -> None:
    for old, new in _RENAMED.items():
        if hasattr(protocol, new) and hasattr(kind, old) and not hasattr(kind, new):
            warnings.warn(f"{kind.__qualname__}.{old} is now called {new}: rename it", DeprecationWarning, stacklevel=4)
            setattr(kind, new, getattr(kind, old))
