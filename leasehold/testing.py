"""Contract suites for your own feeds, sinks and lease stores: test classes to inherit from (docs/plugins.md).

They need pytest and pytest-asyncio.
"""

from leasehold.leases.contract import LeaseStoreContract
from leasehold.pipeline.contract import (
    ChangeFeedContract,
    FeedHarness,
    Row,
    SinkContract,
    SinkHarness,
    body,
    event_table,
)

__all__ = [
    "ChangeFeedContract",
    "FeedHarness",
    "body",
    "SinkContract",
    "SinkHarness",
    "Row",
    "event_table",
    "LeaseStoreContract",
]
