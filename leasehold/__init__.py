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
    from leasehold.leases.errors import (
        DuplicateHost,
        GroupMismatch,
        StoreAmbiguous,
        StoreConflict,
        StoreError,
        StoreMissing,
        StoreUnavailable,
    )
    from leasehold.leases.store import INTERFACE as STORE_INTERFACE
    from leasehold.leases.store import ChangedDocuments, Hint, LeaseStore, Stored
    from leasehold.leases.stores.memory import MemoryStore
    from leasehold.leases.stores.sqlite import SqliteStore
    from leasehold.leases.timing import Timing, derived_timing
    from leasehold.pipeline.async_sink import (
        AsyncSink,
        Convert,
        Converted,
        Destination,
        Entry,
        Failed,
        RateLimiting,
        json_bytes,
        json_row,
        refused,
    )
    from leasehold.pipeline.connectors.eventhubs import EventHubsBroker
    from leasehold.pipeline.connectors.eventhubs import account_of as event_hubs_account
    from leasehold.pipeline.connectors.files.feed import FilesFeed
    from leasehold.pipeline.connectors.log import LogFeed, LogSink
    from leasehold.pipeline.connectors.log.broker import LogBroker
    from leasehold.pipeline.crash_point import crash_point
    from leasehold.pipeline.errors import (
        Ambiguous,
        FeedError,
        FeedNotFound,
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
    from leasehold.pipeline.event import EVENT_SCHEMA, Page
    from leasehold.pipeline.feed import INTERFACE as FEED_INTERFACE
    from leasehold.pipeline.feed import ChangeFeed, FeedPartition, KnownLag, PartitionEnded, Start
    from leasehold.pipeline.handlers.events import AckRefused, Events
    from leasehold.pipeline.limits import AsyncLimits, BatchLimits
    from leasehold.pipeline.markers import Marker, lease_of, marker_in, without_markers
    from leasehold.pipeline.markers import Search as MarkerSearch
    from leasehold.pipeline.producer import (
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
    from leasehold.pipeline.publishing_writer import PUBLISHED_SCHEMA, events_of, generation_lost
    from leasehold.pipeline.ranges import EventRange, RangeReader
    from leasehold.pipeline.sink import INTERFACE as SINK_INTERFACE
    from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, Sink, SinkWriter, Standing
    from leasehold.pipeline.staging import NotStaged, StagedPart, Stager
    from leasehold.pipeline.tracing import Endpoint, TraceContext
    from leasehold.service.cli.host_name import host_name
    from leasehold.service.cli.program import HandlerProgram, handler, run
    from leasehold.service.config.leases import SqliteLeases
    from leasehold.service.config.settings import HostSettings, LogSettings
    from leasehold.service.errors import StartFailed
    from leasehold.service.notifications import (
        BatchDelivered,
        LeaseAcquired,
        LeaseLost,
        LeaseReleased,
        Notification,
        Notifications,
        PartitionFailing,
        PartitionRecovered,
        TrustRestored,
        TrustSuspended,
    )
    from leasehold.service.pipeline import Pipeline
    from leasehold.service.processor import Processor
    from leasehold.service.telemetry.logs import configure as configure_logging

    __version__: str

__all__: list[str] = []
# A host in your own program
__all__ += [
    "Processor",
    "Pipeline",
    "BatchLimits",
    "Timing",
    "derived_timing",
    "host_name",
    "HostSettings",
    "LogSettings",
]
__all__ += ["SqliteLeases", "configure_logging", "SqliteStore", "MemoryStore", "FilesFeed", "LogFeed", "LogSink"]
__all__ += ["StartFailed", "DuplicateHost", "GroupMismatch"]
# Notifications
__all__ += ["Notifications", "Notification", "LeaseAcquired", "LeaseReleased", "LeaseLost", "BatchDelivered"]
__all__ += ["PartitionFailing", "PartitionRecovered", "TrustSuspended", "TrustRestored"]
# Publishing
__all__ += ["IdempotentProducer", "Event", "EventBatch", "RetryPolicy", "AttachRequest", "Outcome", "Reason"]
__all__ += ["PublishError", "AlreadyPublished", "BatchLocked", "EventHubsBroker", "event_hubs_account", "LogBroker"]
# Feeds
__all__ += ["ChangeFeed", "FeedPartition", "Start", "KnownLag", "FEED_INTERFACE", "Page", "EVENT_SCHEMA"]
__all__ += ["EventRange", "RangeReader"]
__all__ += ["FeedError", "FeedUnavailable", "FeedNotFound", "PositionLost", "MalformedRecord", "PartitionEnded"]
# Sinks
__all__ += ["Sink", "SinkWriter", "Claim", "Output", "Permit", "CloseReason", "Standing", "SINK_INTERFACE"]
__all__ += ["Stager", "StagedPart", "NotStaged"]
# Telemetry of feeds and sinks
__all__ += ["Endpoint", "TraceContext"]
__all__ += ["PipelineError", "SinkError", "SinkUnavailable", "SinkNotFound", "SinkRejected", "OutputRefused"]
__all__ += ["OutputTooLarge", "Fenced", "Ambiguous", "NotTrusted"]
# Sinks over brokers
__all__ += ["events_of", "PUBLISHED_SCHEMA", "Marker", "MarkerSearch", "marker_in", "lease_of", "without_markers"]
__all__ += ["generation_lost"]
# Sinks of requests
__all__ += ["AsyncSink", "Destination", "Entry", "Failed", "Convert", "Converted", "refused", "json_row", "json_bytes"]
__all__ += ["AsyncLimits", "RateLimiting"]
# Handlers side by side
__all__ += ["handler", "run", "HandlerProgram", "Events", "AckRefused"]
# Lease stores
__all__ += [
    "LeaseStore",
    "Stored",
    "ChangedDocuments",
    "Hint",
    "STORE_INTERFACE",
    "StoreError",
    "StoreConflict",
    "StoreMissing",
]
__all__ += ["StoreUnavailable", "StoreAmbiguous"]
# Cancellation, and crash points for tests
__all__ += ["heeding", "insisting", "crash_point"]

_MODULES = {
    "leasehold.common.cancellation": "heeding insisting",
    "leasehold.leases.errors": (
        "DuplicateHost GroupMismatch StoreAmbiguous StoreConflict StoreError StoreMissing StoreUnavailable"
    ),
    "leasehold.leases.store": "ChangedDocuments Hint LeaseStore STORE_INTERFACE=INTERFACE Stored",
    "leasehold.leases.stores.memory": "MemoryStore",
    "leasehold.leases.stores.sqlite": "SqliteStore",
    "leasehold.leases.timing": "Timing derived_timing",
    "leasehold.pipeline.async_sink": (
        "AsyncSink Convert Converted Destination Entry Failed RateLimiting json_bytes json_row refused"
    ),
    "leasehold.pipeline.connectors.eventhubs": "EventHubsBroker event_hubs_account=account_of",
    "leasehold.pipeline.connectors.files.feed": "FilesFeed",
    "leasehold.pipeline.connectors.log": "LogFeed LogSink",
    "leasehold.pipeline.connectors.log.broker": "LogBroker",
    "leasehold.pipeline.crash_point": "crash_point",
    "leasehold.pipeline.errors": (
        "Ambiguous FeedError FeedNotFound FeedUnavailable Fenced MalformedRecord NotTrusted OutputRefused OutputTooLarge"
        " PipelineError PositionLost SinkError SinkNotFound SinkRejected SinkUnavailable"
    ),
    "leasehold.pipeline.event": "EVENT_SCHEMA Page",
    "leasehold.pipeline.feed": "ChangeFeed FEED_INTERFACE=INTERFACE FeedPartition KnownLag PartitionEnded Start",
    "leasehold.pipeline.handlers.events": "AckRefused Events",
    "leasehold.pipeline.limits": "AsyncLimits BatchLimits",
    "leasehold.pipeline.markers": "Marker MarkerSearch=Search lease_of marker_in without_markers",
    "leasehold.pipeline.producer": (
        "AlreadyPublished AttachRequest BatchLocked Event EventBatch IdempotentProducer Outcome PublishError Reason RetryPolicy"
    ),
    "leasehold.pipeline.publishing_writer": "PUBLISHED_SCHEMA events_of generation_lost",
    "leasehold.pipeline.ranges": "EventRange RangeReader",
    "leasehold.pipeline.staging": "NotStaged StagedPart Stager",
    "leasehold.pipeline.sink": "Claim CloseReason Output Permit SINK_INTERFACE=INTERFACE Sink SinkWriter Standing",
    "leasehold.pipeline.tracing": "Endpoint TraceContext",
    "leasehold.service.cli.host_name": "host_name",
    "leasehold.service.cli.program": "HandlerProgram handler run",
    "leasehold.service.config.leases": "SqliteLeases",
    "leasehold.service.config.settings": "HostSettings LogSettings",
    "leasehold.service.errors": "StartFailed",
    "leasehold.service.notifications": (
        "BatchDelivered LeaseAcquired LeaseLost LeaseReleased Notification Notifications PartitionFailing PartitionRecovered"
        " TrustRestored TrustSuspended"
    ),
    "leasehold.service.pipeline": "Pipeline",
    "leasehold.service.processor": "Processor",
    "leasehold.service.telemetry.logs": "configure_logging=configure",
}
"""The names that each module defines; NAME=DEFINED where the module has another name for it."""

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


def _homes() -> dict[str, tuple[str, str]]:
    """Each name -> its module, and its name there."""
    homes = {}
    for module, names in _MODULES.items():
        for each in names.split():
            name, _, defined = each.partition("=")
            homes[name] = (module, defined or name)
    return homes


_HOMES = _homes()


def _load(name: str) -> object:
    """Import the name and keep it. Raises AttributeError with the most similar name."""
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("leasehold")
    elif name in _HOMES:
        module, defined = _HOMES[name]
        value = getattr(import_module(module), defined)
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
