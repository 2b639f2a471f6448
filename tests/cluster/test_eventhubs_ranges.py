"""Spark's executors read a hub, on the wire server."""

from __future__ import annotations

import pytest
from cluster.ranged_host import read_in_spark
from connectors.eventhubs.clients import HUB
from plugins_eventhubs import EventHubs

pytestmark = pytest.mark.timeout(300)
SQL = "SELECT partition, sequence, string(body) AS body FROM events"


async def test_executors_read_a_hub_with_the_connection_string_of_their_environment(eventhubs: EventHubs) -> None:
    for partition in ("0", "1"):
        eventhubs.control.append(HUB, partition, [f"{partition}/{n}" for n in range(450)])
    rows, ranges = await read_in_spark(
        *("eventhubs", {"event_hub": HUB}, SQL, 400, 100),
        secret=eventhubs.connection_string,
        key=eventhubs.key,
        port=eventhubs.port,
        hold=lambda: eventhubs.control.fault("delay", "attach.receiver", group="sinks", delay_s=2.0),
    )
    assert ranges == 4
    assert rows == [{"partition": "0", "sequence": n, "body": f"0/{n}"} for n in range(400)]
