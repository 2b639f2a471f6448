"""Parts of third parties that do not derive from the base class of their interface: taken for one more release.

Before 0.2.0 a part was recognised by its methods. The next release takes only what derives from the base class.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import TypeVar

T = TypeVar("T")

_RENAMED = {"held_back": "find_held_back", "moved": "wait_for_progress"}
"""Old name of a method -> its name since 0.2.0."""


def adopt(part: T, base: type) -> T:
    """The part itself, which derives from `base` afterwards. Raises TypeError if its class forbids that (`__slots__`)."""
    kind: type = type(part)
    if (derived := _derived(kind, base)) is not kind:
        part.__class__ = derived
    return part


@cache
def _derived(kind: type, base: type) -> type:
    new_names = {
        new: getattr(kind, old)
        for old, new in _RENAMED.items()
        if hasattr(base, new) and hasattr(kind, old) and getattr(kind, new, None) in (None, getattr(base, new))
    }
    for new, method in new_names.items():
        _warn(f"{kind.__qualname__}.{method.__name__} is now called {new}: rename it")
    if issubclass(kind, base):
        return type(kind.__name__, (kind,), new_names) if new_names else kind
    _warn(f"{kind.__qualname__} does not derive from leasehold.{base.__name__}: the next release takes only what does")
    return type(kind.__name__, (kind, base), new_names)


def _warn(what: str) -> None:
    warnings.warn(what, DeprecationWarning, stacklevel=4)
