"""From publishing to PostgreSQL: one event at a time through an event hub, Spark and the sink."""

from __future__ import annotations

import asyncio
from pathlib import Path

from observer import job_on, postgres, probed
from plugins_eventhubs import EventHubs
from sides import Side
from workload import PARTITIONS

from leasehold.pipeline.connectors.eventhubs import EventHubsBroker, account_of
from leasehold.pipeline.producer import Event, IdempotentProducer

HUB = "probes"


def latencies_ms(server: EventHubs, directory: Path, *, probes: int, warm_probes: int) -> list[float]:
    """Sorted."""
    server.control.make_hub(HUB, PARTITIONS)
    source = f"{server.connection_string};EntityPath={HUB}"
    producer = IdempotentProducer(EventHubsBroker(account_of(connection_string=source)))
    with (
        asyncio.Runner() as runner,
        postgres(directory) as database_server,
        job_on(database_server, directory, "bench_hub", source) as (job, database),
        Side("hub_spark.py", directory / "hub_spark.stderr") as side,
    ):

        def publish(partition: str, body: bytes) -> None:
            runner.run(producer.send([Event(body=body)], partition))

        waits = probed(side, job, database, publish, probes=probes, warm_probes=warm_probes)
        found = sorted(1000 * wait_s for wait_s in waits)
        runner.run(producer.close())
    return found
