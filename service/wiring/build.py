"""Settings -> a processor."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.azure import storage_account_of
from leasehold.leases.store import LeaseStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.dead_letters import DeadLetters, beside
from leasehold.pipeline.errors import NotImportable
from leasehold.pipeline.feed import ChangeFeed
from leasehold.pipeline.imports import imported
from leasehold.pipeline.limits import BatchLimits, Isolation, RangeLimits
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.sql_text import columns_of
from leasehold.pipeline.transform import NoTransform, Transform
from leasehold.service.config.kinds import AnyLeases
from leasehold.service.config.pipeline import Pipeline
from leasehold.service.config.section import FeedContext
from leasehold.service.config.settings import Settings
from leasehold.service.errors import StartFailed
from leasehold.service.group.import_sources import BlobSource
from leasehold.service.notifications import Notifications, require_notifications
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore
from leasehold.service.telemetry.signals import logs_of, traces_of
from leasehold.service.texts import described

OTHERS_TIMEOUT_S = 60.0
"""Long, because no lease depends on the time that an import takes."""
FOUND_AT_ONCE = 16
"""How many poison events to search for before progress is reported, which a batch must make within batch_timeout_s."""


def processor_of(
    settings: Settings,
    *,
    host: str,
    log: Log,
    engine: SparkEngine | None = None,
    on: Notifications | None = None,
) -> ProcessorCore:
    """A processor that has not started. Raises StartFailed if something that the settings name cannot be imported or created.

    engine: may have started already. on: replaces the `notifications` of the settings.
    """
    pipelines = pipelines_of(settings, engine)
    telemetry, environ = settings.telemetry, os.environ
    processor = ProcessorCore(
        pipelines,
        store_of(settings, pipelines),
        host=host,
        timing=settings.leases.timing,
        leases_max=settings.host.leases_max,
        buffer_bytes_max=settings.host.buffer_bytes_max,
        stop_timeout_s=settings.host.stop_timeout_s,
        log=log,
        traces=traces_of(telemetry, environ, host=host, log=log),
        on=notifications_of(settings) if on is None else on,
    )
    if (logs := logs_of(telemetry, settings.log, environ, host=host, log=log)) is not None:
        processor.add_exporter(logs)
    return processor


def notifications_of(settings: Settings) -> Notifications | None:
    """The object that the settings name. Raises StartFailed."""
    path = settings.notifications
    if path is None:
        return None
    try:
        found = imported(path)
        return require_notifications(found() if callable(found) else found)
    except NotImportable as error:
        raise StartFailed(f"`notifications` {error}") from error
    except Exception as error:  # a user's code may raise anything
        raise StartFailed(f"`notifications` '{path}' cannot be used: {described(error)}") from error


def pipelines_of(settings: Settings, engine: SparkEngine | None = None) -> list[PipelineParts]:
    """The pipelines share one Spark, which starts when the first transform is prepared and stops when the last is closed."""
    engine = engine or settings.spark.make()
    return [pipeline_of(each, engine, settings.leases.timing) for each in settings.pipelines]


def store_of(settings: Settings, pipelines: Sequence[PipelineParts], *, creates: bool = True) -> LeaseStore:
    """pipelines: those whose leases are needed. Some feeds determine where leases live.

    creates: whether a missing container may be created; otherwise reading it raises StoreMissing. Raises StartFailed.
    """
    sections = {each.name: each.feed for each in settings.pipelines}
    feeds = {each.name: (sections[each.name], each.feed) for each in pipelines if each.name in sections}
    try:
        return settings.leases.make(feeds, creates=creates)
    except ValueError as error:
        raise StartFailed(f"the lease store cannot be created: {error}") from error


def others_blobs_of(
    leases: AnyLeases, *, container: str | None, account_url: str | None, connection_string: str | None
) -> BlobSource | None:
    """Another processor's blobs: in the account that is named, or otherwise in the lease store's; None if there is neither.

    container: by default the lease store's. Raises StartFailed.
    """
    from leasehold.leases.stores.blob import BlobContainerAddress, LeaseBlobContainer, OthersBlobs

    own_account, own_container = leases.blobs or (None, None)
    name = container or own_container
    try:
        if connection_string is not None:
            account = storage_account_of(connection_string=connection_string)
        elif account_url is not None:
            account = storage_account_of(account_url=account_url, identity="default")
        elif own_account is not None:
            account = storage_account_of(**own_account)
        else:
            return None
        if name is None:
            raise ValueError("--container: name the one with the old leases")
        place = BlobContainerAddress(container=name, creates=False)
        return OthersBlobs(LeaseBlobContainer(account, place, call_timeout_s=OTHERS_TIMEOUT_S))
    except ValueError as error:
        raise StartFailed(f"the old leases cannot be reached: {error}") from error


def pipeline_of(settings: Pipeline, engine: SparkEngine, timing: Timing) -> PipelineParts:
    """Create a pipeline's parts. Raises StartFailed."""
    try:
        return _pipeline_of(settings, engine, timing)
    except ValueError as error:
        raise StartFailed(f"pipeline '{settings.name}' cannot be created: {error}") from error


def _pipeline_of(settings: Pipeline, engine: SparkEngine, timing: Timing) -> PipelineParts:
    policy = policy_of(settings, lambda: datetime.now(UTC))
    box = settings.make_box(timing)
    sink = settings.make_sink(timing, letters=box is not None and box.sink is None)
    columns = columns_of(settings.event_schema or "")
    feed = settings.feed.make(FeedContext(settings.name, policy is not None, columns))
    return PipelineParts(
        name=settings.name,
        feed=feed,
        transform=transform_of(settings, engine, policy),
        sink=sink if box is None or box.sink is None else beside(sink, box, policy),
        letters=policy,
        box=box,
        outside_checkpoints=settings.feed.make_outside_checkpoints(),
        transform_digest=digest_of(settings),
        start=settings.feed.start,
        starts=settings.feed.starts,
        limits=BatchLimits(
            events_max=min(settings.batch_events_max, settings.sink.input_events_max or settings.batch_events_max),
            bytes_max=min(settings.batch_bytes_max, settings.sink.input_bytes_max or settings.batch_bytes_max),
            age_max_s=settings.batch_age_max_s,
        ),
        buffer_bytes_max=settings.buffer_bytes_max,
        batch_timeout_s=settings.batch_timeout_s,
        unkept_s=settings.sink.unkept_s,
        ranges=ranges_of(settings, feed),
    )


def ranges_of(settings: Pipeline, feed: ChangeFeed) -> RangeLimits | None:
    """When executors read the feed; None: never. Raises ValueError if they should and cannot."""
    if not settings.executors_read:
        return None
    if feed.range_reader() is None:
        raise ValueError(
            f"executors cannot read its feed, because `range_reader` of {type(feed).__name__} returns None: remove"
            " `executors_read`, or see docs/plugins.md for what a feed has to offer"
        )
    return RangeLimits.beginning_at(settings.executors_read_from, settings.batch_timeout_s)


def transform_of(settings: Pipeline, engine: SparkEngine, letters: DeadLetters | None = None) -> Transform:
    if not settings.needs_spark:
        return NoTransform()
    from leasehold.pipeline.spark.transform import (
        SparkTransform,  # imports Arrow and PySpark, so not before Spark has begun
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


def policy_of(settings: Pipeline, now: Callable[[], datetime]) -> DeadLetters | None:
    letters = settings.letters
    if letters is None:
        return None
    return DeadLetters(
        now=now,
        attempts=settings.attempts,
        share_max=letters.share_max,
        share_events=letters.share_events,
        stops_at_misfits=settings.schema_mode == "strict",
    )


def isolation_of(settings: Pipeline, policy: DeadLetters | None) -> Isolation:
    """Search for at most the number of events that the rate guard allows, plus one."""
    most = 1 if policy is None else min(int(policy.share_events * policy.share_max) + 1, FOUND_AT_ONCE)
    return Isolation(attempts=settings.attempts, backoff_s=settings.attempt_backoff_s, most=most)


def digest_of(settings: Pipeline) -> str:
    """A digest of the transform alone: stored with the leases, so that a change is noticed."""
    text = json.dumps([settings.event_schema, settings.sql, settings.function])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
