"""All settings: frozen values, each with its default and its meaning. They come from one YAML file by `service.config`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from leases.timing import Timing
from pipeline.batch import BatchLimits
from pipeline.budget import BYTES_MAX
from service.setting_types import (
    Conf,
    Connections,
    Count,
    Dsn,
    FilePath,
    Glob,
    HostName,
    Importable,
    LeaseSeconds,
    Loopback,
    Memory,
    PipelineName,
    Port,
    ProcessorName,
    RecordBytes,
    Seconds,
    SecondsOrNone,
    Secret,
    StartAt,
    Text,
)

CUSTOM = "module:Class"
"""Stands for every `type` that names a class of somebody else's."""


class Section(BaseModel):
    """What all sections have in common: nothing unknown, nothing changes, nothing infinite."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, validate_default=True
    )


class _Custom(Section):
    """Other keys than those named here are arguments of the class."""

    model_config = ConfigDict(extra="allow")

    @property
    def options(self) -> Mapping[str, Any]:
        return dict(self.model_extra or {})

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        """Without the values of `options`, which may be secrets."""
        return [(name, "..." if name in self.options else value) for name, value in super().__repr_args__()]


class LeaseSettings(Section):
    duration_s: LeaseSeconds = Field(
        default=Timing().duration_s, description="How long a lease lasts that its owner does not renew."
    )
    renew_s: LeaseSeconds = Field(default=Timing().renew_s, description="The longest time between two renewals.")
    balance_s: LeaseSeconds = Field(
        default=Timing().balance_s, description="The longest time between two looks at all leases; at most `renew_s`."
    )
    call_timeout_s: Seconds | None = Field(
        default=None,
        description="How long one call to the lease store may take. By default a sixth of `duration_s`, at most 5.",
    )
    margin_s: SecondsOrNone | None = Field(
        default=None,
        description="How long before its lease expires an owner stops sending; it covers clocks of different speed."
        " By default a twelfth of `duration_s`, at most 5.",
    )

    @property
    def timing(self) -> Timing:
        return Timing(
            duration_s=self.duration_s,
            renew_s=self.renew_s,
            balance_s=self.balance_s,
            call_timeout_s=min(5.0, self.duration_s / 6) if self.call_timeout_s is None else self.call_timeout_s,
            margin_s=min(5.0, self.duration_s / 12) if self.margin_s is None else self.margin_s,
        )

    @model_validator(mode="after")
    def _fits(self) -> LeaseSettings:
        if problems := self.timing.problems():
            raise ValueError("\n".join(problems))
        return self


class SqliteLeases(LeaseSettings):
    type: Literal["sqlite"] = Field(
        default="sqlite", description="A file on a local disk, for the processes of one machine."
    )
    path: FilePath = Field(default=Path("leases.db"), description="The file. It is created where it is missing.")


class CosmosLeases(LeaseSettings):
    type: Literal["cosmos"] = Field(
        description="A container in Cosmos DB, for hosts anywhere; leases of Cosmos feeds as the .NET processor keeps them."
    )
    endpoint: Text | None = Field(
        default=None, description="The account's address, like https://account.documents.azure.com."
    )
    key: Secret | None = Field(
        default=None, description="The account's key. By default azure-identity says who we are."
    )
    connection_string: Secret | None = Field(
        default=None, description="Instead of `endpoint` and `key`, as the portal shows it."
    )
    identity: Text | None = Field(
        default=None,
        description="Instead of a key: `default` for whoever azure-identity finds this process to be, or the client id of a"
        " managed identity. It needs the role Cosmos DB Built-in Data Contributor.",
    )
    database: Text = Field(description="The database's name.")
    container: Text = Field(
        default="leases",
        description="The container's name. It is made where it is missing and we may, with the partition key /id.",
    )
    ca_file: FilePath | None = Field(
        default=None, description="Certificates (PEM) to trust instead of the system's, for an emulator with its own."
    )

    @model_validator(mode="after")
    def _reaches(self) -> CosmosLeases:
        from pipeline.connectors.cosmos import account_of  # here, so that only who uses it waits for its SDK

        account_of(**self.account)
        return self

    @property
    def account(self) -> dict[str, str | None]:
        """How to reach it, secrets and all."""
        key, connection_string = (
            secret.get_secret_value() if secret is not None else None for secret in (self.key, self.connection_string)
        )
        is_anybody = self.identity is None and key is None and connection_string is None
        return {
            "endpoint": self.endpoint,
            "key": key,
            "connection_string": connection_string,
            "identity": "default" if is_anybody else self.identity,
        }


class MemoryLeases(LeaseSettings):
    type: Literal["memory"] = Field(
        default="memory", description="This process's memory: nothing is shared, nothing survives."
    )


class CustomLeases(LeaseSettings, _Custom):
    type: Importable = Field(
        description="A `LeaseStore` to import. All keys that are not named here are its arguments."
    )


class HostSettings(Section):
    name: HostName | None = Field(
        default=None,
        description="This host's name among the others. It has to be its own, and to stay the same when the process is started"
        " again, so that it takes its leases back at once. By default the machine's name (a pod's name), followed by `-2`,"
        " `-3`, ... where other processes on this machine have it already.",
    )
    leases_max: Count | None = Field(
        default=None, description="How many leases this host takes at most. By default no limit."
    )
    buffer_bytes_max: Count = Field(
        default=BYTES_MAX,
        description="How much of what is read and not delivered yet this host holds, over all partitions. A partition that"
        " holds nothing may read a page (at most 4 MiB, or one event) whatever the others hold.",
    )
    stop_timeout_s: Seconds = Field(
        default=25.0,
        description="How long a stop may take to finish, checkpoint and release; below the grace of whoever sends SIGTERM.",
    )


class SparkSettings(Section):
    master: Text = Field(
        default="local[*]", description="Spark's master URL. `local[*]`: inside this process, on all cores."
    )
    remote: Text | None = Field(
        default=None, description="A Spark Connect server, like sc://spark:15002, instead of `master`."
    )
    driver_memory: Memory = Field(default="1g", description="The heap of Spark's driver: a number with k, m, g or t.")
    conf: Conf = Field(default={}, description="More of Spark's own settings, by their names. They win over ours.")

    @model_validator(mode="after")
    def _is_one_place(self) -> SparkSettings:
        if self.remote and "master" in self.model_fields_set:
            raise ValueError("has both `master` and `remote`, and Spark runs in one place: keep one of them")
        return self


class ApiSettings(Section):
    enabled: bool = Field(default=True, description="Whether this host serves the REST API.")
    host: Loopback = Field(default="127.0.0.1", description="The address to listen on; loopback only.")
    port: Port = Field(default=8080, description="The port to listen on. 0: a free one, which the log names.")


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="What is logged: this and what is worse."
    )
    format: Literal["text", "json"] = Field(default="text", description="Lines for people, or one JSON object a line.")
    file: FilePath | None = Field(default=None, description="A file to append to. By default standard error.")


class _Feed(Section):
    start: StartAt = Field(
        default="earliest",
        description="Where a partition begins that has no lease yet: `earliest`, `latest`, or a time like 2026-01-31T12:00:00Z.",
    )


class FilesFeedSettings(_Feed):
    type: Literal["files"] = Field(description="Every file is a partition, every record in it an event.")
    path: Glob = Field(description="Which files: a path with `*`, `?`, `[...]` and, for any directories, `**`.")
    format: Literal["csv", "jsonl"] | None = Field(
        default=None,
        description="CSV with a header, or JSON lines. By default as the path ends: .csv, .jsonl or .ndjson.",
    )
    final_record: Literal["wait", "accept"] = Field(
        default="wait",
        description="What becomes of a last record without a line end: it is held back until it has one, or counts as it is.",
    )
    key: Text | None = Field(
        default=None, description="The column or field that is an event's key. By default events have none."
    )
    record_bytes_max: RecordBytes = Field(default=1024 * 1024, description="A larger record is malformed.")
    poll_interval_s: Seconds = Field(default=0.5, description="How often to look for new files and records.")

    @model_validator(mode="after")
    def _has_a_format(self) -> FilesFeedSettings:
        if self.format is None and not self.path.lower().endswith((".csv", ".jsonl", ".ndjson")):
            raise ValueError("the path's ending does not tell the format: say `format: csv` or `format: jsonl`")
        return self


class LogFeedSettings(_Feed):
    type: Literal["log"] = Field(description="An embedded log, as the sink `log` writes it.")
    path: FilePath = Field(description="The log's directory.")


class CosmosFeedSettings(_Feed):
    type: Literal["cosmos"] = Field(
        description="The change feed of a Cosmos DB container; each of its physical ranges is a partition."
    )
    endpoint: Text | None = Field(
        default=None, description="The account's address, like https://account.documents.azure.com."
    )
    key: Secret | None = Field(default=None, description="The account's key, a read-only one will do.")
    connection_string: Secret | None = Field(
        default=None, description="Instead of `endpoint` and `key`, as the portal shows it."
    )
    identity: Text | None = Field(
        default=None,
        description="Instead of a key: `default` for whoever azure-identity finds this process to be, or the client id of a"
        " managed identity. It needs the role Cosmos DB Built-in Data Reader.",
    )
    database: Text = Field(description="The database's name.")
    container: Text = Field(description="The container's name.")
    mode: Literal["latest", "all_versions"] = Field(
        default="latest",
        description="What is told: of each changed document its latest version, or all versions and deletes (from now on:"
        " `start: latest`).",
    )
    page_items_max: Count = Field(
        default=1000,
        description="The most documents to ask for at once; halved where the account does not answer in time.",
    )
    poll_interval_s: Seconds = Field(default=1.0, description="How often to look for changes where there were none.")
    timeout_s: Seconds = Field(default=20.0, description="How long one request may take.")
    processor_name: ProcessorName | None = Field(
        default=None,
        description="What the leases are named after where they are kept in Cosmos DB too, as in .NET and in KEDA: take the name"
        " of a .NET processor to take over its leases. By default the pipeline's name.",
    )

    @model_validator(mode="after")
    def _fits(self) -> CosmosFeedSettings:
        from pipeline.connectors.cosmos import account_of  # here, so that only who uses it waits for its SDK

        account_of(**self.account)
        if self.mode == "all_versions" and self.start != "latest":
            raise ValueError("`mode: all_versions` is kept from now on alone: say `start: latest`")
        return self

    @property
    def account(self) -> dict[str, str | None]:
        """How to reach it, secrets and all."""
        key, connection_string = (
            secret.get_secret_value() if secret is not None else None for secret in (self.key, self.connection_string)
        )
        return {
            "endpoint": self.endpoint,
            "key": key,
            "connection_string": connection_string,
            "identity": self.identity,
        }


class CustomFeedSettings(_Feed, _Custom):
    type: Importable = Field(
        description="A `ChangeFeed` to import. All keys that are not named here are its arguments."
    )


class LogSinkSettings(Section):
    type: Literal["log"] = Field(description="An embedded log: partitioned files on a local disk, exactly once.")
    path: FilePath = Field(description="The log's directory. It is created where it is missing.")
    retention_s: Seconds | None = Field(
        default=None, description="Events older than this may be forgotten. By default none are."
    )
    retention_bytes: Count | None = Field(
        default=None, description="What each partition keeps; older events beyond it may be forgotten. By default all."
    )


class PostgresSinkSettings(Section):
    type: Literal["postgres"] = Field(description="PostgreSQL, exactly once: output and position in one transaction.")
    dsn: Dsn = Field(description="How to connect: a postgresql:// address or key=value pairs.")
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
        default="public", alias="schema", description="Where the tables of positions are, and are created."
    )
    history: bool = Field(
        default=False, description="Whether every batch is noted in `leasehold_history`. Nobody deletes there but you."
    )
    connections_max: Connections = Field(
        default=4, description="How many connections this host opens for this sink at most."
    )

    @model_validator(mode="after")
    def _has_one_target(self) -> PostgresSinkSettings:
        if (self.merge is None) == (self.table is None):
            raise ValueError("needs either `merge` or `table`: give one of them")
        if self.merge is not None and (self.key or "mode" in self.model_fields_set):
            raise ValueError("`mode` and `key` go with `table`, and `merge` says it all: remove them")
        if (self.mode == "upsert") != bool(self.key):
            raise ValueError("`mode: upsert` and `key` go together: give both, or neither")
        return self


class PythonSinkSettings(Section):
    type: Literal["python"] = Field(description="An observer of yours, one per lease; every batch at least once.")
    handler: Importable = Field(description="What makes the observers: `module:factory`.")


class CustomSinkSettings(_Custom):
    type: Importable = Field(description="A `Sink` to import. All other keys are its arguments.")


def _tag(default: str | None, *known: str) -> Discriminator:
    def tag(value: object) -> str | None:
        name = value.get("type", default) if isinstance(value, Mapping) else getattr(value, "type", None)
        return str(name) if name in known else CUSTOM if isinstance(name, str) and ":" in name else None

    return Discriminator(
        tag,
        custom_error_type="unknown_type",
        custom_error_message=f"{', '.join(known)}, or a class to import like package.module:Class",
    )


AnyLeases = Annotated[
    Annotated[SqliteLeases, Tag("sqlite")]
    | Annotated[CosmosLeases, Tag("cosmos")]
    | Annotated[MemoryLeases, Tag("memory")]
    | Annotated[CustomLeases, Tag(CUSTOM)],
    _tag("sqlite", "sqlite", "cosmos", "memory"),
]
AnyFeed = Annotated[
    Annotated[FilesFeedSettings, Tag("files")]
    | Annotated[LogFeedSettings, Tag("log")]
    | Annotated[CosmosFeedSettings, Tag("cosmos")]
    | Annotated[CustomFeedSettings, Tag(CUSTOM)],
    _tag(None, "files", "log", "cosmos"),
]
AnySink = Annotated[
    Annotated[LogSinkSettings, Tag("log")]
    | Annotated[PostgresSinkSettings, Tag("postgres")]
    | Annotated[PythonSinkSettings, Tag("python")]
    | Annotated[CustomSinkSettings, Tag(CUSTOM)],
    _tag(None, "log", "postgres", "python"),
]


class PipelineSettings(Section):
    name: PipelineName = Field(
        description="Its own name, under which leases and positions are kept: do not change it later."
    )
    feed: AnyFeed = Field(description="Where events come from.")
    event_schema: Text | None = Field(
        default=None,
        alias="schema",
        description="Columns to parse from the JSON body, as in SQL's CREATE TABLE; NOT NULL is honoured.",
    )
    sql: Text | None = Field(
        default=None, description="The transform: a SELECT over `events` that keeps the column `partition`."
    )
    function: Importable | None = Field(
        default=None,
        description="The transform as Python, `module:function`, from DataFrame to DataFrame. Either this, `sql` or none.",
    )
    sink: AnySink = Field(description="Where output goes.")
    batch_events_max: Count = Field(
        default=BatchLimits().events_max,
        description="A batch closes when it holds this many events, or one of the next two says so.",
    )
    batch_bytes_max: Count = Field(
        default=BatchLimits().bytes_max, description="A batch closes when it holds this many bytes."
    )
    batch_age_max_s: SecondsOrNone = Field(
        default=BatchLimits().age_max_s,
        description="A batch closes this long after its first event. 0: as soon as the one before it has been transformed.",
    )
    batch_timeout_s: Seconds = Field(
        default=300.0, description="A batch that makes no progress for this long is cancelled, and its lease released."
    )
    buffer_bytes_max: Count = Field(
        default=32 * 1024 * 1024, description="What is read ahead per partition; at least `batch_bytes_max`."
    )

    @model_validator(mode="after")
    def _fits(self) -> PipelineSettings:
        if self.sql is not None and self.function is not None:
            raise ValueError("has both `sql` and `function`: keep one of them")
        if self.buffer_bytes_max < self.batch_bytes_max:
            raise ValueError(
                f"buffer_bytes_max ({self.buffer_bytes_max}) is below batch_bytes_max ({self.batch_bytes_max}), so that no"
                " batch could fill up: raise the one, or lower the other"
            )
        return self


class Settings(Section):
    leases: AnyLeases = Field(default=SqliteLeases(), description="Where leases are kept, and how long they last.")
    host: HostSettings = Field(default=HostSettings(), description="This process.")
    spark: SparkSettings = Field(default=SparkSettings(), description="Where transforms run.")
    api: ApiSettings = Field(default=ApiSettings(), description="The REST API of this host.")
    log: LogSettings = Field(default=LogSettings(), description="What is logged, how and where.")
    pipelines: Annotated[tuple[PipelineSettings, ...], Field(min_length=1)] = Field(
        description="What is processed, each on its own. At least one."
    )
