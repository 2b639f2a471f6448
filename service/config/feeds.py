"""Settings of the feeds, each with how its source is reached."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from pipeline.errors import FeedError
from service.config.azure import ConsumerGroup, CosmosAccount, EventHub
from service.config.section import CUSTOM, Custom, Section, tag_of
from service.config.types import (
    Conf,
    Count,
    FilePath,
    Glob,
    Importable,
    Prefetch,
    ProcessorName,
    RecordBytes,
    Seconds,
    StartAt,
    Text,
)


class _Feed(Section):
    start: StartAt = Field(
        default="earliest",
        description="The start of partitions that exist at the first run: `earliest`, `latest`, or a time like"
        " 2026-01-31T12:00:00Z. Later ones are read whole.",
    )


class FilesFeedSettings(_Feed):
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


class LogFeedSettings(_Feed):
    type: Literal["log"] = Field(description="An embedded log, as the sink `log` writes it.")
    path: FilePath = Field(description="The log's directory.")


class CosmosFeedSettings(CosmosAccount, _Feed):
    type: Literal["cosmos"] = Field(
        description="The change feed of a Cosmos DB container; each of its physical ranges is a partition."
    )
    database: Text = Field(description="The database's name.")
    container: Text = Field(description="The container's name.")
    mode: Literal["latest", "all_versions"] = Field(
        default="latest",
        description="`latest`: the latest version of each changed document. `all_versions`: all versions and deletes,"
        " from now on (`start: latest`).",
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
        if self.mode == "all_versions" and self.start != "latest":
            raise ValueError("`mode: all_versions` is kept from now on alone: say `start: latest`")
        return self


class EventHubsFeedSettings(EventHub, _Feed):
    type: Literal["eventhubs"] = Field(description="An event hub (Azure Event Hubs), with its own partitions.")
    consumer_group: ConsumerGroup = Field(
        default="$Default",
        description="The feed's consumer group. No other reader may use it, because owners of leases displace each"
        " other by epoch.",
    )
    start_positions: Conf = Field(
        default={},
        description="The start of single partitions that have no lease yet, by name, instead of `start`: after the"
        " event with a sequence number (`41`), an offset (`@4294967296`), or both (`41@4294967296`).",
    )
    prefetch: Prefetch = Field(
        default=4000,
        description="How many events of each partition may be on their way. What is not taken stays below 1 MiB a partition.",
    )
    timeout_s: Seconds = Field(default=20.0, description="How long one answer of the service may take.")

    @model_validator(mode="after")
    def _begins(self) -> EventHubsFeedSettings:
        from pipeline.connectors.eventhubs import position_of  # here, so that only who uses it waits for its SDK

        for partition, position in self.start_positions.items():
            try:
                position_of(position)
            except FeedError as error:
                raise ValueError(f"`start_positions`, partition '{partition}': {error}") from None
        return self


class CustomFeedSettings(_Feed, Custom):
    type: Importable = Field(
        description="A `ChangeFeed` to import. All keys that are not named here are its arguments."
    )


AnyFeed = Annotated[
    Annotated[FilesFeedSettings, Tag("files")]
    | Annotated[LogFeedSettings, Tag("log")]
    | Annotated[CosmosFeedSettings, Tag("cosmos")]
    | Annotated[EventHubsFeedSettings, Tag("eventhubs")]
    | Annotated[CustomFeedSettings, Tag(CUSTOM)],
    tag_of(None, "files", "log", "cosmos", "eventhubs"),
]
