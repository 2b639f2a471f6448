"""The public interface of Leasehold: docs/handlers.md, docs/producer.md and docs/plugins.md describe it.

Everything else may change with any release. This file is the only list of the names: `__init__.py` reads it, and so do type
checkers.
"""

from leasehold.common.cancellation import heeding as heeding
from leasehold.common.cancellation import insisting as insisting
from leasehold.common.standing import Standing as Standing
from leasehold.leases.errors import DuplicateHost as DuplicateHost
from leasehold.leases.errors import GroupMismatch as GroupMismatch
from leasehold.leases.errors import StoreAmbiguous as StoreAmbiguous
from leasehold.leases.errors import StoreConflict as StoreConflict
from leasehold.leases.errors import StoreError as StoreError
from leasehold.leases.errors import StoreMissing as StoreMissing
from leasehold.leases.errors import StoreUnavailable as StoreUnavailable
from leasehold.leases.store import INTERFACE as STORE_INTERFACE
from leasehold.leases.store import ChangedDocuments as ChangedDocuments
from leasehold.leases.store import Hint as Hint
from leasehold.leases.store import LeaseStore as LeaseStore
from leasehold.leases.store import Stored as Stored
from leasehold.pipeline.async_sink import AsyncSink as AsyncSink
from leasehold.pipeline.async_sink import Convert as Convert
from leasehold.pipeline.async_sink import Converted as Converted
from leasehold.pipeline.async_sink import Destination as Destination
from leasehold.pipeline.async_sink import Entry as Entry
from leasehold.pipeline.async_sink import Failed as Failed
from leasehold.pipeline.async_sink import RateLimiting as RateLimiting
from leasehold.pipeline.async_sink import json_bytes as json_bytes
from leasehold.pipeline.async_sink import json_row as json_row
from leasehold.pipeline.async_sink import refused as refused
from leasehold.pipeline.connectors.eventhubs.account import account_of as event_hubs_account
from leasehold.pipeline.connectors.eventhubs.broker import EventHubsBroker as EventHubsBroker
from leasehold.pipeline.connectors.log.broker import LogBroker as LogBroker
from leasehold.pipeline.crash_point import crash_point as crash_point
from leasehold.pipeline.endpoint import Endpoint as Endpoint
from leasehold.pipeline.errors import Ambiguous as Ambiguous
from leasehold.pipeline.errors import FeedError as FeedError
from leasehold.pipeline.errors import FeedNotFound as FeedNotFound
from leasehold.pipeline.errors import FeedUnavailable as FeedUnavailable
from leasehold.pipeline.errors import Fenced as Fenced
from leasehold.pipeline.errors import MalformedRecord as MalformedRecord
from leasehold.pipeline.errors import NotTrusted as NotTrusted
from leasehold.pipeline.errors import OutputRefused as OutputRefused
from leasehold.pipeline.errors import OutputTooLarge as OutputTooLarge
from leasehold.pipeline.errors import PipelineError as PipelineError
from leasehold.pipeline.errors import PositionLost as PositionLost
from leasehold.pipeline.errors import SinkError as SinkError
from leasehold.pipeline.errors import SinkNotFound as SinkNotFound
from leasehold.pipeline.errors import SinkRejected as SinkRejected
from leasehold.pipeline.errors import SinkUnavailable as SinkUnavailable
from leasehold.pipeline.event import EVENT_SCHEMA as EVENT_SCHEMA
from leasehold.pipeline.event import Page as Page
from leasehold.pipeline.feed import INTERFACE as FEED_INTERFACE
from leasehold.pipeline.feed import ChangeFeed as ChangeFeed
from leasehold.pipeline.feed import FeedPartition as FeedPartition
from leasehold.pipeline.feed import KnownLag as KnownLag
from leasehold.pipeline.feed import PartitionEnded as PartitionEnded
from leasehold.pipeline.feed import Start as Start
from leasehold.pipeline.handlers.changes import Context as Context
from leasehold.pipeline.handlers.changes import Event as Event
from leasehold.pipeline.handlers.changes import LeaseLost as LeaseLost
from leasehold.pipeline.handlers.changes import Retry as Retry
from leasehold.pipeline.handlers.handler import Handler as Handler
from leasehold.pipeline.limits import AsyncLimits as AsyncLimits
from leasehold.pipeline.markers import Marker as Marker
from leasehold.pipeline.markers import Search as MarkerSearch
from leasehold.pipeline.markers import lease_of as lease_of
from leasehold.pipeline.markers import marker_in as marker_in
from leasehold.pipeline.markers import without_markers as without_markers
from leasehold.pipeline.producer import AlreadyPublished as AlreadyPublished
from leasehold.pipeline.producer import AttachRequest as AttachRequest
from leasehold.pipeline.producer import BatchLocked as BatchLocked
from leasehold.pipeline.producer import EventBatch as EventBatch
from leasehold.pipeline.producer import IdempotentProducer as IdempotentProducer
from leasehold.pipeline.producer import Outcome as Outcome
from leasehold.pipeline.producer import OutgoingEvent as OutgoingEvent
from leasehold.pipeline.producer import PublishError as PublishError
from leasehold.pipeline.producer import Reason as Reason
from leasehold.pipeline.producer import RetryPolicy as RetryPolicy
from leasehold.pipeline.publishing_writer import PUBLISHED_SCHEMA as PUBLISHED_SCHEMA
from leasehold.pipeline.publishing_writer import events_of as events_of
from leasehold.pipeline.publishing_writer import generation_lost as generation_lost
from leasehold.pipeline.ranges import EventRange as EventRange
from leasehold.pipeline.ranges import RangeReader as RangeReader
from leasehold.pipeline.sink import INTERFACE as SINK_INTERFACE
from leasehold.pipeline.sink import Claim as Claim
from leasehold.pipeline.sink import CloseReason as CloseReason
from leasehold.pipeline.sink import Output as Output
from leasehold.pipeline.sink import Permit as Permit
from leasehold.pipeline.sink import Sink as Sink
from leasehold.pipeline.sink import SinkWriter as SinkWriter
from leasehold.pipeline.staging import NotStaged as NotStaged
from leasehold.pipeline.staging import StagedPart as StagedPart
from leasehold.pipeline.staging import Stager as Stager
from leasehold.pipeline.tracing import TraceContext as TraceContext
from leasehold.service.config.cosmos import CosmosFeed as CosmosFeed
from leasehold.service.config.cosmos import CosmosLeases as CosmosLeases
from leasehold.service.config.cosmos import CosmosSink as CosmosSink
from leasehold.service.config.custom import MemoryFeed as MemoryFeed
from leasehold.service.config.custom import MemorySink as MemorySink
from leasehold.service.config.eventhubs import EventHubsFeed as EventHubsFeed
from leasehold.service.config.eventhubs import EventHubsLetters as EventHubsLetters
from leasehold.service.config.eventhubs import EventHubsSink as EventHubsSink
from leasehold.service.config.files import FilesFeed as FilesFeed
from leasehold.service.config.files import FilesLetters as FilesLetters
from leasehold.service.config.files import FilesSink as FilesSink
from leasehold.service.config.http import HttpSink as HttpSink
from leasehold.service.config.kafka import KafkaFeed as KafkaFeed
from leasehold.service.config.kafka import KafkaSink as KafkaSink
from leasehold.service.config.leases import BlobLeases as BlobLeases
from leasehold.service.config.leases import MemoryLeases as MemoryLeases
from leasehold.service.config.leases import SqliteLeases as SqliteLeases
from leasehold.service.config.log import LogFeed as LogFeed
from leasehold.service.config.log import LogLetters as LogLetters
from leasehold.service.config.log import LogSink as LogSink
from leasehold.service.config.nats import NatsFeed as NatsFeed
from leasehold.service.config.nats import NatsSink as NatsSink
from leasehold.service.config.pipeline import Pipeline as Pipeline
from leasehold.service.config.postgres import PostgresLeases as PostgresLeases
from leasehold.service.config.postgres import PostgresLetters as PostgresLetters
from leasehold.service.config.postgres import PostgresSink as PostgresSink
from leasehold.service.config.programs import Sql as Sql
from leasehold.service.config.pulsar import PulsarFeed as PulsarFeed
from leasehold.service.config.pulsar import PulsarSink as PulsarSink
from leasehold.service.config.settings import Api as Api
from leasehold.service.config.settings import HostSettings as HostSettings
from leasehold.service.config.settings import LogSettings as LogSettings
from leasehold.service.config.settings import Spark as Spark
from leasehold.service.config.telemetry import TelemetrySettings as TelemetrySettings
from leasehold.service.embedded import Processor as Processor
from leasehold.service.errors import ConfigurationError as ConfigurationError
from leasehold.service.errors import StartFailed as StartFailed
from leasehold.service.group.estimate import Estimate as Estimate
from leasehold.service.lag.backlog import Backlog as Backlog
from leasehold.service.notifications import BatchDelivered as BatchDelivered
from leasehold.service.notifications import HostJoined as HostJoined
from leasehold.service.notifications import HostLeft as HostLeft
from leasehold.service.notifications import LeaseAcquired as LeaseAcquired
from leasehold.service.notifications import LeaseLoss as LeaseLoss
from leasehold.service.notifications import LeaseReleased as LeaseReleased
from leasehold.service.notifications import Notification as Notification
from leasehold.service.notifications import Notifications as Notifications
from leasehold.service.notifications import PartitionFailing as PartitionFailing
from leasehold.service.notifications import PartitionNotification as PartitionNotification
from leasehold.service.notifications import PartitionRecovered as PartitionRecovered
from leasehold.service.notifications import TrustRestored as TrustRestored
from leasehold.service.notifications import TrustSuspended as TrustSuspended
from leasehold.service.telemetry.logs import configure as configure_logging

__version__: str

# Type checkers hide a name that differs from the one in its module, unless it is listed here.
__all__ = [
    "FEED_INTERFACE",
    "MarkerSearch",
    "SINK_INTERFACE",
    "STORE_INTERFACE",
    "configure_logging",
    "event_hubs_account",
]
