"""The change feed of a Cosmos DB container (NoSQL API), and a container as a sink."""

from leasehold.common.clock import Pauses
from leasehold.pipeline.connectors.cosmos.feed import CosmosChangeFeed
from leasehold.pipeline.connectors.cosmos.records import PageLimits
from leasehold.pipeline.connectors.cosmos.sink import LIMITS, cosmos_sink

__all__ = ["LIMITS", "CosmosChangeFeed", "PageLimits", "Pauses", "cosmos_sink"]
