"""Files as a feed: every file that matches a glob is a partition, every record of CSV or JSON lines an event."""

from leasehold.pipeline.connectors.files.feed.feed import FilesFeed

__all__ = ["FilesFeed"]
