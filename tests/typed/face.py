"""What type checkers know of `leasehold`: the type of each name, and which names there are."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import leasehold
from leasehold import (
    FEED_INTERFACE,
    ChangeFeed,
    Context,
    CosmosFeed,
    CosmosLeases,
    Event,
    FilesFeed,
    Handler,
    IdempotentProducer,
    LeaseStore,
    LogSink,
    Pipeline,
    Processor,
    Sink,
    SqliteLeases,
    event_hubs_account,
)
from leasehold.pipeline.connectors.eventhubs.account import EventHubAccount
from leasehold.testing import SinkHarness


async def on_changes(changes: list[Event], context: Context) -> None:
    assert_type(changes[0].body, bytes | None)
    await context.checkpoint(changes[-1])


class OnChanges(Handler):
    async def process(self, changes: list[Event], context: Context) -> None:
        assert_type(context.partition, str)


def processor_of(feed: ChangeFeed, sink: Sink, store: LeaseStore) -> Processor:
    assert_type(FEED_INTERFACE.bit_length(), int)
    assert_type(leasehold.__version__, str)
    assert_type(event_hubs_account(connection_string="", event_hub="raw-event"), EventHubAccount)
    copy = Pipeline("copy", feed=FilesFeed(path="words-*.jsonl"), sink=LogSink(path=Path("state/words")))
    orders = Pipeline("orders", feed=CosmosFeed(database="shop", container="orders"), handler=on_changes)
    own = Pipeline("own", feed=feed, sink=sink)
    by_class = Pipeline("class", feed=feed, handler=OnChanges, checkpoint_s="manual")
    assert_type(CosmosLeases(database="shop").container, str)
    assert_type(Processor(copy, leases=store), Processor)
    return Processor(copy, orders, own, by_class, leases=SqliteLeases(path=Path("leases.db")), host="my-program")


async def sink_of(harness: SinkHarness, producer: IdempotentProducer) -> Sink:
    await producer.close()
    return await harness.sink()


leasehold.Procesor  # type: ignore[attr-defined]  # noqa: B018  # an unknown name is an error
