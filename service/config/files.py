"""Files: as a feed, as a sink, and for dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from leasehold.common.azure import storage_account_of
from service.config.section import FeedContext, FeedSettings, LettersSettings, SinkSettings, StorageAccount
from service.config.types import FilePath, Glob, RecordBytes, Seconds, Text

if TYPE_CHECKING:
    import pyarrow as pa

    from leases.timing import Timing
    from pipeline.connectors.files.sink.storage import Storage
    from pipeline.dead_letters import LetterBox
    from pipeline.feed import ChangeFeed
    from pipeline.sink import Sink


class FilesFeedSettings(FeedSettings):
    type: Literal["files"] = Field(description="Every file is a partition, every record in it an event.")
    path: Glob = Field(description="Which files: a path with `*`, `?`, `[...]` and, for any directories, `**`.")
    format: Literal["csv", "jsonl"] | None = Field(
        default=None,
        description="CSV (RFC 4180: separated by commas) with a header, or JSON lines. By default as the path ends: .csv,"
        " .jsonl or .ndjson.",
    )
    final_record: Literal["wait", "accept"] = Field(
        default="wait",
        description="What becomes of a last record without a line end: it is held back until it has one, or counts as it is.",
    )
    key: Text | None = Field(
        default=None, description="The column or field that is an event's key. By default events have none."
    )
    record_bytes_max: RecordBytes = Field(default=1024 * 1024, description="A larger record is malformed.")
    poll_interval_s: Seconds = Field(
        default=0.5, description="How often to look for new records. New files are found every `leases.balance_s`."
    )

    @model_validator(mode="after")
    def _has_a_format(self) -> FilesFeedSettings:
        if self.format is None and not self.path.lower().endswith((".csv", ".jsonl", ".ndjson")):
            raise ValueError("the path's ending does not show the format: add `format: csv` or `format: jsonl`")
        return self

    def make(self, context: FeedContext) -> ChangeFeed:
        from pipeline.connectors.files.feed import FilesFeed

        return FilesFeed(
            self.path,
            format=self.format,
            final_record=self.final_record,
            key=self.key,
            poll_interval_s=self.poll_interval_s,
            record_bytes_max=self.record_bytes_max,
            yields_malformed=context.yields_malformed,
            columns=context.columns,
            pipeline=context.pipeline,
        )


class FilesSinkSettings(StorageAccount, SinkSettings):
    type: Literal["files"] = Field(
        description="Parquet or JSON lines in a directory or in Azure Blob Storage, exactly once: a manifest lists the"
        " files that count."
    )
    path: FilePath | None = Field(
        default=None,
        description="A directory, created if missing: on a local disk, or on one that all hosts share and that has hard"
        " links. Either this or `container`.",
    )
    container: Text | None = Field(default=None, description="A container of Azure Blob Storage, created if missing.")
    prefix: Text | None = Field(default=None, description="What the names of all blobs begin with, like a folder.")
    timeout_s: Seconds = Field(default=20.0, description="How long the storage account may take to answer.")
    format: Literal["parquet", "jsonl"] = Field(default="parquet", description="Parquet, or JSON lines.")
    compression: Literal["zstd", "snappy", "none"] = Field(
        default="zstd", description="The compression of Parquet. JSON lines are not compressed."
    )

    @model_validator(mode="after")
    def _has_one_place(self) -> FilesSinkSettings:
        if (self.path is None) == (self.container is None):
            raise ValueError("needs either `path` or `container`: give one of them")
        of_blobs = self.model_fields_set & {"prefix", "timeout_s", *StorageAccount.model_fields}
        if self.path is not None and of_blobs:
            raise ValueError(f"`{min(of_blobs)}` requires `container`, but `path` is set: remove one of them")
        if self.format == "jsonl" and "compression" in self.model_fields_set:
            raise ValueError("`compression` requires `format: parquet`: remove it")
        if self.container is not None:
            storage_account_of(**self.account)
        return self

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from pipeline.connectors.files.sink import FilesSink

        return FilesSink(self.make_place(), format=self.format, compression=self.compression)

    def check_output(self, table: pa.Table) -> None:
        from pipeline.connectors.files.sink.formats import encoded

        encoded(table, self.format)

    @property
    def writes_files(self) -> bool:
        return True

    def make_place(self) -> Storage:
        if self.path is not None:
            from pipeline.connectors.files.sink import Directory

            return Directory(self.path)
        from pipeline.connectors.files.sink.blobs import BlobContainer

        account, container = storage_account_of(**self.account), str(self.container)
        return BlobContainer(account, container, prefix=self.prefix or "", timeout_s=self.timeout_s)


class FilesLettersSettings(LettersSettings, FilesSinkSettings):
    type: Literal["files"] = Field(
        description="Parquet or JSON lines in a directory or in Azure Blob Storage, as the sink `files` writes them."
    )

    def make_box(self, pipeline: str, sink: SinkSettings, timing: Timing) -> LetterBox:
        from pipeline.connectors.files.sink import FileLetters
        from pipeline.dead_letters import LetterBox
        from pipeline.dead_letters.merged_feed import MergedLetters

        feed = MergedLetters(FileLetters(self.make_place(), pipeline))
        return LetterBox(feed=feed, sink=self.make(timing), rows=lambda rows: rows)
