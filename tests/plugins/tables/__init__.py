"""Tables of SQLite for Leasehold: a feed and a sink, exactly once, and a lease store.

A partition is a column's value, and its rows are numbered from 1 without gaps. A batch and its position are one transaction.
"""

from plugins.tables.feed import TableFeed
from plugins.tables.sink import TableSink
from plugins.tables.store import TableLeases

__all__ = ["TableFeed", "TableSink", "TableLeases"]
