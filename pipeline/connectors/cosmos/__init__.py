"""The change feed of a Cosmos DB container (NoSQL API)."""

from pipeline.connectors.cosmos.account import Account, account_of
from pipeline.connectors.cosmos.feed import CosmosFeed
from pipeline.connectors.patience import Pauses

__all__ = ["Account", "CosmosFeed", "Pauses", "account_of"]
