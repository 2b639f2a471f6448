"""Event Hubs: its partitions as a feed and as a sink, and a broker for idempotent producers."""

from pipeline.connectors.eventhubs.account import EventHubAccount, Transport, account_of, is_consumer_group
from pipeline.connectors.eventhubs.broker import EventHubsBroker
from pipeline.connectors.eventhubs.feed.feed import EventHubsFeed, HubLetters
from pipeline.connectors.eventhubs.position import position_of
from pipeline.connectors.eventhubs.sink.sink import EventHubsSink

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
