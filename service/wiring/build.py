"""Settings -> a processor: the one place that knows which class stands for which `type`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.azure import cosmos_account_of, storage_account_of
from leases import dotnet
from leases.errors import StoreUnavailable
from leases.store import LeaseStore
from leases.stores.memory import MemoryStore
from leases.stores.sqlite import SqliteStore
from leases.timing import Timing
from pipeline.connectors.files.feed import FilesFeed
from pipeline.connectors.log import LogFeed, LogSink
from pipeline.connectors.python import PythonSink
from pipeline.dead_letters import DeadLetters, beside
from pipeline.errors import FeedError
from pipeline.feed import ChangeFeed
from pipeline.limits import BatchLimits
from pipeline.sink import Sink
from pipeline.spark.engine import SparkEngine
from pipeline.sql_text import columns_of
from pipeline.transform import Identity, Transform
from service.config.cosmos import CosmosFeedSettings, CosmosLeases, CosmosSinkSettings
from service.config.custom import CustomFeedSettings, CustomLeases, CustomSinkSettings, PythonSinkSettings
from service.config.eventhubs import EventHubsFeedSettings, EventHubsSinkSettings
from service.config.files import FilesFeedSettings, FilesSinkSettings
from service.config.http import HttpSinkSettings
from service.config.leases import BlobLeases, SqliteLeases
from service.config.log import LogFeedSettings, LogSinkSettings
from service.config.postgres import PostgresSinkSettings
from service.config.settings import AnyFeed, AnyLeases, AnySink, PipelineSettings, Settings
from service.errors import StartFailed
from service.group.import_sources import BlobSource
from service.pipeline import Pipeline
from service.processor import Processor
from service.telemetry.tracing import traces_of
from service.wiring.dead_letters import (
    box_of,
    eventhubs_sink_of,
    files_sink_of,
    isolation_of,
    policy_of,
    timeouts_within,
)
from service.wiring.plugins import feed_made, sink_made, store_made
from service.wiring.spark import engine_of, needs_spark

if TYPE_CHECKING:
    from pipeline.connectors.cosmos import CosmosFeed  # its SDK takes a second to import

OTHERS_TIMEOUT_S = 60.0
"""No lease depends on the time of an import."""
EVENT_HUB_BATCH_BYTES = 512 * 1024
"""Input for a batch of a hub, which is 1 MiB with its markers."""


def processor_of(settings: Settings, *, host: str, log: Log, engine: SparkEngine | None = None) -> Processor:
    """A processor that has not started. Raises StartFailed where something that is named cannot be imported or made.

    engine: one that may have begun already.
    """
    pipelines = pipelines_of(settings, engine)
    return Processor(
        pipelines,
        store_of(settings, pipelines),
        host=host,
        timing=settings.leases.timing,
        leases_max=settings.host.leases_max,
        buffer_bytes_max=settings.host.buffer_bytes_max,
        stop_timeout_s=settings.host.stop_timeout_s,
        log=log,
        traces=traces_of(settings.telemetry, os.environ, host=host, log=log),
    )


def pipelines_of(settings: Settings, engine: SparkEngine | None = None) -> list[Pipeline]:
    """They share one Spark, which starts when the first transform is prepared and stops when the last is closed."""
    engine = engine or engine_of(settings.spark)
    return [pipeline_of(each, engine, settings.leases.timing) for each in settings.pipelines]


def store_of(settings: Settings, pipelines: Sequence[Pipeline], *, creates: bool = True) -> LeaseStore:
    """pipelines: those whose leases are wanted; of some feeds it is they who say where their leases are.

    creates: whether a container that is missing may be made; otherwise looking into it raises StoreMissing. Raises StartFailed.
    """
    leases = settings.leases
    if isinstance(leases, SqliteLeases):
        return SqliteStore(leases.path, busy_timeout_s=leases.timing.call_timeout_s / 2, creates=creates)
    if isinstance(leases, CosmosLeases):
        return _cosmos_store_of(leases, settings.pipelines, pipelines, creates)
    if isinstance(leases, BlobLeases):
        return _blob_store_of(leases, creates)
    if isinstance(leases, CustomLeases):
        return store_made(leases)
    return MemoryStore()


def _cosmos_store_of(
    leases: CosmosLeases, settings: Sequence[PipelineSettings], pipelines: Sequence[Pipeline], creates: bool
) -> LeaseStore:
    from leases.stores.cosmos import Container, CosmosStore, Place  # its SDK takes a second to import
    from pipeline.connectors.cosmos import CosmosFeed

    names = {each.name: each.feed.processor_name for each in settings if isinstance(each.feed, CosmosFeedSettings)}
    monitored = {
        each.name: MonitoredContainer(each.feed, each.name if names[each.name] is None else str(names[each.name]))
        for each in pipelines
        if isinstance(each.feed, CosmosFeed) and each.name in names
    }
    account = cosmos_account_of(**leases.account)
    place = Place(database=leases.database, container=leases.container, creates=creates)
    try:
        return CosmosStore(Container(account, place, call_timeout_s=leases.timing.call_timeout_s), monitored)
    except ValueError as error:
        raise StartFailed(f"the lease store cannot be made: {error}") from error


class MonitoredContainer:
    """`leases.stores.cosmos.Monitored` of a feed: leases are named after processor, account and container."""

    def __init__(self, feed: CosmosFeed, processor: str) -> None:
        self._feed = feed
        self._processor = processor

    @property
    def mode(self) -> str:
        return dotnet.FULL_FIDELITY if self._feed.mode == "all_versions" else dotnet.INCREMENTAL

    async def lease_prefix(self) -> str:
        """Raises StoreUnavailable."""
        try:
            rid = await self._feed.container_rid()
            return dotnet.lease_prefix(self._processor, self._feed.endpoint_host, dotnet.database_rid(rid), rid)
        except (FeedError, ValueError) as error:
            raise StoreUnavailable(f"leases are named after the container that is read, and: {error}") from error


def _blob_store_of(leases: BlobLeases, creates: bool) -> LeaseStore:
    from leases.stores.blob import BlobStore, Container, Place  # its SDK takes half a second to import

    account = storage_account_of(**leases.account)
    place = Place(container=leases.container, creates=creates)
    try:
        return BlobStore(Container(account, place, call_timeout_s=leases.timing.call_timeout_s))
    except ValueError as error:
        raise StartFailed(f"the lease store cannot be made: {error}") from error


def others_blobs_of(
    leases: AnyLeases, *, container: str | None, account_url: str | None, connection_string: str | None
) -> BlobSource | None:
    """Another processor's blobs: in an account that is named, or else in that of the lease container; None where neither is.

    container: None is the lease container. Raises StartFailed.
    """
    from leases.stores.blob import Container, OthersBlobs, Place

    own = leases if isinstance(leases, BlobLeases) else None
    name = container or (own.container if own else None)
    try:
        if connection_string is not None:
            account = storage_account_of(connection_string=connection_string)
        elif account_url is not None:
            account = storage_account_of(account_url=account_url, identity="default")
        elif own is not None:
            account = storage_account_of(**own.account)
        else:
            return None
        if name is None:
            raise ValueError("--container: name the one with the old leases")
        place = Place(container=name, creates=False)
        return OthersBlobs(Container(account, place, call_timeout_s=OTHERS_TIMEOUT_S))
    except ValueError as error:
        raise StartFailed(f"the old leases cannot be reached: {error}") from error


def pipeline_of(settings: PipelineSettings, engine: SparkEngine, timing: Timing) -> Pipeline:
    """Raises StartFailed."""
    try:
        return _pipeline_of(settings, engine, timing)
    except ValueError as error:
        raise StartFailed(f"pipeline '{settings.name}' cannot be made: {error}") from error


def _pipeline_of(settings: PipelineSettings, engine: SparkEngine, timing: Timing) -> Pipeline:
    letters = policy_of(settings, lambda: datetime.now(UTC))
    box = box_of(settings, timing)
    sink = sink_of(settings.sink, timing, letters=box is not None and box.sink is None)
    return Pipeline(
        name=settings.name,
        feed=feed_of(
            settings.feed,
            pipeline=settings.name,
            keeps_letters=letters is not None,
            columns=columns_of(settings.event_schema or ""),
        ),
        transform=transform_of(settings, engine, letters),
        sink=sink if box is None or box.sink is None else beside(sink, box),
        letters=letters,
        box=box,
        transform_digest=digest_of(settings),
        start=settings.feed.start,
        limits=BatchLimits(
            events_max=settings.batch_events_max,
            bytes_max=batch_bytes_max_of(settings),
            age_max_s=settings.batch_age_max_s,
        ),
        buffer_bytes_max=settings.buffer_bytes_max,
        batch_timeout_s=settings.batch_timeout_s,
        unkept_s=settings.sink.checkpoint_s if isinstance(settings.sink, PythonSinkSettings) else 0.0,
    )


def batch_bytes_max_of(settings: PipelineSettings) -> int:
    """What a hub would not take in one batch has to be cut, and transformed once more: few batches are made that large."""
    if isinstance(settings.sink, EventHubsSinkSettings):
        return min(settings.batch_bytes_max, EVENT_HUB_BATCH_BYTES)
    return settings.batch_bytes_max


def feed_of(
    settings: AnyFeed,
    *,
    pipeline: str = "PIPELINE",
    keeps_letters: bool = False,
    columns: Mapping[str, bool] | None = None,
) -> ChangeFeed:
    """keeps_letters: whether a record that cannot become an event becomes a dead letter.

    columns: those of the schema, each with whether it is NOT NULL.
    """
    if isinstance(settings, FilesFeedSettings):
        return FilesFeed(
            settings.path,
            format=settings.format,
            final_record=settings.final_record,
            key=settings.key,
            poll_interval_s=settings.poll_interval_s,
            record_bytes_max=settings.record_bytes_max,
            yields_malformed=keeps_letters,
            columns=columns or {},
            pipeline=pipeline,
        )
    if isinstance(settings, LogFeedSettings):
        return LogFeed(settings.path)
    if isinstance(settings, CosmosFeedSettings):
        from pipeline.connectors.cosmos import CosmosFeed  # its SDK takes a second to import

        return CosmosFeed(
            cosmos_account_of(**settings.account),
            settings.database,
            settings.container,
            mode=settings.mode,
            page_items_max=settings.page_items_max,
            poll_interval_s=settings.poll_interval_s,
            timeout_s=settings.timeout_s,
        )
    if isinstance(settings, EventHubsFeedSettings):
        return _eventhubs_feed_of(settings)
    assert isinstance(settings, CustomFeedSettings)
    return feed_made(settings)


def _eventhubs_feed_of(settings: EventHubsFeedSettings) -> ChangeFeed:
    from pipeline.connectors.eventhubs import EventHubsFeed, account_of  # its SDK takes a second to import

    return EventHubsFeed(
        account_of(**settings.account),
        consumer_group=settings.consumer_group,
        start_positions=settings.start_positions,
        prefetch=settings.prefetch,
        timeout_s=settings.timeout_s,
    )


def sink_of(settings: AnySink, timing: Timing, *, letters: bool = False) -> Sink:
    """letters: whether it is to take dead letters with its output."""
    if isinstance(settings, LogSinkSettings):
        return LogSink(settings.path, retention_s=settings.retention_s, retention_bytes=settings.retention_bytes)
    if isinstance(settings, PostgresSinkSettings):
        return _postgres_sink_of(settings, timing, letters=letters)
    if isinstance(settings, EventHubsSinkSettings):
        return eventhubs_sink_of(settings)
    if isinstance(settings, FilesSinkSettings):
        return files_sink_of(settings)
    if isinstance(settings, HttpSinkSettings):
        return _http_sink_of(settings)
    if isinstance(settings, CosmosSinkSettings):
        return _cosmos_sink_of(settings)
    if isinstance(settings, CustomSinkSettings):
        return sink_made(settings)
    return PythonSink(settings.handler)


def _postgres_sink_of(settings: PostgresSinkSettings, timing: Timing, *, letters: bool) -> Sink:
    from pipeline.connectors.postgres import PostgresSink  # its driver takes a while to import

    return PostgresSink(
        settings.dsn.get_secret_value(),
        identity=settings.identity,
        setup=settings.setup,
        merge=settings.merge,
        table=settings.table,
        mode=settings.mode,
        key=settings.key,
        schema=settings.schema_name,
        history=settings.history,
        letters=letters,
        connections_max=settings.connections_max,
        timeouts=timeouts_within(timing),
    )


def _http_sink_of(settings: HttpSinkSettings) -> Sink:
    from pipeline.connectors.http import http_sink  # its client takes a while to import

    return http_sink(
        settings.url.get_secret_value(),
        headers={name: value.get_secret_value() for name, value in settings.headers.items()},
        format=settings.format,
        content=settings.content,
        results=settings.results,
        key_field=settings.key_field,
        order_by=settings.order_by,
        ca_file=settings.ca_file,
        limits=settings.limits,
    )


def _cosmos_sink_of(settings: CosmosSinkSettings) -> Sink:
    from pipeline.connectors.cosmos import cosmos_sink  # its SDK takes a second to import

    return cosmos_sink(
        cosmos_account_of(**settings.account),
        settings.database,
        settings.container,
        content=settings.content,
        operation=settings.operation,
        patch_missing=settings.patch_missing,
        limits=settings.limits,
    )


def transform_of(settings: PipelineSettings, engine: SparkEngine, letters: DeadLetters | None = None) -> Transform:
    if not needs_spark(settings):
        return Identity()
    from pipeline.spark.transform import (
        SparkTransform,  # begins to import Arrow and PySpark: not before Spark has begun
    )

    return SparkTransform(
        engine,
        settings.name,
        sql=settings.sql,
        function=settings.function,
        schema=settings.event_schema,
        goes_on=letters is not None and not letters.stops_at_misfits,
        isolation=isolation_of(settings, letters),
    )


def digest_of(settings: PipelineSettings) -> str:
    """A digest of the transform alone: stored with the leases, so that a change is noticed."""
    text = json.dumps([settings.event_schema, settings.sql, settings.function])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
