"""TLS and SASL to a real broker: what is needed is accepted, what is wrong is named, and no secret is shown."""

from __future__ import annotations

import base64
import json
import logging
import time
from dataclasses import dataclass, replace

import pytest
from connectors.kafka.topics import Topics
from plugins_kafka import PASSWORD, USER

from leasehold import FeedError, KafkaFeed
from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess
from leasehold.pipeline.connectors.kafka.feed import KafkaChangeFeed
from leasehold.pipeline.errors import FeedUnavailable

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""


@dataclass(frozen=True)
class Token:
    token: str
    expires_on: int


class Credential:
    """As of azure-identity. Its tokens are unsigned, which this broker takes."""

    def __init__(self) -> None:
        self.scopes: list[str] = []

    async def get_token(self, *scopes: str, **more: object) -> Token:
        self.scopes += scopes
        ends = int(time.time()) + 3600
        parts = ({"alg": "none"}, {"sub": USER, "iat": int(time.time()), "exp": ends})
        text = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
        return Token(".".join([*text, ""]), ends)


def access(topics: Topics, **settings: object) -> KafkaAccess:
    """As settings make it."""
    machine = topics.machine
    own = {"servers": machine.sasl_servers, "topic": topics.name, "tls": True, "ca_file": str(machine.ca)}
    return KafkaFeed(**{**own, **settings}).access  # type: ignore[arg-type]


def user(mechanism: str, password: str = PASSWORD) -> dict[str, object]:
    return {"sasl": mechanism, "user": USER, "password": password}


async def partitions(topics: Topics, access: KafkaAccess) -> list[str]:
    feed = KafkaChangeFeed(access, topics.name, timeout_s=10)
    try:
        found = await feed.partitions()
        topics.produce(0, [b"0"])
        reader = feed.open("0", None)
        assert (await anext(reader)).events["body"].to_pylist() == [b"0"]
        await reader.aclose()
    finally:
        await feed.close()
    return [each.name for each in found]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_user_with_a_password_reads_over_tls(
    topics: Topics, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert await partitions(topics, access(topics, **user(mechanism))) == ["0", "1", "2", "3"]
    assert PASSWORD not in caplog.text


async def test_an_identity_reads_with_tokens(topics: Topics) -> None:
    credential = Credential()
    own = replace(access(topics, identity="default"), identity=credential)
    assert await partitions(topics, own) == ["0", "1", "2", "3"]
    assert set(credential.scopes) == {"https://localhost/.default"}


async def test_a_wrong_password_is_named_as_such_and_not_shown(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = access(topics, **user("SCRAM-SHA-256", "wrong-secret"))
    with caplog.at_level(logging.DEBUG), pytest.raises(FeedUnavailable, match=r"(?i)authentication") as refused:
        await partitions(topics, wrong)
    assert "wrong-secret" not in str(refused.value) + caplog.text + repr(wrong)


async def test_an_authority_that_is_not_trusted_is_an_error(topics: Topics) -> None:
    with pytest.raises(FeedError, match=r"(?i)certificate"):
        await partitions(topics, access(topics, **user("PLAIN"), ca_file=None))
