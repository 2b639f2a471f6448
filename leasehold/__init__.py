"""The public interface of Leasehold: `from leasehold import Processor, Pipeline`.

It has what docs/embedding.md and docs/plugins.md describe. Everything else may change with any release.
A name is imported when it is first used, so `import leasehold` loads neither Spark nor Arrow. Contract suites are in
`leasehold.testing`, because they need pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.common.cancellation import heeding, insisting
    from leases.errors import (
        DuplicateHost,
        GroupMismatch,
        StoreAmbiguous,
        StoreConflict,
        StoreError,
        StoreMissing,
        StoreUnavailable,
    )
    from leases.store import INTERFACE as STORE_INTERFACE
    from leases.store import LeaseStore, Stored
    from leases.stores.memory import MemoryStore
    from leases.stores.sqlite import SqliteStore
    from leases.timing import Timing, derived_timing
    from pipeline.async_sink import (
        AsyncSink,
        Convert,
        Converted,
        Destination,
        Entry,
        Failed,
        json_bytes,
        json_row,
        refused,
    )
    from pipeline.connectors.eventhubs import EventHubsBroker
    from pipeline.connectors.eventhubs import account_of as event_hubs_account
    from pipeline.connectors.files.feed import FilesFeed
    from pipeline.connectors.log import LogFeed, LogSink
    from pipeline.connectors.log.broker import LogBroker
    from pipeline.crash_point import crash_point
    from pipeline.errors import (
        Ambiguous,
        FeedError,
        FeedUnavailable,
        Fenced,
        MalformedRecord,
        NotTrusted,
        OutputRefused,
        OutputTooLarge,
        PipelineError,
        PositionLost,
        SinkError,
        SinkNotFound,
        SinkRejected,
        SinkUnavailable,
    )
    from pipeline.event import EVENT_SCHEMA, Page
    from pipeline.feed import INTERFACE as FEED_INTERFACE
    from pipeline.feed import (
        ChangeFeed,
        FeedPartition,
        KnownLag,
        PartitionEnded,
        Start,
    )
    from pipeline.limits import AsyncLimits, BatchLimits
    from pipeline.markers import Marker, lease_of, marker_in, without_markers
    from pipeline.markers import Search as MarkerSearch
    from pipeline.producer import (
        AlreadyPublished,
        AttachRequest,
        BatchLocked,
        Event,
        EventBatch,
        IdempotentProducer,
        Outcome,
        PublishError,
        Reason,
        RetryPolicy,
    )
    from pipeline.publishing_writer import PUBLISHED_SCHEMA, events_of, generation_lost
    from pipeline.sink import INTERFACE as SINK_INTERFACE
    from pipeline.sink import (
        Claim,
        CloseReason,
        Output,
        Permit,
        Sink,
        SinkWriter,
        Standing,
    )
    from service.cli.host_name import host_name
    from service.config.leases import SqliteLeases
    from service.config.settings import HostSettings, LogSettings
    from service.errors import StartFailed
    from service.pipeline import Pipeline
    from service.processor import Processor
    from service.telemetry.logs import configure as configure_logging

    __version__: str

__all__ = [
    # A host in your own program
    "Processor",
    "Pipeline",
    "BatchLimits",
    "Timing",
    "derived_timing",
    "host_name",
    "HostSettings",
    "LogSettings",
    "SqliteLeases",
    "configure_logging",
    "SqliteStore",
    "MemoryStore",
    "FilesFeed",
    "LogFeed",
    "LogSink",
    "StartFailed",
    "DuplicateHost",
    "GroupMismatch",
    # Publishing
    "IdempotentProducer",
    "Event",
    "EventBatch",
    "RetryPolicy",
    "AttachRequest",
    "Outcome",
    "Reason",
    "PublishError",
    "AlreadyPublished",
    "BatchLocked",
    "EventHubsBroker",
    "event_hubs_account",
    "LogBroker",
    # Feeds
    "ChangeFeed",
    "FeedPartition",
    "Start",
    "KnownLag",
    "FEED_INTERFACE",
    "Page",
    "EVENT_SCHEMA",
    "FeedError",
    "FeedUnavailable",
    "PositionLost",
    "MalformedRecord",
    "PartitionEnded",
    # Sinks
    "Sink",
    "SinkWriter",
    "Claim",
    "Output",
    "Permit",
    "CloseReason",
    "Standing",
    "SINK_INTERFACE",
    "PipelineError",
    "SinkError",
    "SinkUnavailable",
    "SinkNotFound",
    "SinkRejected",
    "OutputRefused",
    "OutputTooLarge",
    "Fenced",
    "Ambiguous",
    "NotTrusted",
    # Sinks over brokers
    "events_of",
    "PUBLISHED_SCHEMA",
    "Marker",
    "MarkerSearch",
    "marker_in",
    "lease_of",
    "without_markers",
    "generation_lost",
    # Sinks of requests
    "AsyncSink",
    "Destination",
    "Entry",
    "Failed",
    "Convert",
    "Converted",
    "refused",
    "json_row",
    "json_bytes",
    "AsyncLimits",
    # Lease stores
    "LeaseStore",
    "Stored",
    "STORE_INTERFACE",
    "StoreError",
    "StoreConflict",
    "StoreMissing",
    "StoreUnavailable",
    "StoreAmbiguous",
    # Cancellation, and crash points for tests
    "heeding",
    "insisting",
    "crash_point",
]

_HOMES = {
    "Processor": "service.processor",
    "Pipeline": "service.pipeline",
    "BatchLimits": "pipeline.limits",
    "Timing": "leases.timing",
    "derived_timing": "leases.timing",
    "host_name": "service.cli.host_name",
    "HostSettings": "service.config.settings",
    "LogSettings": "service.config.settings",
    "SqliteLeases": "service.config.leases",
    "configure_logging": "service.telemetry.logs:configure",
    "SqliteStore": "leases.stores.sqlite",
    "MemoryStore": "leases.stores.memory",
    "FilesFeed": "pipeline.connectors.files.feed",
    "LogFeed": "pipeline.connectors.log",
    "LogSink": "pipeline.connectors.log",
    "StartFailed": "service.errors",
    "DuplicateHost": "leases.errors",
    "GroupMismatch": "leases.errors",
    "IdempotentProducer": "pipeline.producer",
    "Event": "pipeline.producer",
    "EventBatch": "pipeline.producer",
    "RetryPolicy": "pipeline.producer",
    "AttachRequest": "pipeline.producer",
    "Outcome": "pipeline.producer",
    "Reason": "pipeline.producer",
    "PublishError": "pipeline.producer",
    "AlreadyPublished": "pipeline.producer",
    "BatchLocked": "pipeline.producer",
    "EventHubsBroker": "pipeline.connectors.eventhubs",
    "event_hubs_account": "pipeline.connectors.eventhubs:account_of",
    "LogBroker": "pipeline.connectors.log.broker",
    "ChangeFeed": "pipeline.feed",
    "FeedPartition": "pipeline.feed",
    "Start": "pipeline.feed",
    "KnownLag": "pipeline.feed",
    "FEED_INTERFACE": "pipeline.feed:INTERFACE",
    "Page": "pipeline.event",
    "EVENT_SCHEMA": "pipeline.event",
    "FeedError": "pipeline.errors",
    "FeedUnavailable": "pipeline.errors",
    "PositionLost": "pipeline.errors",
    "MalformedRecord": "pipeline.errors",
    "PartitionEnded": "pipeline.feed",
    "Sink": "pipeline.sink",
    "SinkWriter": "pipeline.sink",
    "Claim": "pipeline.sink",
    "Output": "pipeline.sink",
    "Permit": "pipeline.sink",
    "CloseReason": "pipeline.sink",
    "Standing": "pipeline.sink",
    "SINK_INTERFACE": "pipeline.sink:INTERFACE",
    "PipelineError": "pipeline.errors",
    "SinkError": "pipeline.errors",
    "SinkUnavailable": "pipeline.errors",
    "SinkNotFound": "pipeline.errors",
    "SinkRejected": "pipeline.errors",
    "OutputRefused": "pipeline.errors",
    "OutputTooLarge": "pipeline.errors",
    "Fenced": "pipeline.errors",
    "Ambiguous": "pipeline.errors",
    "NotTrusted": "pipeline.errors",
    "events_of": "pipeline.publishing_writer",
    "PUBLISHED_SCHEMA": "pipeline.publishing_writer",
    "Marker": "pipeline.markers",
    "MarkerSearch": "pipeline.markers:Search",
    "marker_in": "pipeline.markers",
    "lease_of": "pipeline.markers",
    "without_markers": "pipeline.markers",
    "generation_lost": "pipeline.publishing_writer",
    "AsyncSink": "pipeline.async_sink",
    "Destination": "pipeline.async_sink",
    "Entry": "pipeline.async_sink",
    "Failed": "pipeline.async_sink",
    "Convert": "pipeline.async_sink",
    "Converted": "pipeline.async_sink",
    "refused": "pipeline.async_sink",
    "json_row": "pipeline.async_sink",
    "json_bytes": "pipeline.async_sink",
    "AsyncLimits": "pipeline.limits",
    "LeaseStore": "leases.store",
    "Stored": "leases.store",
    "STORE_INTERFACE": "leases.store:INTERFACE",
    "StoreError": "leases.errors",
    "StoreConflict": "leases.errors",
    "StoreMissing": "leases.errors",
    "StoreUnavailable": "leases.errors",
    "StoreAmbiguous": "leases.errors",
    "heeding": "leasehold.common.cancellation",
    "insisting": "leasehold.common.cancellation",
    "crash_point": "pipeline.crash_point",
}
"""The module that defines each name, and its name there if that differs."""

_MERGED = {
    **dict.fromkeys(
        ("TellingFeed", "FinishingFeed", "FencedFeed", "ProbedFeed", "ScopedFeed", "MeteredFeed"), "ChangeFeed"
    ),
    "StandingSink": "Sink",
    **dict.fromkeys(("BoundedWriter", "PlacedWriter", "LetterWriter", "BufferingWriter"), "SinkWriter"),
    "SharedContainer": "LeaseStore",
}
"""Protocols whose methods belong to a base class since 0.2.0. Until the next release they are `object`, to derive from."""


_RENAMED = {"Asked": "AttachRequest"}
"""Names until 0.2.0, for one more release."""


def _load(name: str) -> object:
    """Import the name and keep it. Raises AttributeError with the most similar name."""
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("leasehold")
    elif home := _HOMES.get(name):
        module, _, attribute = home.partition(":")
        value = getattr(import_module(module), attribute or name)
    elif new := _RENAMED.get(name):
        from warnings import warn

        warn(f"leasehold.{name} is now called {new}: rename it", DeprecationWarning, stacklevel=2)
        return _load(new)
    elif base := _MERGED.get(name):
        from warnings import warn

        warn(f"leasehold.{name} is part of leasehold.{base}: derive from that", DeprecationWarning, stacklevel=2)
        return object
    else:
        from difflib import get_close_matches

        similar = "".join(f", did you mean {each!r}?" for each in get_close_matches(name, __all__, n=1))
        # With `obj`, tracebacks of Python would add the same advice.
        raise AttributeError(f"module 'leasehold' has no attribute {name!r}{similar}", name=name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # type checkers would accept every name
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
