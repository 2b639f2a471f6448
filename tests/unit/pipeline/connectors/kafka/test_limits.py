"""How a topic's limit of a message's size becomes a producer's, and who may not know it."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigEntry, ConfigResource

from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess, KafkaCluster
from leasehold.pipeline.connectors.kafka.sink import limits_of

NAME = "max.message.bytes"


class Admin:
    """An AdminClient whose brokers know these settings of a topic, or fail."""

    def __init__(self, answer: dict[str, ConfigEntry] | KafkaException) -> None:
        self._answer = answer

    def describe_configs(self, resources: Iterable[ConfigResource], **_: object) -> dict[ConfigResource, Future[Any]]:
        answered: dict[ConfigResource, Future[Any]] = {each: Future() for each in resources}
        for future in answered.values():
            if isinstance(self._answer, KafkaException):
                future.set_exception(self._answer)
            else:
                future.set_result(self._answer)
        return answered


async def limit_of(answer: dict[str, ConfigEntry] | KafkaException) -> int | None:
    cluster = KafkaCluster(KafkaAccess(servers="127.0.0.1:9092"), timeout_s=1.0)
    cluster._admin = Admin(answer)  # type: ignore[assignment]
    return await cluster.find_message_bytes_max("out")


async def test_a_topics_limit_is_read() -> None:
    assert await limit_of({NAME: ConfigEntry(NAME, "2000")}) == 2000


async def test_a_limit_that_is_not_shown_is_unknown() -> None:
    assert await limit_of({}) is None
    assert await limit_of(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))) is None


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.UNKNOWN_TOPIC_OR_PART])
async def test_a_limit_that_could_not_be_read_is_an_error(code: int) -> None:
    with pytest.raises(KafkaException) as failed:
        await limit_of(KafkaException(KafkaError(code)))
    assert failed.value.args[0].code() == code


@pytest.mark.parametrize(
    ("limit", "message_bytes", "batch_bytes"),
    [
        (2000, 2000, 2000),
        (10_000_000, 10_000_000, 1_000_000),
        (1, 1000, 1000),
        (2**31 - 1, 1_000_000_000, 1_000_000),
        (None, 1_000_000_000, 1_000_000),
    ],
)
def test_a_producer_refuses_what_the_topic_refuses_as_far_as_it_knows(
    limit: int | None, message_bytes: int, batch_bytes: int
) -> None:
    assert limits_of(limit) == {"message.max.bytes": message_bytes, "batch.size": batch_bytes}
