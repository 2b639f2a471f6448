"""Event Hubs: its partitions as a feed."""

from pipeline.connectors.eventhubs.account import Account, account_of

__all__ = ["Account", "account_of"]
