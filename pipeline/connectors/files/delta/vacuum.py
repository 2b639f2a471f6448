"""Delete what a Delta table no longer needs, and what executors of earlier owners staged.

The retention protects readers of older versions, and writers whose commit is still under way. What was staged at an epoch below
the one that the log has for its lease, and was never committed, needs neither (`staged`). A claim deletes nothing, because a
table has all its data files in one folder, and to list that folder and the log's files takes too long for a claim.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from leasehold.pipeline.connectors.files.delta.record import ROOM, app_ids_in, name_under, record_in
from leasehold.pipeline.connectors.files.delta.staged import lease_of, outranked, staging_of
from leasehold.pipeline.connectors.files.delta.table import Table
from leasehold.pipeline.connectors.files.sink.storage import FilesDamaged, Storage


def vacuum_table(place: Storage, table: Table, *, retention_hours: int | None, dry_run: bool) -> list[str]:
    """Returns the names of the files. place: the table's. table: as of its last `refresh`. Raises FilesError, OSError.

    retention_hours: the table's if None. Otherwise all files are kept that long. The log forgets a removed file after the table's
    own retention, and then a staged file that was committed long ago looks like one that never was.
    """
    more = outranked_in(place, table) if retention_hours is None else []
    return table.vacuum(retention_hours=retention_hours, dry_run=dry_run, more=more)


def outranked_in(place: Storage, table: Table) -> list[str]:
    """Staged files that no commit names, now or ever. Reads only. Raises FilesError."""
    unnamed = table.unnamed()
    leases = {found.lease for name in unnamed if (found := staging_of(name))}
    return outranked(unnamed, _epochs(place, table, leases))


def _epochs(place: Storage, table: Table, leases: Collection[str]) -> dict[str, int]:
    """Lease -> the epoch that the log has for it.

    A claim that is a record alone does not count: it shuts out no earlier owner yet. A lease whose record is missing or damaged
    is left out: it may have moved since the table was read, and its files wait for the next vacuum.
    """
    epochs = {}
    for app_id in app_ids_in(place.names(ROOM)) if leases else ():
        if (lease := lease_of(app_id)) in leases and (number := table.number_of(app_id)) is not None:
            name = name_under(app_id, number)
            with suppress(FilesDamaged):
                if (content := place.get(name)) is not None:
                    epochs[lease] = record_in(content, name).epoch
    return epochs
