"""Which partition of a destination takes a source partition's output."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def target_of(partition: str, targets: Sequence[str], pinned: str | None) -> str | None:
    """The destination's partition to which a source partition is published; None if the pinned one does not exist.

    It is the one of the same name, or else always the same one of those that exist. If partitions are added, as few choices as
    possible change. The first claim pins it in the lease.
    """
    wanted = pinned or partition
    if wanted in targets:
        return wanted
    return None if pinned else max(targets, key=lambda target: _weight(partition, target), default=None)


def _weight(partition: str, target: str) -> bytes:
    return hashlib.blake2b(f"{target}/{partition}".encode(), digest_size=8).digest()
