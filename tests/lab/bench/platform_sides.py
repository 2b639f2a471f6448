"""Our side over each platform: a copy of its topic, exactly once, without a transform.

python platform_sides.py kafka|pulsar|nats|log

A job's source is `SERVERS/NAME`, of a log its directory. Its `way` is the name of the target.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ours import run, run_jobs
from sides import Job
from workload import PARTITIONS

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.feed import ChangeFeed
from leasehold.pipeline.sink import Sink
from leasehold.pipeline.transform import NoTransform
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

Parts = Callable[[str, str, str], tuple[ChangeFeed, Sink]]
"""From the servers, the source and the target."""


def kafka(servers: str, source: str, target: str) -> tuple[ChangeFeed, Sink]:
    from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess
    from leasehold.pipeline.connectors.kafka.feed import KafkaChangeFeed
    from leasehold.pipeline.connectors.kafka.sink import KafkaOutputSink

    access = KafkaAccess(servers=servers)
    return KafkaChangeFeed(access, source), KafkaOutputSink(access, target)


def pulsar(servers: str, source: str, target: str) -> tuple[ChangeFeed, Sink]:
    from leasehold.pipeline.connectors.pulsar.broker import PulsarAccess
    from leasehold.pipeline.connectors.pulsar.feed import PulsarChangeFeed
    from leasehold.pipeline.connectors.pulsar.sink import PulsarOutputSink

    access = PulsarAccess(servers=servers)
    return PulsarChangeFeed(access, f"public/default/{source}"), PulsarOutputSink(access, f"public/default/{target}")


def nats(servers: str, source: str, target: str) -> tuple[ChangeFeed, Sink]:
    from leasehold.pipeline.connectors.nats.connection import NatsAccess
    from leasehold.pipeline.connectors.nats.feed import NatsChangeFeed
    from leasehold.pipeline.connectors.nats.sink import NatsOutputSink

    access = NatsAccess(servers=servers)
    feed = NatsChangeFeed(access, source, source, partitions=PARTITIONS)
    return feed, NatsOutputSink(access, target, target, partitions=PARTITIONS)


def log(directory: str, source: str, target: str) -> tuple[ChangeFeed, Sink]:
    from leasehold.pipeline.connectors.log import LogChangeFeed, LogOutputSink

    return LogChangeFeed(Path(directory) / source), LogOutputSink(Path(directory) / target)


PLATFORMS: Mapping[str, Parts] = {"kafka": kafka, "pulsar": pulsar, "nats": nats, "log": log}


def main(platform: str) -> None:
    def copying(job: Job) -> ProcessorCore:
        place, _, source = job.source.rpartition("/")
        feed, sink = PLATFORMS[platform](place, source, job.way)
        pipeline = PipelineParts(name="copies", feed=feed, transform=NoTransform(), sink=sink)
        return ProcessorCore([pipeline], SqliteStore(Path(job.state) / "leases.db"), host="bench")

    run(run_jobs(copying))


if __name__ == "__main__":
    main(sys.argv[1])
