"""Idempotent publishing, the producer's side: numbers that a broker recognizes, so that nothing is published twice.

`IdempotentProducer` publishes to any broker that keeps the numbers of a producer (`broker.py`): Event Hubs, the embedded log.
`PartitionProducer` is one partition of it, and what sinks publish with. `ProducerState` is what a lease keeps of it.
"""

from leasehold.pipeline.producer.broker import Broker, ProducerLink
from leasehold.pipeline.producer.errors import AlreadyPublished, BatchLocked, Outcome, PublishError, Reason
from leasehold.pipeline.producer.event import (
    NOTHING_YET,
    NUMBER_MAX,
    AttachRequest,
    EventBatch,
    OutgoingEvent,
    ProducerPosition,
    number_after,
)
from leasehold.pipeline.producer.idempotent import (
    LEVEL_MAX,
    STATE_BYTES_MAX,
    IdempotentProducer,
    ProducerState,
    claimed,
    decoded,
    group_of,
)
from leasehold.pipeline.producer.partition import PartitionProducer, RetryPolicy
from leasehold.pipeline.producer.properties import HubProperties, PartitionProperties, PublishingProperties

__all__ = [
    "IdempotentProducer",
    "AttachRequest",
    "OutgoingEvent",
    "EventBatch",
    "RetryPolicy",
    "PublishingProperties",
    "PartitionProperties",
    "HubProperties",
    "PublishError",
    "AlreadyPublished",
    "BatchLocked",
    "Reason",
    "Outcome",
    "Broker",
    "ProducerLink",
    "PartitionProducer",
    "ProducerPosition",
    "number_after",
    "NUMBER_MAX",
    "NOTHING_YET",
    "ProducerState",
    "claimed",
    "decoded",
    "group_of",
    "LEVEL_MAX",
    "STATE_BYTES_MAX",
]
