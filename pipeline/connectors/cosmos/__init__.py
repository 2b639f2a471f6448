"""The change feed of a Cosmos DB container (NoSQL API), and a container as a sink."""

from leasehold.common.clock import Pauses
from leasehold.pipeline.connectors.cosmos.feed import CosmosFeed
from leasehold.pipeline.connectors.cosmos.sink import LIMITS, cosmos_sink

__all__ = ["LIMITS", "CosmosFeed", "Pauses", "cosmos_sink"]
