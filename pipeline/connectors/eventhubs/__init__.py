"""Event Hubs: its partitions as a feed and as a sink, and a broker for idempotent producers."""

from leasehold.pipeline.connectors.eventhubs.account import EventHubAccount, Transport, account_of, is_consumer_group
from leasehold.pipeline.connectors.eventhubs.broker import EventHubsBroker
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsFeed, HubLetters
from leasehold.pipeline.connectors.eventhubs.position import position_of
from leasehold.pipeline.connectors.eventhubs.sink.sink import EventHubsSink

__all__ = [
    "EventHubAccount",
    "EventHubsBroker",
    "EventHubsFeed",
    "EventHubsSink",
    "HubLetters",
    "Transport",
    "account_of",
    "is_consumer_group",
    "position_of",
]
