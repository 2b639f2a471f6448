"""The offsets of several partitions: a partition that fails leaves the others alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo

from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess, KafkaCluster, Topic
from leasehold.pipeline.connectors.kafka.feed import KafkaChangeFeed
from leasehold.pipeline.errors import FeedUnavailable

Answer = int | KafkaException
NO_ANSWER = OFFSET_INVALID
"""The client gives this offset, and no error, if a broker does not answer in time."""


def failure(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


class Admin:
    """An AdminClient with a script. answers: of each partition, one after the other; the last one lasts."""

    def __init__(self, **answers: list[Answer]) -> None:
        self._answers = {int(name.removeprefix("p")): each for name, each in answers.items()}
        self.asked: list[list[int]] = []

    def list_offsets(self, wanted: Iterable[TopicPartition], **_: object) -> dict[TopicPartition, Future[Any]]:
        places = list(wanted)
        self.asked.append([place.partition for place in places])
        return {place: self._answered(self._answers[place.partition]) for place in places}

    def _answered(self, script: list[Answer]) -> Future[Any]:
        answer, future = script.pop(0) if len(script) > 1 else script[0], Future[Any]()
        if isinstance(answer, KafkaException):
            future.set_exception(answer)
        else:
            future.set_result(ListOffsetsResultInfo(answer, -1, -1))
        return future


Make = Callable[..., tuple[KafkaChangeFeed, Admin]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    async def describe(self: KafkaCluster, name: str) -> Topic:
        return Topic("id", 3)

    def made(**answers: list[Answer]) -> tuple[KafkaChangeFeed, Admin]:
        monkeypatch.setattr(KafkaCluster, "describe", describe)
        feed, admin = KafkaChangeFeed(KafkaAccess(servers="127.0.0.1:9092"), "orders", timeout_s=1.0), Admin(**answers)
        monkeypatch.setattr(admin, "poll", lambda timeout_s: None, raising=False)
        feed._cluster._admin = admin  # type: ignore[assignment]
        return feed, admin

    return made


@pytest.mark.parametrize("answer", [NO_ANSWER, failure(KafkaError._NOENT), failure(KafkaError._TIMED_OUT)])
async def test_the_lag_of_a_partition_is_known_though_another_ones_leader_does_not_answer(
    make: Make, answer: Answer
) -> None:
    feed, admin = make(p0=[5], p1=[answer], p2=[7])
    assert (await feed.lag("0", None), await feed.lag("2", "3")) == (5, 4)
    assert await feed.latest("2") == "7@id"
    with pytest.raises(FeedUnavailable):
        await feed.lag("1", None)
    with pytest.raises(FeedUnavailable):
        await feed.latest("1")
    assert admin.asked == [[0, 1, 2]] * 5


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_partition_does_not_start_anywhere_while_its_leader_does_not_answer(make: Make, start: Any) -> None:
    feed, _ = make(p0=[5], p1=[NO_ANSWER], p2=[7])
    with pytest.raises(FeedUnavailable, match="leader did not answer"):
        await feed.start_of("1", start)


async def test_only_partitions_whose_leader_moves_are_asked_again(make: Make) -> None:
    moving = failure(KafkaError.NOT_LEADER_FOR_PARTITION)
    feed, admin = make(p0=[5], p1=[moving, moving, 6], p2=[failure(KafkaError._TIMED_OUT)])
    assert await feed.lag("1", None) == 6
    assert admin.asked == [[0, 1, 2], [1], [1]]


async def test_a_leader_that_moves_for_too_long_is_an_error_of_its_partition(make: Make) -> None:
    feed, _ = make(p0=[5], p1=[failure(KafkaError.NOT_LEADER_FOR_PARTITION)], p2=[7])
    assert await feed.lag("0", None) == 5
    with pytest.raises(FeedUnavailable):
        await feed.lag("1", None)
