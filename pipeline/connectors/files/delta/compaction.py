"""One compaction of a table at a time.

deltalake commits a compaction also if another one has replaced the same files meanwhile: each row would be there twice. Neither
its count of retries nor an application's number changes that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from leasehold.pipeline.connectors.files.delta.table import Table
from leasehold.pipeline.connectors.files.sink.storage import FilesUnavailable, Storage

LOCK = "_leasehold/compaction"


@contextmanager
def exclusive_compaction(place: Storage, who: str) -> Iterator[None]:
    """who: the process, for the error that another one gets. Raises FilesError: another compaction runs, or was killed."""
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
    """As `Table.compact`. The main thread handles signals meanwhile, which it could not do within a call of deltalake."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(table.compact, target_bytes).result()
