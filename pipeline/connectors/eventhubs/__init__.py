"""Event Hubs: its partitions as a feed."""

from pipeline.connectors.eventhubs.account import Account, Transport, account_of
from pipeline.connectors.eventhubs.feed import EventHubsFeed

__all__ = ["Account", "EventHubsFeed", "Transport", "account_of"]
