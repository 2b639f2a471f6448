"""The names of files that executors stage for a Delta table, and which of them can never count. Pure.

    part-{lease}-{epoch}-{from}-{unique}.zstd.parquet

`lease` and `from` are digests: of the lease's application in the table's log, and of the position where the batch begins.

A commit is based on a version of the table at which its lease has the number that its owner knows. So once the log has a claim
of a higher epoch, no commit of a lower one can follow, however late it arrives. A staged file of a lower epoch that the log does
not name by then can never count, and no clock is needed to prove it. If the log has named the file and removed it again, readers
of older versions may still need it: only the table's retention ends that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from leasehold.pipeline.connectors.files.sink.entry import EPOCH_DIGITS

STEM = rf"[0-9a-f]{{16}}-\d{{{EPOCH_DIGITS}}}-[0-9a-f]{{16}}-[0-9a-f]{{32}}"
"""The pattern of what a name has between `part-` and the compression."""
_STAGED = re.compile(rf"part-(?={STEM}\.)(?P<lease>\w+)-(?P<epoch>\d+)-\w+-\w+\.\w+\.parquet")


class Staging(NamedTuple):
    """Lease and epoch of a staged file, by its name. lease: as `lease_of` returns it."""

    lease: str
    epoch: int


def lease_of(app_id: str) -> str:
    """A lease, as it is written in names."""
    return _digest(app_id)


def prefix_of(app_id: str, epoch: int, start: str | None) -> str:
    """What the names of one batch's files have after `part-`. start: where the batch begins."""
    return f"{lease_of(app_id)}-{epoch:0{EPOCH_DIGITS}d}-{_digest(repr(start))}"


def staging_of(name: str) -> Staging | None:
    """None for other files, and for those in folders below the table's own."""
    found = _STAGED.fullmatch(name)
    return Staging(found["lease"], int(found["epoch"])) if found else None


def outranked(names: Iterable[str], epochs: Mapping[str, int]) -> list[str]:
    """Staged files of a lower epoch than the log has for their lease. names: files that the log neither names nor has removed.

    epochs: lease -> its epoch, as of the same version of the table or an earlier one.
    """
    return [name for name in names if (found := staging_of(name)) and found.epoch < epochs.get(found.lease, 0)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
