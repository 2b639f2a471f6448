"""Files: as a feed, as a sink, and for dead letters."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from leasehold.common.azure import storage_account_of
from leasehold.service.config.azure import StorageAccountSettings
from leasehold.service.config.messages import install_command
from leasehold.service.config.section import FeedContext, FeedSettings, LettersSettings, SinkSettings
from leasehold.service.config.types import NONE, FilePathOrNone, Glob, RecordBytes, Seconds, Text

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.leases.timing import Timing
    from leasehold.pipeline.connectors.files.delta import Location
    from leasehold.pipeline.connectors.files.sink.blobs import BlobContainer
    from leasehold.pipeline.connectors.files.sink.storage import Storage
    from leasehold.pipeline.dead_letters import LetterBox
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.pipeline.sink import Sink


class FilesFeed(FeedSettings):
    """CSV files or JSON lines. Each file is a partition, and each record an event."""

    type: Literal["files"] = Field(
        default="files", description="Every file is a partition, every record in it an event."
    )
    path: Glob = Field(description="Which files: a path with `*`, `?`, `[...]` and, for any directories, `**`.")
    format: Literal["csv", "jsonl"] | None = Field(
        default=None,
        description="CSV (RFC 4180: separated by commas) with a header, or JSON lines. By default from the path's ending: .csv,"
        " .jsonl or .ndjson.",
    )
    final_record: Literal["wait", "accept"] = Field(
        default="wait",
        description="What happens to a last record without a line end: it waits until it has one, or is accepted as it is.",
    )
    key: Text | None = Field(
        default=None, description="The column or field that is an event's key. By default events have none."
    )
    record_bytes_max: RecordBytes = Field(default=1024 * 1024, description="A larger record is malformed.")
    poll_interval_s: Seconds = Field(
        default=0.5, description="How often to look for new records. New files are found every `leases.balance_s`."
    )

    @model_validator(mode="after")
    def _has_a_format(self) -> FilesFeed:
        if self.format is None and not self.path.lower().endswith((".csv", ".jsonl", ".ndjson")):
            raise ValueError("the path's ending does not show the format: add `format: csv` or `format: jsonl`")
        return self

    def make(self, context: FeedContext) -> ChangeFeed:
        from leasehold.pipeline.connectors.files.feed import FilesChangeFeed, Reading

        return FilesChangeFeed(
            self.path,
            format=self.format,
            key=self.key,
            reading=Reading(
                accepts_unterminated=self.final_record == "accept",
                yields_malformed=context.yields_malformed,
                record_bytes_max=self.record_bytes_max,
            ),
            poll_interval_s=self.poll_interval_s,
            columns=context.columns,
            pipeline=context.pipeline,
        )


class FilesPlaceSettings(StorageAccountSettings, SinkSettings):
    """Where files are written."""

    path: FilePathOrNone = Field(
        default=NONE,
        description="A directory, created if missing: on a local disk, or on one that all hosts share and that supports hard"
        " links. Either this or `container`.",
    )
    container: Text | None = Field(default=None, description="A container of Azure Blob Storage, created if missing.")
    prefix: Text | None = Field(default=None, description="The beginning of all blobs' names, like a folder.")
    timeout_s: Seconds = Field(default=20.0, description="How long the storage account may take to answer.")
    compression: Literal["zstd", "snappy", "none"] = Field(
        default="zstd", description="The compression of Parquet. JSON lines are not compressed."
    )

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if (self.path is None) == (self.container is None):
            raise ValueError("needs either `path` or `container`: give one of them")
        of_blobs = self.model_fields_set & {"prefix", "timeout_s", *StorageAccountSettings.model_fields}
        if self.path is not None and of_blobs:
            raise ValueError(f"`{min(of_blobs)}` requires `container`, but `path` is set: remove one of them")
        if self.container is not None:
            storage_account_of(**self.account)
        return self

    @property
    def writes_files(self) -> bool:
        return True

    def make_place(self) -> Storage:
        if self.path is not None:
            from leasehold.pipeline.connectors.files.sink import Directory

            return Directory(self.path)
        return self._make_container()

    def _make_container(self) -> BlobContainer:
        from leasehold.pipeline.connectors.files.sink.blobs import BlobContainer

        account, container = storage_account_of(**self.account), str(self.container)
        return BlobContainer(account, container, prefix=self.prefix or "", timeout_s=self.timeout_s)

    def _make_files(self, format: Literal["parquet", "jsonl"]) -> Sink:
        from leasehold.pipeline.connectors.files.sink import FilesOutputSink

        return FilesOutputSink(self.make_place(), format=format, compression=self.compression)

    def _check_files(self, table: pa.Table, format: Literal["parquet", "jsonl"]) -> None:
        from leasehold.pipeline.connectors.files.sink.formats import encoded

        encoded(table, format)

    def _check_compression(self, format: str) -> None:
        if format == "jsonl" and "compression" in self.model_fields_set:
            raise ValueError("`compression` requires `format: parquet`: remove it")


class FilesSink(FilesPlaceSettings):
    """Parquet files, JSON lines or a Delta table, in a directory or in Azure Blob Storage, exactly once."""

    type: Literal["files"] = Field(
        default="files",
        description="Parquet or JSON lines in a directory or in Azure Blob Storage, exactly once: a manifest lists the"
        " files that count. Or a Delta table there.",
    )
    format: Literal["parquet", "jsonl", "delta"] = Field(
        default="parquet", description="Parquet, JSON lines, or a Delta table (files of Parquet, and Delta's own log)."
    )
    key_columns: tuple[Text, ...] = Field(
        default=(),
        description="With `format: delta`: a row replaces the table's row that has the same values in these columns. By"
        " default every row is appended.",
    )

    @model_validator(mode="after")
    def _has_a_format(self) -> FilesSink:
        self._check_compression(self.format)
        if self.format == "delta":
            if find_spec("deltalake") is None:
                raise ValueError(f"`format: delta` needs deltalake, which is not installed: {install_command('delta')}")
            self._check_container()
        elif self.key_columns:
            raise ValueError("`key_columns` requires `format: delta`: remove it")
        return self

    @property
    def writes_files(self) -> bool:
        return self.format != "delta"

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        if self.format != "delta":
            return self._make_files(self.format)
        from leasehold.pipeline.connectors.files.delta import DeltaSink

        place, location = self.make_table_place()
        return DeltaSink(place, location, key=self.key_columns, compression=self.compression)

    def make_table_place(self) -> tuple[Storage, Location]:
        """The table's place, and its location for deltalake, which works until the place is closed. For `format: delta` only."""
        from leasehold.pipeline.connectors.files.delta import container_location, location_of

        if self.path is not None:
            return self.make_place(), location_of(self.path)
        place, account = self._make_container(), storage_account_of(**self.account)
        has_identity = account.account_key is None and account.signature is None
        location = container_location(
            account,
            str(self.container),
            prefix=self.prefix or "",
            timeout_s=self.timeout_s,
            token=place.token if has_identity else None,
            read=place.get,
            delete=place.delete,
        )
        return place, location

    def _check_container(self) -> None:
        """Raises ValueError if the container cannot hold a Delta table with these settings."""
        if self.container is None:
            return
        from leasehold.pipeline.connectors.files.delta import check_prefix

        check_prefix(self.prefix or "")
        if self.ca_file is not None:
            raise ValueError(
                "`ca_file` does not apply to `format: delta`, because deltalake trusts the system's certificates alone: remove"
                " it, and add the certificates to the system's, or name them by SSL_CERT_FILE and REQUESTS_CA_BUNDLE"
            )

    def check_output(self, table: pa.Table) -> None:
        if self.format != "delta":
            self._check_files(table, self.format)
            return
        from leasehold.pipeline.connectors.files.delta import check_output

        check_output(table.schema, self.key_columns)


class FilesLetters(LettersSettings, FilesPlaceSettings):
    """Dead letters in files."""

    type: Literal["files"] = Field(
        default="files",
        description="Parquet or JSON lines in a directory or in Azure Blob Storage, as the sink `files` writes them.",
    )
    format: Literal["parquet", "jsonl"] = Field(default="parquet", description="Parquet, or JSON lines.")

    @model_validator(mode="after")
    def _has_a_format(self) -> FilesLetters:
        self._check_compression(self.format)
        return self

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        return self._make_files(self.format)

    def check_output(self, table: pa.Table) -> None:
        self._check_files(table, self.format)

    def make_box(self, pipeline: str, sink: SinkSettings, timing: Timing) -> LetterBox:
        from leasehold.pipeline.connectors.files.sink import FileLetters
        from leasehold.pipeline.dead_letters import LetterBox
        from leasehold.pipeline.dead_letters.merged_feed import MergedLetters

        feed = MergedLetters(FileLetters(self.make_place(), pipeline))
        return LetterBox(feed=feed, sink=self.make(timing), rows=lambda rows: rows)
