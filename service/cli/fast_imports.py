"""Disable garbage collection during imports: it slows startup."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """No garbage is looked for within, nor later among what has been imported."""
    is_looking = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if is_looking:
            gc.enable()
