"""Delta Lake as a format of the sink `files`: rows and positions in one commit of the table's log, exactly once.

`sink` writes through a `committer`, which makes one commit of what several partitions have ready. `table` has what is used of
deltalake, for a directory or, with `container`, for Azure Blob Storage. `upkeep` compacts a table, and deletes what no commit can
name. `record`, `schema`, `staged` and `protocol` are pure.
"""

from leasehold.pipeline.connectors.files.delta.container import check_prefix, container_location
from leasehold.pipeline.connectors.files.delta.schema import check_output
from leasehold.pipeline.connectors.files.delta.sink import DeltaSink
from leasehold.pipeline.connectors.files.delta.table import Location, Table, location_of
from leasehold.pipeline.connectors.files.delta.upkeep import compact_in_thread, exclusive_compaction, vacuum_table

__all__ = [
    "DeltaSink",
    "Location",
    "Table",
    "check_output",
    "check_prefix",
    "compact_in_thread",
    "container_location",
    "exclusive_compaction",
    "location_of",
    "vacuum_table",
]
