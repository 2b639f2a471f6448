"""What type checkers know of `leasehold`: the type of each name, and which names there are."""

from __future__ import annotations

from typing import assert_type

import leasehold
from leasehold import (
    FEED_INTERFACE,
    ChangeFeed,
    FilesFeed,
    IdempotentProducer,
    LeaseStore,
    LogSink,
    Pipeline,
    Processor,
    Sink,
    SqliteStore,
    Timing,
    derived_timing,
    event_hubs_account,
)
from leasehold.pipeline.connectors.eventhubs import EventHubAccount
from leasehold.testing import SinkHarness


def parts() -> tuple[ChangeFeed, Sink, LeaseStore]:
    return FilesFeed("words-*.jsonl"), LogSink("state/words"), SqliteStore("state/leases.db")


@leasehold.handler(feed={"type": "log", "path": "orders"}, events_max=10, ack="manual")
async def handle(events: leasehold.Events) -> None:
    assert_type(events.key, str | None)
    if not assert_type(events.is_stale, bool):
        await events.ack(events[-1]["sequence"])


def run_handler() -> None:
    leasehold.run(handle, until_idle=True)
    handle.run()


def processor_of(feed: ChangeFeed, sink: Sink, store: LeaseStore) -> Processor:
    pipeline = Pipeline(name="copy", feed=feed, sink=sink)
    assert_type(pipeline, leasehold.Pipeline)
    assert_type(derived_timing(30), Timing)
    assert_type(FEED_INTERFACE.bit_length(), int)
    assert_type(leasehold.__version__, str)
    assert_type(event_hubs_account(connection_string="", event_hub="raw-event"), EventHubAccount)
    return Processor([pipeline], store, host="my-program", timing=derived_timing(30))


async def sink_of(harness: SinkHarness, producer: IdempotentProducer) -> Sink:
    await producer.close()
    return await harness.sink()


leasehold.Procesor  # type: ignore[attr-defined]  # noqa: B018  # an unknown name is an error
Pipeline(name="copy", feed=1, sink=2)  # type: ignore[arg-type]
