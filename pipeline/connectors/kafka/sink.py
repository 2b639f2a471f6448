"""A Kafka topic as a sink: a batch and its new position are one transaction.

Each lease has its own transactional id and consumer group. A claim initializes a producer with that id, which ends the open
transaction of an earlier producer and fences it. Only then does the claim read the position, and commit it with its own epoch.
An owner that initializes late fences a newer owner, but finds the later epoch and gives way; the newer owner claims again.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Literal, TypeVar

from confluent_kafka import KafkaException

from leasehold.common.standing import Standing
from leasehold.pipeline.connectors.held import Held, admit, claimed, decoded
from leasehold.pipeline.connectors.kafka.cluster import FORBIDDEN, NO_TOPIC, KafkaAccess, KafkaCluster
from leasehold.pipeline.connectors.kafka.kept import check_kept
from leasehold.pipeline.connectors.kafka.transactions import Transactions, find_committed
from leasehold.pipeline.connectors.kafka.writer import KafkaWriter, as_sink_error
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import Ambiguous, PipelineError, SinkNotFound, SinkRejected, SinkUnavailable
from leasehold.pipeline.markers import lease_of
from leasehold.pipeline.sink import Claim, Sink

T = TypeVar("T")
LOOK_S = 1.0
"""How long a claim's first look waits for a commit that is being completed. What a dead owner left open takes longer to end."""
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
PREFIX = "leasehold."
"""The beginning of transactional ids, and of groups that hold positions."""
FOREIGN = (
    "stop what else uses this group, and delete the group (`kafka-consumer-groups.sh --delete`). If the lease is refused then,"
    " that error names the command that continues"
)
BATCH_BYTES = 1_000_000
MESSAGE_BYTES = 1_000, 1_000_000_000
"""The least and the most that librdkafka accepts as its limit of a message's size."""


class KafkaOutputSink(Sink):
    """A source partition goes to the topic's partition of the same name. If there is none, one is chosen once.

    Output columns: as for the log.

    - `by_key`: send each event with a key to the partition that Kafka's own clients choose for that key.
    - `partitions`: create a missing topic with this many partitions. None: the topic has to exist.
    - `transaction_timeout_s`: the brokers abort a batch that takes longer. Readers wait up to this long for one of a dead host.
    - `refresh_s`: how often an idle lease commits its position again, so that the brokers keep it.
    """

    holds_position = True

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        *,
        by_key: bool = False,
        partitions: int | None = None,
        compression: Compression = "none",
        transaction_timeout_s: float = 60.0,
        timeout_s: float = 20.0,
        refresh_s: float = 3600.0,
    ) -> None:
        self._cluster = KafkaCluster(access, timeout_s=timeout_s)
        self._topic = topic
        self._by_key = by_key
        self._create = partitions
        self._refresh_s = refresh_s
        self._producing = {"transaction.timeout.ms": int(transaction_timeout_s * 1000), "compression.type": compression}

    @property
    def identity(self) -> str:
        return f"kafka:{self._topic}"

    @property
    def endpoint(self) -> Endpoint:
        return self._cluster.access.endpoint(self._topic)

    def claimed(self, state: str) -> str:
        """The brokers hold everything; the lease only records that there is a position, to notice its loss."""
        return state

    async def prepare(self) -> None:
        try:
            await self._cluster.describe(self._topic)
        except KafkaException as error:
            await self._make_up_for(error)

    async def _make_up_for(self, error: KafkaException) -> None:
        """Create a missing topic, or raise."""
        code = error.args[0].code()
        if code in NO_TOPIC and self._create is None:
            raise SinkRejected(
                f"{self._cluster.described(error)}: create topic '{self._topic}', or set `partitions` of the sink, which then"
                " creates it"
            ) from error
        if code in NO_TOPIC and self._create is not None:
            return await self._asked(self._cluster.create(self._topic, self._create))
        if code not in FORBIDDEN and await self._cluster.access.are_nowhere():
            raise SinkNotFound(f"{self._cluster.described(error)}: no such host: look at `servers`") from error
        raise self._of_request(error) from error

    async def open(self, claim: Claim) -> KafkaWriter:
        lease, where = self._lease(claim.pipeline, claim.partition), self._where(claim.pipeline, claim.partition)
        with suppress(SinkUnavailable):  # an owner that is already known to be late must not fence the newer one
            admit(claim, (await self._find(claim.pipeline, claim.partition, LOOK_S))[0], where)
        partitions = (await self._asked(self._cluster.describe(self._topic))).partitions
        limit = await self._asked(self._cluster.find_message_bytes_max(self._topic))
        producing = {**self._producing, **limits_of(limit)}
        transactions = Transactions(self._cluster, lease, self._topic, by_key=self._by_key, **producing)
        try:
            await self._asked(transactions.run(transactions.begin))
            held, group = await self._find(claim.pipeline, claim.partition, self._cluster.timeout_s)
            admit(claim, held, where)
            check_kept(claim, held, where)
            ours = claimed(claim, held, partitions, where)
            writer = KafkaWriter(self._cluster, transactions, claim, ours, group, self._refresh_s)
            await writer.put_position()
        except Ambiguous as error:  # the next claim outranks it, whether it was committed or not
            transactions.leave()
            raise SinkUnavailable(str(error)) from error
        except BaseException:
            transactions.leave()
            raise
        return writer

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        held, _ = await self._find(pipeline, partition, self._cluster.timeout_s)
        return None if held is None else Standing(held.generation, held.position)

    async def close(self) -> None:
        await self._cluster.close()

    async def _find(self, pipeline: str, partition: str, patience_s: float) -> tuple[Held | None, bytes]:
        find = partial(find_committed, self._cluster, self._lease(pipeline, partition), self._topic, patience_s)
        found = await self._asked(self._cluster.run(find))
        where = f"the offset in {self._where(pipeline, partition)}"
        return None if found.metadata is None else decoded(found.metadata, where, FOREIGN), found.group

    def _lease(self, pipeline: str, partition: str) -> str:
        """The lease's transactional id, which is also the name of its group."""
        return f"{PREFIX}{self._topic}/{lease_of(pipeline, partition)}"

    def _where(self, pipeline: str, partition: str) -> str:
        return f"topic '{self._topic}' (group '{self._lease(pipeline, partition)}')"

    async def _asked(self, question: Awaitable[T]) -> T:
        """Await a request that sends no part of a batch, so its errors are never Ambiguous."""
        try:
            return await question
        except KafkaException as error:
            raise self._of_request(error) from error

    def _of_request(self, error: KafkaException) -> PipelineError:
        translated = as_sink_error(self._cluster, error)
        return SinkUnavailable(str(translated)) if isinstance(translated, Ambiguous) else translated


def limits_of(message_bytes_max: int | None) -> dict[str, int]:
    """The producer's settings for a topic's limit of a message's size. If the limit is unknown, the brokers alone refuse."""
    least, most = MESSAGE_BYTES
    limit = max(least, min(message_bytes_max or most, most))
    return {"message.max.bytes": limit, "batch.size": min(limit, BATCH_BYTES)}
