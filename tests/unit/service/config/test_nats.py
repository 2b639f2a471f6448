"""Settings of NATS: what belongs together, and what would send a secret in clear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leasehold import ConfigurationError, NatsFeed, NatsSink

SEED = "SU" + "A" * 56


def feed(**settings: Any) -> NatsFeed:
    return NatsFeed(**{"servers": "a:4222", "stream": "s", "subject": "bank.orders", "partitions": 2, **settings})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"servers": "a"}, "and must be HOST:PORT"),
        ({"servers": "tls://a:4222"}, "and must be HOST:PORT"),
        ({"servers": "nats://me:hunter2@a:4222"}, "and must be HOST:PORT"),
        ({"stream": "a.b"}, "and must be the name of a stream"),
        ({"subject": "bank.*"}, "and must be the beginning of subjects, without wildcards"),
        ({"subject": "bank."}, "and must be the beginning of subjects, without wildcards"),
        ({"partitions": 0}, "must be greater than or equal to 1"),
        ({"user": "ann"}, "`user` and `password` belong together"),
        ({"password": "hunter2"}, "`user` and `password` belong together"),
        ({"tls": True, "user": "a", "password": "hunter2", "token": "hunter2"}, "has `user` and `token`: keep one"),
        ({"nkey": SEED, "credentials_file": "a.creds"}, "has `nkey` and `credentials_file`: keep one of them"),
        ({"nkey": "hunter2"}, "`nkey` must be the seed of a user's NKey"),
        ({"user": "ann", "password": "hunter2"}, "would send a password or a token without encryption"),
        ({"token": "hunter2"}, "would send a password or a token without encryption"),
        ({"servers": "127.0.0.1:1,a:2", "token": "hunter2"}, "would send a password or a token without encryption"),
        ({"tls": True, "key_file": "a.key"}, "`certificate_file` and `key_file` belong together"),
        ({"certificate_file": "a.pem", "key_file": "a.key"}, "has certificates without `tls: true`"),
    ],
)
def test_what_does_not_fit_together_is_refused_without_its_secrets(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        feed(**settings)
    assert told in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_token_goes_to_this_machine_without_tls() -> None:
    for servers in ("127.0.0.1:4222", "nats://localhost:4222", "[::1]:4222"):
        assert feed(servers=servers, token="hunter2").access.login == {"token": "hunter2"}


def test_signatures_need_no_tls() -> None:
    assert feed(nkey=SEED).access.login == {"nkeys_seed_str": SEED}
    assert feed(credentials_file="a.creds").access.login == {"user_credentials": str(Path.cwd() / "a.creds")}


def test_secrets_are_not_shown() -> None:
    for settings in ({"nkey": SEED}, {"tls": True, "token": SEED}, {"tls": True, "user": "ann", "password": SEED}):
        assert SEED not in f"{feed(**settings)!r}{feed(**settings).access!r}"


def test_a_batch_is_one_publication() -> None:
    sink = NatsSink(servers="a:1", stream="s", subject="s", partitions=1)
    assert (sink.input_events_max, sink.input_bytes_max) == (999, 8 * 1024 * 1024)


def test_the_endpoint_and_the_identity_hold_no_secret() -> None:
    made = feed(servers="nats://[::1]:4222,b:1", nkey=SEED).make(None)  # type: ignore[arg-type]  # it is not asked
    assert made.identity == "nats:s/bank.orders"
    assert (made.endpoint.system, made.endpoint.name, made.endpoint.server, made.endpoint.port) == (
        "nats",
        "s",
        "::1",
        4222,
    )
