"""Settings of the sinks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from service.setting_types import Connections, Count, Dsn, FilePath, Importable, Seconds, SecondsOrNone, Text
from service.settings.section import CUSTOM, Custom, Section, tag_of


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
    checkpoint_s: SecondsOrNone = Field(
        default=0.0,
        description="How long batches may go without a checkpoint, each of which is a write to the lease: what was processed"
        " since the last one comes again after a crash. 0: every batch is kept before the next is sent.",
    )


class CustomSinkSettings(Custom):
    type: Importable = Field(description="A `Sink` to import. All other keys are its arguments.")


AnySink = Annotated[
    Annotated[LogSinkSettings, Tag("log")]
    | Annotated[PostgresSinkSettings, Tag("postgres")]
    | Annotated[PythonSinkSettings, Tag("python")]
    | Annotated[CustomSinkSettings, Tag(CUSTOM)],
    tag_of(None, "log", "postgres", "python"),
]
