"""The change feed of a Cosmos DB container (NoSQL API), and a container as a sink."""

from pipeline.connectors.cosmos.feed import CosmosFeed
from pipeline.connectors.cosmos.sink import LIMITS, cosmos_sink
from pipeline.connectors.network import Pauses

__all__ = ["LIMITS", "CosmosFeed", "Pauses", "cosmos_sink"]
