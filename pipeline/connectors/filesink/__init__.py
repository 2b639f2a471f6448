"""Files as a sink: Parquet or JSON lines in a directory or a blob container, exactly once, and the reader of what counts.

`sink` writes, `snapshot` reads; between them `manifest` decides what counts, over a `place` that is a `directory` or, in
`blobs`, a container. `entry`, `folding`, `layout` and `formats` are pure.
"""

from pipeline.connectors.filesink.directory import Directory
from pipeline.connectors.filesink.errors import FilesDamaged, FilesError, FilesUnavailable
from pipeline.connectors.filesink.letters import FileLetters
from pipeline.connectors.filesink.sink import FilesSink
from pipeline.connectors.filesink.snapshot import PartitionFiles, Snapshot, leftovers, snapshot_of

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
