"""Files as a sink: Parquet or JSON lines in a directory or a blob container, exactly once, and the reader of what counts.

`sink` writes, `snapshot` reads; between them `manifest` decides what counts, over a `storage` that is a `directory` or, in
`blobs`, a container. `entry` and `formats` are pure.
"""

from leasehold.pipeline.connectors.files.sink.dead_letters import FileLetters
from leasehold.pipeline.connectors.files.sink.directory import Directory
from leasehold.pipeline.connectors.files.sink.sink import FilesSink
from leasehold.pipeline.connectors.files.sink.snapshot import PartitionFiles, Snapshot, leftovers, snapshot_of
from leasehold.pipeline.connectors.files.sink.storage import FilesDamaged, FilesError, FilesUnavailable

__all__ = [
    "Directory",
    "FileLetters",
    "FilesDamaged",
    "FilesError",
    "FilesSink",
    "FilesUnavailable",
    "PartitionFiles",
    "Snapshot",
    "leftovers",
    "snapshot_of",
]
