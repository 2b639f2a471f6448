"""Arrow's memory in a host: an allocator that gives back what was freed.

Its default, mimalloc, keeps it: in a host that drains a log, as much as a third of all its memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa

ALLOCATOR = "jemalloc"
CHOSEN_BY_USER = "ARROW_DEFAULT_MEMORY_POOL"


def use_thrifty_allocator(environment: Mapping[str, str] = os.environ) -> None:
    """For the whole process, where Arrow has it here and the environment names no other."""
    if ALLOCATOR in pa.supported_memory_backends() and CHOSEN_BY_USER not in environment:
        pa.set_memory_pool(pa.jemalloc_memory_pool())
