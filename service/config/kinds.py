"""What `type` stands for in each section: the settings of feeds, sinks, dead letters and leases."""

from __future__ import annotations

import sys
from typing import Annotated

from pydantic import BeforeValidator, Tag

from leasehold.service.config.cosmos import CosmosFeed, CosmosLeases, CosmosSink
from leasehold.service.config.custom import (
    CustomFeed,
    CustomLeases,
    CustomSink,
    GivenFeed,
    GivenLeases,
    GivenSink,
    PythonSink,
)
from leasehold.service.config.eventhubs import EventHubsFeed, EventHubsLetters, EventHubsSink
from leasehold.service.config.files import FilesFeed, FilesLetters, FilesSink
from leasehold.service.config.http import HttpSink
from leasehold.service.config.kafka import KafkaFeed, KafkaSink
from leasehold.service.config.leases import BlobLeases, MemoryLeases, SqliteLeases
from leasehold.service.config.log import LogFeed, LogLetters, LogSink
from leasehold.service.config.nats import NatsFeed, NatsSink
from leasehold.service.config.postgres import PostgresLeases, PostgresLetters, PostgresSink
from leasehold.service.config.pulsar import PulsarFeed, PulsarSink
from leasehold.service.config.section import CUSTOM, GIVEN, Given, tag_of


def _wrapping(module: str, base: str, wrapper: type[Given]) -> BeforeValidator:
    """Accept an object of this class as a section that wraps it. Imports nothing: an object's module is loaded already."""

    def wrap(value: object) -> object:
        known = getattr(sys.modules.get(module), base, None)
        return wrapper(part=value) if known is not None and isinstance(value, known) else value

    return BeforeValidator(wrap)


AnyFeed = Annotated[
    Annotated[FilesFeed, Tag("files")]
    | Annotated[LogFeed, Tag("log")]
    | Annotated[CosmosFeed, Tag("cosmos")]
    | Annotated[EventHubsFeed, Tag("eventhubs")]
    | Annotated[KafkaFeed, Tag("kafka")]
    | Annotated[NatsFeed, Tag("nats")]
    | Annotated[PulsarFeed, Tag("pulsar")]
    | Annotated[CustomFeed, Tag(CUSTOM)]
    | Annotated[GivenFeed, Tag(GIVEN)],
    tag_of(None, "files", "log", "cosmos", "eventhubs", "kafka", "nats", "pulsar", given=GivenFeed),
    _wrapping("leasehold.pipeline.feed", "ChangeFeed", GivenFeed),
]
AnySink = Annotated[
    Annotated[LogSink, Tag("log")]
    | Annotated[PostgresSink, Tag("postgres")]
    | Annotated[EventHubsSink, Tag("eventhubs")]
    | Annotated[KafkaSink, Tag("kafka")]
    | Annotated[NatsSink, Tag("nats")]
    | Annotated[PulsarSink, Tag("pulsar")]
    | Annotated[FilesSink, Tag("files")]
    | Annotated[PythonSink, Tag("python")]
    | Annotated[HttpSink, Tag("http")]
    | Annotated[CosmosSink, Tag("cosmos")]
    | Annotated[CustomSink, Tag(CUSTOM)]
    | Annotated[GivenSink, Tag(GIVEN)],
    tag_of(
        None,
        "log",
        "postgres",
        "eventhubs",
        "kafka",
        "nats",
        "pulsar",
        "files",
        "python",
        "http",
        "cosmos",
        given=GivenSink,
    ),
    _wrapping("leasehold.pipeline.sink", "Sink", GivenSink),
]
AnyLetters = Annotated[
    Annotated[PostgresLetters, Tag("postgres")]
    | Annotated[LogLetters, Tag("log")]
    | Annotated[FilesLetters, Tag("files")]
    | Annotated[EventHubsLetters, Tag("eventhubs")],
    tag_of(None, "postgres", "log", "files", "eventhubs", is_open=False),
]
AnyLeases = Annotated[
    Annotated[SqliteLeases, Tag("sqlite")]
    | Annotated[PostgresLeases, Tag("postgres")]
    | Annotated[CosmosLeases, Tag("cosmos")]
    | Annotated[BlobLeases, Tag("blob")]
    | Annotated[MemoryLeases, Tag("memory")]
    | Annotated[CustomLeases, Tag(CUSTOM)]
    | Annotated[GivenLeases, Tag(GIVEN)],
    tag_of("sqlite", "sqlite", "postgres", "cosmos", "blob", "memory", given=GivenLeases),
    _wrapping("leasehold.leases.store", "LeaseStore", GivenLeases),
]
