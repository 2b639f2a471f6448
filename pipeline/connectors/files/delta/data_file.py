"""The data files of a Delta table: written by the host or by executors, before a commit names them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from leasehold.pipeline.connectors.files.delta.schema import fitted, stats_of
from leasehold.pipeline.connectors.files.delta.table import Added
from leasehold.pipeline.connectors.files.sink.formats import Compression, ordered, parquet
from leasehold.pipeline.connectors.files.sink.storage import FilesError, FilesRefused, Storage, put_again
from leasehold.pipeline.errors import SinkRejected, SinkUnavailable
from leasehold.pipeline.staging import StagedPart, Stager


def put_file(place: Storage, table: pa.Table, compression: Compression, unique: str) -> Added:
    """unique: text of the name that no other writer uses. Raises FilesError."""
    content = parquet(table, compression)
    name = f"part-{unique}.{compression}.parquet"
    put_again(place, name, content)  # no other writer uses this name: if it exists, it is ours
    return Added(name=name, bytes=len(content), stats=stats_of(table))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaStager(Stager):
    """Puts one file for each part to where the owner's commit can name it. prefix: of their names, as `staged` forms it."""

    place: Storage
    prefix: str
    columns: pa.Schema
    compression: Compression
    epoch: int
    start: str | None

    def stage(self, table: pa.Table, unique: str) -> StagedPart:
        rows = fitted(ordered(table), self.columns)
        try:
            file = put_file(self.place, rows, self.compression, f"{self.prefix}-{unique}")
        except FilesRefused as error:
            raise SinkRejected(str(error)) from error
        except FilesError as error:
            raise SinkUnavailable(str(error)) from error
        return StagedPart(epoch=self.epoch, start=self.start, name=file.name, rows=rows.num_rows, bytes=file.bytes)
