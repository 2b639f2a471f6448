"""Files as a feed: every file that matches a glob is a partition, every record of CSV or JSON lines an event."""

from leasehold.pipeline.connectors.files.feed.feed import FilesChangeFeed
from leasehold.pipeline.connectors.files.feed.reader import Reading

__all__ = ["FilesChangeFeed", "Reading"]
