"""The contracts of feeds and sinks, as test classes to inherit from.

    class TestMyFeed(ChangeFeedContract):
        @pytest.fixture
        async def harness(self, tmp_path):
            harness = MyHarness(tmp_path)          # a FeedHarness
            yield harness
            await harness.feed.close()

`SinkContract` is used in the same way with a `SinkHarness`. Both need pytest with pytest-asyncio. No test waits for a fixed
time: expected events are awaited for `feed.PATIENCE_S` at most.
"""

import pytest

pytest.register_assert_rewrite("leasehold.pipeline.contract.feed", "leasehold.pipeline.contract.sink")

from leasehold.pipeline.contract.feed import ChangeFeedContract, FeedHarness, body  # noqa: E402  # asserts are rewritten first
from leasehold.pipeline.contract.sink import Row, SinkContract, SinkHarness, event_table  # noqa: E402

__all__ = ["ChangeFeedContract", "FeedHarness", "body", "SinkContract", "SinkHarness", "Row", "event_table"]
