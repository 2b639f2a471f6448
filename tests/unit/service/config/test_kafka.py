"""The settings of Kafka: what goes together, and which groups a feed may commit to."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess
from leasehold.pipeline.connectors.kafka.feed import KafkaChangeFeed
from leasehold.pipeline.connectors.kafka.sink import KafkaOutputSink
from leasehold.service.config.kafka import KafkaFeed
from leasehold.service.config.load import parse
from leasehold.service.config.settings import Settings
from leasehold.service.errors import ConfigurationError


def settings(*feeds: str) -> Settings:
    pipelines = ", ".join(
        f"{{name: p{number}, feed: {{type: kafka, topic: orders, {feed}}}, sink: {{type: log, path: out{number}}}}}"
        for number, feed in enumerate(feeds)
    )
    return parse(f"pipelines: [{pipelines}]", {}, folder=Path("/etc/leasehold"))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("servers: a", "must be HOST:PORT"),
        ("servers: 'a:9092', sasl: PLAIN, user: u, tls: true", "`sasl`, `user` and `password` belong together"),
        ("servers: 'a:9092', sasl: PLAIN, user: u, password: p", "without encryption: set `tls: true`"),
        ("servers: 'a:9092', identity: default", "without encryption: set `tls: true`"),
        (
            "servers: 'a:9092', tls: true, sasl: PLAIN, user: u, password: p, identity: default",
            "has both `sasl` and an identity: keep one of them",
        ),
        ("servers: 'a:9092', commits: true", "has `commits` without `group`: name a group for this pipeline alone"),
        (
            "servers: 'a:9092', commits: true, group: leasehold.orders/bank/0",
            "groups that begin with `leasehold.` hold positions of sinks",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(fields: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        settings(fields)
    assert expected in str(refused.value)


def test_two_pipelines_may_not_commit_to_one_group() -> None:
    """However the brokers are listed. Without commits, a group can be shared."""
    ours, theirs = "servers: 'a:9092,b:9092', group: g", "servers: 'b:9092, a:9092', group: g"
    settings(ours, theirs)
    settings(f"{ours}, commits: true", theirs)
    settings(f"{ours}, commits: true", f"{theirs}1, commits: true")
    with pytest.raises(ConfigurationError, match=r"'p0' and 'p1' would commit .* give each a `group` of its own"):
        settings(f"{ours}, commits: true", f"{theirs}, commits: true")


async def test_leases_belong_to_a_topic_whichever_of_its_brokers_are_listed() -> None:
    for kind in (KafkaChangeFeed, KafkaOutputSink):
        identities = [kind(KafkaAccess(servers=servers), "orders").identity for servers in ("a:9092,b:9092", "c:9092")]
        assert identities == ["kafka:orders", "kafka:orders"]


async def test_offsets_are_committed_only_on_request() -> None:
    assert KafkaFeed(servers="a:9092", topic="orders").make_outside_checkpoints() is None
    made = KafkaFeed(servers="a:9092", topic="orders", group="g", commits=True).make_outside_checkpoints()
    assert made is not None
    assert made.name_of("3") == "g/orders/3"
    await made.close()
