"""A topic of one test, and what pulsar-client by itself publishes to it and reads of it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import Any

import pulsar
import pyarrow as pa
from patience import PATIENCE_S, until
from plugins_pulsar import PulsarMachine

from leasehold import Claim, Output
from leasehold.pipeline.connectors.pulsar.broker import PulsarAccess
from leasehold.pipeline.connectors.pulsar.feed import PulsarChangeFeed
from leasehold.pipeline.connectors.pulsar.reader import TopicLimits
from leasehold.pipeline.connectors.pulsar.sink import PulsarOutputSink

PATIENCE_MS = int(PATIENCE_S * 1000)


class Topics:
    """client: a foreign one."""

    def __init__(self, machine: PulsarMachine, name: str | None = None, namespace: str = "public/default") -> None:
        self.machine = machine
        self.name = name or f"topic-{uuid.uuid4().hex[:12]}"
        self.namespace = namespace
        self.topic = f"{namespace}/{self.name}"
        silent = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        self.client = pulsar.Client(machine.url, logger=silent)

    def close(self) -> None:
        self.client.close()

    @property
    def access(self) -> PulsarAccess:
        return PulsarAccess(servers=self.machine.servers)

    def feed(self, **limits: Any) -> PulsarChangeFeed:
        return PulsarChangeFeed(self.access, self.topic, limits=TopicLimits(**{"trusts_headers": True, **limits}))

    def sink(self, **more: Any) -> PulsarOutputSink:
        return PulsarOutputSink(self.access, self.topic, **more)

    def of(self, partition: str) -> str:
        return f"persistent://{self.topic}-partition-{partition}"

    def produce(
        self,
        partition: str,
        bodies: Sequence[bytes | None],
        *,
        as_batch: bool = False,
        in_chunks: bool = False,
        **more: Any,
    ) -> None:
        """Stored when this returns. as_batch: as one entry, else each by itself. in_chunks: large ones as several entries."""
        producer = self.client.create_producer(
            self.of(partition),
            batching_enabled=as_batch,
            chunking_enabled=in_chunks,
            batching_max_publish_delay_ms=3_600_000,
            block_if_queue_full=True,
        )
        try:
            for body in bodies:
                producer.send_async(body, lambda result, place: None, **more)
            producer.flush()
        finally:
            producer.close()

    def messages(self, partition: str) -> list[pulsar.Message]:
        """All there are, in their order, as pulsar-client reads them."""
        reader = self.client.create_reader(self.of(partition), pulsar.MessageId.earliest)
        try:
            found = []
            while reader.has_message_available():
                found.append(reader.read_next(PATIENCE_MS))
            return found
        finally:
            reader.close()

    def forget(self, partition: str) -> None:
        """As retention does: all entries there are. Brokers keep those behind their last snapshot of numbers, at first."""
        self.admin("PUT", "unload", partition)

        def is_empty() -> bool:
            self.admin("POST", "trim", partition)
            ledgers = self.admin("GET", "internalStats", partition)["ledgers"]
            return not any(each["entries"] for each in ledgers)

        until(
            is_empty,
            f"retention has taken partition {partition}",
            lambda: self.admin("GET", "internalStats", partition),
        )

    def remake(self) -> None:
        """Another topic of the same name."""
        self.machine.admin("DELETE", f"persistent/{self.namespace}/{self.name}/partitions?force=true")
        self.machine.make_topic(self.name, 4, self.namespace)

    def admin(self, method: str, of: str, partition: str | None = None) -> Any:
        """A request about the topic, or about a partition of it."""
        name = self.name if partition is None else f"{self.name}-partition-{partition}"
        return self.machine.admin(method, f"persistent/{self.namespace}/{name}/{of}")


class Always:
    def check(self) -> None: ...

    async def wait_until_granted(self) -> None: ...


PERMIT = Always()


def claim(epoch: int = 1, **more: object) -> Claim:
    values = {"continuation": None, "state": "", "generation": 0, "owner": f"host-{epoch}", "partition": "0", **more}
    return Claim(**{"pipeline": "bank", "epoch": epoch, "compare": lambda a, b: int(a or 0) - int(b or 0), **values})  # type: ignore[arg-type]


def output(start: int, to: int, **columns: list[object]) -> Output:
    bodies = [b"%d" % number for number in range(start + 1, to + 1)]
    table = pa.table({"body": bodies, **columns})
    return Output(table=table, start=str(start) if start else None, to=str(to), events=to - start)


def numbers(topics: Topics, partition: str = "0") -> list[int]:
    return [int(message.data()) for message in topics.messages(partition)]
