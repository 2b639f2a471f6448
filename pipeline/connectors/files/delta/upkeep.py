"""Upkeep of a Delta table: compact it, one process at a time, and delete what it no longer needs.

deltalake commits a compaction even if another one has replaced the same files meanwhile: each row would exist twice. Neither its
count of retries nor an application's number changes that.

The retention of a vacuum protects readers of older versions, and writers whose commit is still under way. What was staged at an
epoch below the one that the log has for its lease, and was never committed, needs neither (`staged`). A claim deletes nothing,
because a table has all its data files in one folder, and listing that folder and the log's files takes too long for a claim.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from leasehold.pipeline.connectors.files.delta.record import ROOM, app_ids_in, name_under, record_in
from leasehold.pipeline.connectors.files.delta.staged import lease_of, outranked, staging_of
from leasehold.pipeline.connectors.files.delta.table import Table
from leasehold.pipeline.connectors.files.sink.storage import FilesDamaged, FilesUnavailable, Storage

LOCK = "_leasehold/compaction"


@contextmanager
def exclusive_compaction(place: Storage, who: str) -> Iterator[None]:
    """who: the process, for the error that another one gets. Raises FilesError if another compaction runs, or was killed."""
    if not place.put(LOCK, who.encode()):
        other = (place.get(LOCK) or b"a process that has just ended").decode(errors="replace")[:200]
        raise FilesUnavailable(
            f"{place.identity}: another compaction is running ({other}), and two at once would double rows: wait for it. If it"
            f" was killed, delete '{place.locate(LOCK)}', and try again"
        )
    try:
        yield
    finally:
        place.delete(LOCK)


def compact_in_thread(table: Table, target_bytes: int | None) -> Mapping[str, Any]:
    """Call `Table.compact` on a thread: within a call of deltalake, the main thread could not handle signals."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(table.compact, target_bytes).result()


def vacuum_table(place: Storage, table: Table, *, retention_hours: int | None, dry_run: bool) -> list[str]:
    """Delete old files, and return their names. place: the table's. table: as of its last `refresh`. Raises FilesError, OSError.

    retention_hours: the table's if None. Otherwise all files are kept that long. The log forgets a removed file after the table's
    own retention, and then a staged file that was committed long ago looks like one that was not.
    """
    more = outranked_in(place, table) if retention_hours is None else []
    return table.vacuum(retention_hours=retention_hours, dry_run=dry_run, more=more)


def outranked_in(place: Storage, table: Table) -> list[str]:
    """Staged files that no commit names, now or ever. It only reads. Raises FilesError."""
    unnamed = table.unnamed()
    leases = {found.lease for name in unnamed if (found := staging_of(name))}
    return outranked(unnamed, _epochs(place, table, leases))


def _epochs(place: Storage, table: Table, leases: Collection[str]) -> dict[str, int]:
    """Lease -> the epoch that the log has for it.

    A claim that is only a record does not count: it shuts out no earlier owner yet. A lease whose record is missing or damaged
    is left out: the lease may have moved since the table was read, and its files wait for the next vacuum.
    """
    epochs = {}
    for app_id in app_ids_in(place.names(ROOM)) if leases else ():
        if (lease := lease_of(app_id)) in leases and (number := table.number_of(app_id)) is not None:
            name = name_under(app_id, number)
            with suppress(FilesDamaged):
                if (content := place.get(name)) is not None:
                    epochs[lease] = record_in(content, name).epoch
    return epochs
