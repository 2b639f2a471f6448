"""Settings of Pulsar: what belongs together, and what would send a secret in clear."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold import ConfigurationError, PulsarFeed, PulsarSink


def feed(**settings: Any) -> PulsarFeed:
    return PulsarFeed(**{"servers": "a:6650", "topic": "orders", **settings})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"servers": "a"}, "and must be HOST:PORT"),
        ({"servers": "pulsar://a:6650"}, "and must be HOST:PORT"),
        ({"servers": "pulsar://me:hunter2@a:6650"}, "and must be HOST:PORT"),
        ({"topic": "a/b"}, "and must be the name of a persistent topic"),
        ({"topic": "non-persistent://a/b/c"}, "and must be the name of a persistent topic"),
        ({"tls": True, "token": "hunter2", "token_file": "a"}, "has `token` and `token_file`: keep one of them"),
        ({"tls": True, "oauth_issuer": "https://a"}, "`oauth_issuer` and `oauth_file` belong together"),
        ({"oauth_scope": "s"}, "`oauth_audience` and `oauth_scope` need `oauth_issuer`"),
        ({"token": "hunter2"}, "would send a token without encryption"),
        ({"token_file": "a"}, "would send a token without encryption"),
        ({"servers": "127.0.0.1:1,a:2", "token": "hunter2"}, "would send a token without encryption"),
        ({"tls": True, "key_file": "a.key"}, "`certificate_file` and `key_file` belong together"),
        ({"certificate_file": "a.pem", "key_file": "a.key"}, "has certificates without `tls: true`"),
        ({"commits": True}, "has `commits` without `subscription`"),
    ],
)
def test_what_does_not_fit_together_is_refused_without_its_secrets(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        feed(**settings)
    assert told in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("servers", ["127.0.0.1:6650", "localhost:6650", "[::1]:6650"])
def test_a_token_goes_to_this_machine_without_tls(servers: str) -> None:
    assert feed(servers=servers, token="hunter2").access.token == "hunter2"


@pytest.mark.parametrize("topic", ["orders", "public/default/orders", "persistent://public/default/orders"])
def test_a_topic_has_one_identity_however_it_is_written(topic: str) -> None:
    assert feed(topic=topic).make(None).identity == "pulsar:public/default/orders"  # type: ignore[arg-type]  # it is not asked


def test_secrets_are_not_shown() -> None:
    made = feed(tls=True, token="hunter2")
    assert "hunter2" not in f"{made!r}{made.access!r}"


def test_the_address_is_a_url_of_pulsar() -> None:
    assert feed(servers="a:1, b:2").access.url == "pulsar://a:1,b:2"
    assert feed(servers="a:1", tls=True).access.url == "pulsar+ssl://a:1"
    endpoint = feed(servers="b:2,[::1]:1").access.endpoint("t")
    assert (endpoint.system, endpoint.name, endpoint.server, endpoint.port) == ("pulsar", "t", "::1", 1)


def test_a_batch_is_one_entry() -> None:
    sink = PulsarSink(servers="a:1", topic="t", message_bytes_max=1_000_000)
    assert (sink.input_events_max, sink.input_bytes_max) == (2048, 750_000)


def test_two_pipelines_may_not_move_one_cursor() -> None:
    seats = {feed(commits=True, subscription=name).committing_seat for name in ("a", "a", "b")}
    assert len(seats) == 2
    assert feed().committing_seat is None
    assert feed().make_outside_checkpoints() is None
