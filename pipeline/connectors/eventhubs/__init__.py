"""Event Hubs: its partitions as a feed."""

from pipeline.connectors.eventhubs.account import Account, Transport, account_of, is_consumer_group
from pipeline.connectors.eventhubs.feed import EventHubsFeed
from pipeline.connectors.eventhubs.position import position_of

__all__ = ["Account", "EventHubsFeed", "Transport", "account_of", "is_consumer_group", "position_of"]
