"""Settings of dead letters: where they are kept, and how many of them are too many."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from service.config.azure_credentials import POSTGRES_IDENTITY, check_postgres_identity
from service.config.eventhubs import ConsumerGroup
from service.config.section import Section, tag_of
from service.config.sinks import EventHubsSinkSettings, FilesSinkSettings
from service.config.types import Count, Dsn, FilePath, Share, Text


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
