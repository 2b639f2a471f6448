"""A Cosmos feed as a lease container names its leases: after the processor, the account and the container that is read."""

from __future__ import annotations

from leases import dotnet
from leases.errors import StoreUnavailable
from pipeline.connectors.cosmos import CosmosFeed
from pipeline.errors import FeedError


class MonitoredContainer:
    """`leases.stores.cosmos.Monitored` of a feed. It reads the feed once, and keeps the answer."""

    def __init__(self, feed: CosmosFeed, processor: str) -> None:
        self._feed = feed
        self._processor = processor

    @property
    def mode(self) -> str:
        return dotnet.FULL_FIDELITY if self._feed.mode == "all_versions" else dotnet.INCREMENTAL

    async def lease_prefix(self) -> str:
        """Raises StoreUnavailable."""
        try:
            rid = await self._feed.container_rid()
            return dotnet.lease_prefix(self._processor, self._feed.endpoint_host, dotnet.database_rid(rid), rid)
        except (FeedError, ValueError) as error:
            raise StoreUnavailable(f"leases are named after the container that is read, and: {error}") from error
