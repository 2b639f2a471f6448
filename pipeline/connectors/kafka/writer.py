"""A claim's writer of a topic: one transaction at a time, with Kafka's errors translated to those of a sink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException

from leasehold.pipeline.connectors.held import Held
from leasehold.pipeline.connectors.held_writer import Change, HeldWriter
from leasehold.pipeline.connectors.kafka.cluster import FORBIDDEN, NO_TOPIC, KafkaCluster
from leasehold.pipeline.connectors.kafka.kept import known
from leasehold.pipeline.connectors.kafka.reader import OPERATION
from leasehold.pipeline.connectors.kafka.transactions import Record, Transactions
from leasehold.pipeline.errors import (
    Ambiguous,
    Fenced,
    OutputRefused,
    PipelineError,
    SinkNotFound,
    SinkRejected,
    SinkUnavailable,
)
from leasehold.pipeline.publishing_writer import sequences_of, traced_events_of
from leasehold.pipeline.sink import Claim, CloseReason, Output


class KafkaWriter(HeldWriter[Record]):
    """A write that is not committed when its cancellation ends never will be, or the next `open` shows that it is."""

    def __init__(
        self,
        cluster: KafkaCluster,
        transactions: Transactions,
        claim: Claim,
        held: Held,
        group: bytes,
        refresh_s: float,
    ) -> None:
        super().__init__(claim, held, refresh_s)
        self._cluster = cluster
        self._transactions = transactions
        self._group = group

    @property
    def state(self) -> str:
        return known(self._claim.generation)

    async def close(self, reason: CloseReason) -> None:
        self._transactions.leave()

    async def _messages_of(self, output: Output) -> list[Record]:
        return await self._transactions.run(partial(records_of, output))

    async def _put(self, messages: Sequence[Record], change: Change, check: Callable[[], None]) -> None:
        def commit() -> None:
            held = change(self._held)
            self._transactions.commit(messages, held.target, held.encoded(), self._group, check)
            self._held = held

        try:
            await self._transactions.run(commit)
        except KafkaException as error:
            raise as_sink_error(self._cluster, error) from error


def records_of(output: Output) -> list[Record]:
    """Raises SinkRejected, OutputRefused."""
    events = traced_events_of(output, "a topic")
    keys, bodies, properties, operations = (column.to_pylist() for column in events.columns)
    headers = [
        _headers(pairs, operation) if pairs or operation is not None else None
        for pairs, operation in zip(properties, operations, strict=True)
    ]
    if unsent := [n for n, each in enumerate(headers) if each and any("\0" in name for name, _ in each)]:
        sequence = sequences_of(output.table)[unsent[0]]
        raise OutputRefused(
            "the name of a property has a NUL, at which Kafka's client would cut it: leave it out",
            sequences=() if sequence is None else (sequence,),
        )
    return list(zip(keys, bodies, headers, strict=True))


def _headers(
    pairs: Sequence[tuple[str, str | None]] | None, operation: str | None
) -> list[tuple[str, str | bytes | None]]:
    """Values are sent as bytes, because the client cuts a text at a NUL."""
    mark = () if operation is None else ((OPERATION, operation),)
    return [(name, None if value is None else value.encode()) for name, value in (*(pairs or ()), *mark)]


FENCED = frozenset(
    (
        KafkaError._FENCED,  # noqa: SLF001
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    )
)
MEANINGS: tuple[tuple[frozenset[int], type[PipelineError], str], ...] = (
    (FENCED, Fenced, "another owner has claimed the lease, or a batch took longer than `transaction_timeout_s`"),
    (FORBIDDEN, SinkRejected, "look at user, password and certificates, and at the rights that docs/kafka.md lists"),
    (NO_TOPIC, SinkNotFound, "create the topic, or correct `topic`"),
    (
        frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)),
        OutputRefused,
        "raise `max.message.bytes` of the topic, or produce smaller output",
    ),
    (
        frozenset((KafkaError.OFFSET_METADATA_TOO_LARGE,)),
        SinkRejected,
        "raise `offset.metadata.max.bytes` of the brokers: this feed has long positions",
    ),
    (
        frozenset((KafkaError.INVALID_TRANSACTION_TIMEOUT,)),
        SinkRejected,
        "lower `transaction_timeout_s` of the sink, or raise `transaction.max.timeout.ms` of the brokers",
    ),
)


def as_sink_error(cluster: KafkaCluster, error: KafkaException) -> PipelineError:
    """What the error of an uncommitted transaction, or of a request, means to a sink."""
    found, text = error.args[0], cluster.described(error)
    for codes, meaning, remedy in MEANINGS:
        if found.code() in codes:
            return meaning(f"{text}: {remedy}")
    return SinkUnavailable(text) if found.retriable() or found.txn_requires_abort() else Ambiguous(text)
