"""Settings of the sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, Tag, model_validator

from leasehold.common.azure import storage_account_of
from pipeline.limits import AsyncLimits
from service.config.azure import (
    IDENTITY,
    POSTGRES_IDENTITY,
    ConsumerGroup,
    CosmosAccount,
    EventHub,
    StorageAccount,
    check_postgres_identity,
)
from service.config.section import CUSTOM, Custom, Section, tag_of
from service.config.types import (
    Certificates,
    Connections,
    Count,
    Dsn,
    FilePath,
    Importable,
    Seconds,
    SecondsOrNone,
    Secret,
    Share,
    Text,
    Url,
)


class LogSinkSettings(Section):
    type: Literal["log"] = Field(description="An embedded log: partitioned files on a local disk, exactly once.")
    path: FilePath = Field(description="The log's directory. It is created where it is missing.")
    retention_s: Seconds | None = Field(
        default=None,
        description="Events older than this may be forgotten, by the wall clocks of the hosts that write. By default none are.",
    )
    retention_bytes: Count | None = Field(
        default=None, description="What each partition keeps; older events beyond it may be forgotten. By default all."
    )


class PostgresSinkSettings(Section):
    type: Literal["postgres"] = Field(description="PostgreSQL, exactly once: output and position in one transaction.")
    dsn: Dsn = Field(description="How to connect: a postgresql:// address or key=value pairs.")
    identity: Text | None = Field(default=None, description=POSTGRES_IDENTITY)
    setup: Text | None = Field(
        default=None, description="SQL to run when the host starts. It has to be repeatable (IF NOT EXISTS)."
    )
    merge: Text | None = Field(
        default=None,
        description="One INSERT, UPDATE, DELETE or MERGE that reads this batch's output as table `batch`. Touch rows in the order"
        " of their keys (ORDER BY). Either this or `table`.",
    )
    table: Text | None = Field(default=None, description="A table with the output's columns, `name` or `schema.name`.")
    mode: Literal["append", "upsert"] = Field(
        default="append", description="What `table` gets: new rows, or rows replaced by their `key`."
    )
    key: tuple[Text, ...] = Field(
        default=(), description="The columns of a unique index of `table`, for `mode: upsert`."
    )
    schema_name: Text = Field(
        default="public", alias="schema", description="The schema of the tables of positions, which are created there."
    )
    history: bool = Field(
        default=False,
        description="Whether every batch is noted in `leasehold_history`. Leasehold never deletes from it.",
    )
    connections_max: Connections = Field(
        default=4, description="How many connections this host opens for this sink at most."
    )

    @model_validator(mode="after")
    def _has_one_target(self) -> PostgresSinkSettings:
        if (self.merge is None) == (self.table is None):
            raise ValueError("needs either `merge` or `table`: give one of them")
        if self.merge is not None and (self.key or "mode" in self.model_fields_set):
            raise ValueError("`mode` and `key` go with `table`, and `merge` replaces both: remove them")
        if (self.mode == "upsert") != bool(self.key):
            raise ValueError("`mode: upsert` and `key` go together: give both, or neither")
        check_postgres_identity(self.dsn, self.identity)
        return self


class EventHubsSinkSettings(EventHub):
    type: Literal["eventhubs"] = Field(
        description="An event hub, exactly once: idempotent publishing, a marker on every event."
    )
    consumer_group: ConsumerGroup = Field(
        description="In which the sink reads the end of a partition. No reader with an epoch may use it, as the feed"
        " `eventhubs` does.",
    )
    timeout_s: Seconds = Field(default=20.0, description="How long one try of a send, or one answer, may take.")

    @model_validator(mode="before")
    @classmethod
    def _has_a_group(cls, given: Any) -> Any:
        is_missing = isinstance(given, dict) and "consumer_group" not in given
        if is_missing and cls.model_fields["consumer_group"].is_required():
            raise ValueError(
                "needs `consumer_group`: the sink reads the end of the hub's partitions in it, which fails while a feed reads"
                " there with an epoch. Create a consumer group that no feed uses, and set, for example,"
                " `consumer_group: leasehold-sink`"
            )
        return given


class FilesSinkSettings(StorageAccount):
    type: Literal["files"] = Field(
        description="Parquet or JSON lines in a directory or in Azure Blob Storage, exactly once: a manifest lists the"
        " files that count."
    )
    path: FilePath | None = Field(
        default=None,
        description="A directory, made where it is missing: on a local disk, or on one that all hosts share and that has hard"
        " links. Either this or `container`.",
    )
    container: Text | None = Field(
        default=None, description="A container of Azure Blob Storage, made where it is missing."
    )
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
            raise ValueError(f"`{min(of_blobs)}` goes with `container`, and there is a `path`: remove it")
        if self.format == "jsonl" and "compression" in self.model_fields_set:
            raise ValueError("`compression` goes with `format: parquet`: remove it")
        if self.container is not None:
            storage_account_of(**self.account)
        return self


class PythonSinkSettings(Section):
    type: Literal["python"] = Field(description="An observer of yours, one per lease; every batch at least once.")
    handler: Importable = Field(description="What makes the observers: `module:factory`.")
    checkpoint_s: SecondsOrNone = Field(
        default=0.0,
        description="The longest time between checkpoints, each of which is a write to the lease. A crash repeats what"
        " was processed since the last one. 0: a checkpoint after every batch, before the next is sent.",
    )


class _Buffering(Section):
    """For each partition separately; see docs/sinks.md."""

    batch_entries_max: Count = Field(
        default=AsyncLimits().batch_entries_max, description="Entries in one request at most."
    )
    batch_bytes_max: Count = Field(default=AsyncLimits().batch_bytes_max, description="Bytes in one request at most.")
    entry_bytes_max: Count = Field(
        default=AsyncLimits().entry_bytes_max,
        description="A larger entry stops its partition; at most `batch_bytes_max`.",
    )
    in_flight_max: Count = Field(
        default=AsyncLimits().in_flight_max, description="Requests of one partition at a time, while all goes well."
    )
    buffered_entries_max: Count = Field(
        default=AsyncLimits().buffered_entries_max,
        description="Entries of one partition that are taken and not acknowledged without a gap: then no more are read."
        " At least `batch_entries_max`.",
    )
    buffer_age_max_s: SecondsOrNone = Field(
        default=AsyncLimits().buffer_age_max_s, description="How long an entry waits for its request to fill up."
    )
    request_timeout_s: Seconds = Field(
        default=AsyncLimits().request_timeout_s, description="A request without an answer for so long is sent again."
    )

    @property
    def limits(self) -> AsyncLimits:
        return AsyncLimits(**{name: getattr(self, name) for name in AsyncLimits.__dataclass_fields__})

    @model_validator(mode="after")
    def _fits_together(self) -> _Buffering:
        if problems := list(self.limits.problems()):
            raise ValueError("\n".join(problems))
        return self


class HttpSinkSettings(_Buffering):
    type: Literal["http"] = Field(description="An HTTP endpoint that takes JSON by POST; every row at least once.")
    url: Url = Field(description="Where to, like https://example.com/events. Its query is kept secret.")
    headers: Mapping[str, Secret] = Field(
        default={}, description="Headers of every request, like `Authorization`. Their values are kept secret."
    )
    format: Literal["json", "lines"] = Field(
        default="json", description="A request's body: a JSON array, or a JSON value a line."
    )
    content: Literal["row", "body"] = Field(
        default="row", description="An entry: all columns as a JSON object, or the JSON in the column `body` as it is."
    )
    results: Literal["whole", "items"] = Field(
        default="whole",
        description="What an answer of 2xx means: all entries are taken, or see the status of each in its body.",
    )
    key_field: Text | None = Field(
        default=None,
        description="With `content: row`, a field more: the entry's idempotency key. By default there is none.",
    )
    order_by: Text | None = Field(
        default=None, description="The column whose rows with one value keep their order. By default none do."
    )
    ca_file: Certificates | None = Field(
        default=None, description="Certificates (PEM) to trust instead of the system's."
    )

    @model_validator(mode="after")
    def _has_one_content(self) -> HttpSinkSettings:
        if self.key_field is not None and self.content == "body":
            raise ValueError("`key_field` goes with `content: row`, and bodies are sent as they are: remove it")
        return self


class CosmosSinkSettings(CosmosAccount, _Buffering):
    type: Literal["cosmos"] = Field(
        description="A Cosmos DB container, whose documents are upserted, patched or deleted; every row at least once."
    )
    key: Secret | None = Field(
        default=None, description="The account's key. By default azure-identity provides the credentials."
    )
    identity: Text | None = Field(default=None, description=IDENTITY + "Cosmos DB Built-in Data Contributor.")
    database: Text = Field(description="The database's name.")
    container: Text = Field(description="The container's name. It has to be there.")
    content: Literal["row", "body"] = Field(
        default="row", description="A document: all columns but `operation`, or the JSON object in the column `body`."
    )
    operation: Text = Field(
        default="operation",
        description="The column with the operation for a row's document: null, `create`, `replace` or `upsert`,"
        " `patch`, `delete`. Without such a column all are upserted.",
    )
    patch_missing: Literal["stop", "skip"] = Field(
        default="stop", description="What to do about a patch whose document is not there."
    )
    batch_entries_max: Count = Field(default=25, description="Documents written at a time by one request's worth.")
    batch_bytes_max: Count = Field(default=8 * 1024 * 1024, description="Bytes in one request's worth at most.")
    entry_bytes_max: Count = Field(
        default=2 * 1024 * 1024, description="A larger document stops its partition; at most `batch_bytes_max`."
    )
    in_flight_max: Count = Field(
        default=4, description="Requests' worth of one partition at a time, while all goes well."
    )
    buffered_entries_max: Count = Field(
        default=5_000,
        description="Documents of one partition that are taken and not acknowledged without a gap: then no more are read."
        " At least `batch_entries_max`.",
    )


class CustomSinkSettings(Custom):
    type: Importable = Field(description="A `Sink` to import. All other keys are its arguments.")


AnySink = Annotated[
    Annotated[LogSinkSettings, Tag("log")]
    | Annotated[PostgresSinkSettings, Tag("postgres")]
    | Annotated[EventHubsSinkSettings, Tag("eventhubs")]
    | Annotated[FilesSinkSettings, Tag("files")]
    | Annotated[PythonSinkSettings, Tag("python")]
    | Annotated[HttpSinkSettings, Tag("http")]
    | Annotated[CosmosSinkSettings, Tag("cosmos")]
    | Annotated[CustomSinkSettings, Tag(CUSTOM)],
    tag_of(None, "log", "postgres", "eventhubs", "files", "python", "http", "cosmos"),
]


# Settings of dead letters: where they are kept, and how many of them are too many.


class _Letters(Section):
    share_max: Share = Field(
        default=0.1,
        description="A partition stops where a larger share of its last `share_events` events is dead. 1: it never does.",
    )
    share_events: Count = Field(default=1000, description="The number of last events that `share_max` refers to.")


class PostgresLettersSettings(_Letters):
    type: Literal["postgres"] = Field(
        description="The table `leasehold_dead_letters`. In the sink's own database: in the transaction of the batch."
    )
    dsn: Dsn | None = Field(
        default=None, description="Another database than that of the sink `postgres`, which is the default."
    )
    identity: Text | None = Field(default=None, description=POSTGRES_IDENTITY)
    schema_name: Text | None = Field(
        default=None,
        alias="schema",
        description="The schema of the table, which is created there. By default the sink's, or public.",
    )

    @model_validator(mode="after")
    def _is_one_place(self) -> PostgresLettersSettings:
        if self.schema_name is not None and self.dsn is None:
            raise ValueError("`schema` goes with `dsn`: beside the sink's positions there is one table for all")
        if self.identity is not None and self.dsn is None:
            raise ValueError("`identity` goes with `dsn`: in the sink's database, letters use the sink's")
        if self.dsn is not None:
            check_postgres_identity(self.dsn, self.identity)
        return self


class LogLettersSettings(_Letters):
    type: Literal["log"] = Field(description="An embedded log, on a local disk.")
    path: FilePath = Field(description="Its directory, with nothing but dead letters in it.")


class FilesLettersSettings(_Letters, FilesSinkSettings):
    type: Literal["files"] = Field(
        description="Parquet or JSON lines in a directory or in Azure Blob Storage, as the sink `files` writes them."
    )


class EventHubsLettersSettings(_Letters, EventHubsSinkSettings):
    type: Literal["eventhubs"] = Field(
        description="An event hub, best with nothing but dead letters in it, which it keeps for no longer than its retention."
    )
    consumer_group: ConsumerGroup = Field(
        default="$Default",
        description="The consumer group in which letters are read. It must not have readers with an epoch, such as the"
        " feed `eventhubs`.",
    )


AnyLetters = Annotated[
    Annotated[PostgresLettersSettings, Tag("postgres")]
    | Annotated[LogLettersSettings, Tag("log")]
    | Annotated[FilesLettersSettings, Tag("files")]
    | Annotated[EventHubsLettersSettings, Tag("eventhubs")],
    tag_of(None, "postgres", "log", "files", "eventhubs", is_open=False),
]
