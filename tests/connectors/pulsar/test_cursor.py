"""The cursor that the feed `pulsar` moves on request, as the broker's own statistics show it to KEDA."""

from __future__ import annotations

import pytest
from connectors.pulsar.topics import Topics
from plugins_node import free_port

from leasehold.pipeline.connectors.pulsar.broker import PulsarAccess
from leasehold.pipeline.connectors.pulsar.cursor import SubscriptionCursors
from leasehold.pipeline.errors import FeedUnavailable

pytestmark = pytest.mark.xdist_group("pulsar")
"""One broker, instead of one for each process."""

SUBSCRIPTION = "bank"


def backlog(topics: Topics) -> int:
    """In entries."""
    found = topics.admin("GET", "stats", "0")["subscriptions"][SUBSCRIPTION]
    return int(found["msgBacklog"])


async def test_the_backlog_is_what_no_lease_has_passed_and_a_reset_moves_it_back(topics: Topics) -> None:
    cursors = SubscriptionCursors(topics.access, topics.topic, SUBSCRIPTION, timeout_s=20.0)
    for first in (0, 3, 6):
        topics.produce("0", [b"%d" % number for number in range(first, first + 3)], as_batch=True)
    entries = sorted({(m.message_id().ledger_id(), m.message_id().entry_id()) for m in topics.messages("0")})
    first, second, third = (f"{ledger}:{entry}" for ledger, entry in entries)
    wanted = [(first, 2), (f"{second}:1", 2), (f"{second}:2", 1), (f"{third}:2", 0), (third, 0), (f"{first}:0", 3)]
    for position, left in [*wanted, (None, 3)]:
        assert await cursors.write("0", position, 0) == "written"
        assert backlog(topics) == left, position
    await cursors.close()


async def test_a_probe_makes_what_is_missing(topics: Topics) -> None:
    cursors = SubscriptionCursors(topics.access, topics.topic, SUBSCRIPTION, timeout_s=20.0)
    topics.produce("0", [b"1"])
    assert await cursors.count() == 4
    assert backlog(topics) == 1
    assert cursors.name_of("0") == f"{topics.topic}/0/bank"
    await cursors.close()


async def test_brokers_that_are_away_are_an_error(topics: Topics) -> None:
    access = PulsarAccess(servers=f"127.0.0.1:{free_port()}")
    away = SubscriptionCursors(access, topics.topic, SUBSCRIPTION, timeout_s=1.0)
    with pytest.raises(FeedUnavailable, match="Pulsar 127"):
        await away.write("0", "1:2", 0)
    await away.close()
