"""TLS, tokens and OAuth 2.0 to a real broker: what is needed is accepted, what is wrong is named, and no secret is shown."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from connectors.pulsar.topics import PERMIT, Topics, claim, output
from plugins_pulsar import SECRET, PulsarMachine, token_of

from leasehold import FeedError, FeedUnavailable, PulsarFeed, PulsarSink, SinkError, SinkRejected, SinkUnavailable
from leasehold.pipeline.errors import FeedNotFound

pytestmark = pytest.mark.xdist_group("pulsar")
"""One broker, instead of one for each process."""

ROLE = "bank"


@pytest.fixture
def granted(topics: Topics) -> Topics:
    """ROLE may do what the page lists, and nothing else."""
    topics.machine.admin("POST", f"persistent/{topics.topic}/permissions/{ROLE}", ["produce", "consume"])
    return topics


class Issuer:
    """An OAuth 2.0 server. secrets: what it was shown."""

    def __init__(self) -> None:
        self.secrets: list[str] = []
        seen = self.secrets

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({"token_endpoint": f"http://127.0.0.1:{self.server.server_port}/token"})  # type: ignore[attr-defined]

            def do_POST(self) -> None:
                seen.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self._answer({"access_token": token_of(ROLE), "token_type": "Bearer", "expires_in": 3600})

            def _answer(self, what: dict[str, Any]) -> None:
                body = json.dumps(what).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.server.shutdown()


async def stored(topics: Topics, **settings: Any) -> list[bytes]:
    """What a sink with these settings wrote and a feed read."""
    own = {"topic": topics.topic, "timeout_s": 5.0, **settings}
    sink, feed = PulsarSink(**own).make(None), PulsarFeed(**own).make(None)  # type: ignore[arg-type]
    try:
        await sink.prepare()
        writer = await sink.open(claim(len(topics.messages("0")) + 1, continuation=None))
        at = int(writer.position or 0)
        await writer.write(output(at, at + 1), PERMIT)
        reader = feed.open("0", None)
        found = (await anext(reader)).events["body"].to_pylist()
        await reader.aclose()
        return list(found)
    finally:
        await sink.close()
        await feed.close()


async def test_tokens_files_of_tokens_and_tls_are_let_in(
    granted: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine, token, file = granted.machine, token_of(ROLE), tmp_path / "token"
    file.write_text(f"{token}\n")
    tls = {"servers": machine.tls_servers, "tls": True, "ca_file": machine.ca}
    with caplog.at_level(logging.DEBUG):
        assert (await stored(granted, servers=machine.servers, token=token))[:1] == [b"1"]
        assert (await stored(granted, **tls, token_file=file))[:1] == [b"1"]
        assert (await stored(granted, **tls))[:1] == [b"1"]
    assert token not in caplog.text


async def test_a_token_of_an_oauth_server_lets_in(granted: Topics, issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "client.json"
    file.write_text(json.dumps({"type": "client_credentials", "client_id": "bank", "client_secret": "hunter2"}))
    oauth = {"oauth_issuer": issuer.url, "oauth_file": file, "oauth_audience": "urn:pulsar"}
    assert (await stored(granted, servers=granted.machine.servers, **oauth))[:1] == [b"1"]
    assert "hunter2" in issuer.secrets[0]


@pytest.mark.parametrize(
    ("secret", "of_feeds", "of_sinks", "told"),
    [
        (SECRET, FeedNotFound, SinkRejected, "AuthorizationError: look at the token"),
        (b"another secret of 32 bytes......", FeedUnavailable, SinkUnavailable, "a token may be wrong"),
    ],
    ids=["without rights", "wrong"],
)
async def test_a_token_that_is_refused_is_named_and_not_shown(
    topics: Topics, secret: bytes, of_feeds: type[FeedError], of_sinks: type[SinkError], told: str
) -> None:
    """Nobody has granted ROLE anything. The client does not learn why a connection was refused."""
    token = token_of(ROLE, secret=secret)
    settings = {"servers": topics.machine.servers, "topic": topics.topic, "token": token, "timeout_s": 2.0}
    feed, sink = PulsarFeed(**settings).make(None), PulsarSink(**settings).make(None)  # type: ignore[arg-type]
    with pytest.raises(of_feeds, match=told) as of_feed:
        await anext(feed.open("0", None))
    with pytest.raises(of_sinks, match=told) as of_sink:
        await sink.prepare()
    assert token not in f"{of_feed.value}{of_sink.value}{PulsarFeed(**settings)!r}{PulsarFeed(**settings).access!r}"
    await feed.close()
    await sink.close()


async def test_a_certificate_of_another_authority_is_refused(topics: Topics, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    settings = {"servers": topics.machine.tls_servers, "tls": True, "ca_file": other, "topic": topics.topic}
    feed = PulsarFeed(**settings, timeout_s=2.0).make(None)  # type: ignore[arg-type]
    with pytest.raises(FeedUnavailable, match="the certificate may not fit"):
        await feed.partitions()
    await feed.close()


async def test_a_certificate_for_another_name_is_refused(pulsar_server: PulsarMachine, topics: Topics) -> None:
    host = pulsar_server.tls_servers.replace("localhost", "127.0.0.2")
    settings = {"servers": host, "tls": True, "ca_file": pulsar_server.ca, "topic": topics.topic}
    sink = PulsarSink(**settings, timeout_s=2.0).make(None)  # type: ignore[arg-type]
    with pytest.raises(SinkUnavailable, match="the certificate may not fit"):
        await sink.prepare()
    await sink.close()
