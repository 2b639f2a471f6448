"""TLS and logins to a real server: what is needed is accepted, what is wrong is named, and no secret is shown."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nkeys
import pytest
import trustme
from connectors.nats.streams import Made
from connectors.nats.test_sink import Open, claim, output
from patience import PATIENCE_S
from plugins_nats import NatsMachine, configured

from leasehold import FeedError, FeedUnavailable, NatsFeed, NatsSink, SinkRejected, SinkUnavailable
from leasehold.pipeline.connectors.nats.connection import Forbidden, NatsConnection, Unanswered, Unreachable
from leasehold.pipeline.errors import FeedNotFound

SECRET = "hunter2-hunter2"
PLACE: dict[str, Any] = {"stream": "s", "subject": "s", "partitions": 1}
USERS = f'authorization {{ users: [{{user: "ann", password: "{SECRET}"}}, {{nkey: "%s"}}] }}'


def access(machine: NatsMachine, **settings: Any) -> Any:
    """As settings make it."""
    own = {"servers": machine.servers, "stream": "s", "subject": "s", "partitions": 1}
    return NatsFeed(**{**own, **settings}).access


async def stored(machine: NatsMachine, **settings: Any) -> list[bytes]:
    """What a client with these settings wrote and read."""
    made = Made(machine, access(machine, **settings))
    try:
        await made.stream.create(1)
        await made.append("0", [b"1"])
        return [message.body for message in await made.messages("0")]
    finally:
        await made.connection.close()


def seed() -> tuple[str, str]:
    """Of a user, and the public key."""
    return key(nkeys.PREFIX_BYTE_USER)


def key(prefix: int) -> tuple[str, str]:
    made = nkeys.encode_seed(os.urandom(32), prefix)
    return made.decode(), nkeys.from_seed(made).public_key.decode()


async def test_users_tokens_and_nkeys_are_let_in(caplog: pytest.LogCaptureFixture) -> None:
    private, public = seed()
    with caplog.at_level(logging.DEBUG), configured(USERS % public) as machine:
        assert await stored(machine, user="ann", password=SECRET) == [b"1"]
        assert await stored(machine, nkey=private) == [b"1"]
    with caplog.at_level(logging.DEBUG), configured(f'authorization {{ token: "{SECRET}" }}') as machine:
        assert await stored(machine, token=SECRET) == [b"1"]
    assert SECRET not in caplog.text
    assert private not in caplog.text


async def test_a_credentials_file_lets_in(tmp_path: Path) -> None:
    (operator, operator_id), (account, account_id), (_, system_id), (user, user_id) = (
        key(getattr(nkeys, f"PREFIX_BYTE_{kind}")) for kind in ("OPERATOR", "ACCOUNT", "ACCOUNT", "USER")
    )
    unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    storage = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    accounts = jwt(operator, account_id, {"type": "account", "limits": {**unlimited, **storage, "wildcards": True}})
    users = jwt(account, user_id, {"type": "user", "subs": -1, "data": -1, "payload": -1})
    file = tmp_path / "ann.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{users}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user}\n------END USER NKEY SEED------\n"
    )
    operators = jwt(operator, operator_id, {"type": "operator", "system_account": system_id})
    system = jwt(operator, system_id, {"type": "account", "limits": unlimited})
    preload = f"{{ {account_id}: {accounts}, {system_id}: {system} }}"
    with configured(f"operator: {operators}\nresolver: MEMORY\nresolver_preload: {preload}\n") as machine:
        assert await stored(machine, credentials_file=file) == [b"1"]
        with pytest.raises(Forbidden, match=r"(?i)authorization violation"):
            await stored(machine)
        with pytest.raises(Unreachable, match=r"missing\.creds"):
            await stored(machine, credentials_file=tmp_path / "missing.creds")


def jwt(signer: str, subject: str, nats: dict[str, Any]) -> str:
    """As `nsc` signs it."""
    pair = nkeys.from_seed(signer.encode())
    claims = {"iat": int(time.time()), "iss": pair.public_key.decode(), "sub": subject, "name": "test"}
    claims["nats"] = {**nats, "version": 2}
    claims["jti"] = base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest()).decode().rstrip("=")
    parts = [json.dumps(part).encode() for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)]
    text = ".".join(map(plain64, parts))
    return f"{text}.{plain64(pair.sign(text.encode()))}"


def plain64(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).decode().rstrip("=")


async def test_a_wrong_login_is_named_as_such_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    _, public = seed()
    with caplog.at_level(logging.DEBUG), configured(USERS % public) as machine:
        for wrong in ({"user": "ann", "password": "wrong-secret"}, {"token": "wrong-secret"}, {"nkey": seed()[0]}, {}):
            settings = {"servers": machine.servers, "stream": "s", "subject": "s", "partitions": 1, **wrong}
            feed, sink = NatsFeed(**settings).make(None), NatsSink(**settings).make(None)  # type: ignore[arg-type]
            with pytest.raises(FeedNotFound, match=r"(?i)authorization violation.*settings of the login") as of_feed:
                await feed.partitions()
            with pytest.raises(SinkRejected, match=r"(?i)authorization violation.*settings of the login") as of_sink:
                await sink.prepare()
            assert "wrong-secret" not in f"{of_feed.value}{of_sink.value}{caplog.text}{NatsFeed(**settings).access!r}"
            await feed.close()
            await sink.close()


async def test_a_missing_permission_is_named_with_its_subject() -> None:
    users = '{user: "ann", password: "p", permissions: {publish: ["$JS.>", "_INBOX.>"]}}'
    with configured(f"authorization {{ users: [{users}] }}") as machine:
        own = {"servers": machine.servers, "user": "ann", "password": "p", "timeout_s": 2}
        sink = NatsSink(**own, stream="s", subject="s", partitions=1, replicas=1).make(None)  # type: ignore[arg-type]
        await sink.prepare()
        made = Made(machine, access(machine, user="ann", password="p"))
        with pytest.raises(Forbidden, match='permissions violation for publish to "s'):
            await made.append("0", [b"1"])
        await made.connection.close()
        await sink.close()


async def test_a_missing_permission_is_named_though_it_only_leaves_events_out_of_a_batch() -> None:
    permitted = '"$JS.API.STREAM.>", "$JS.API.CONSUMER.CREATE.>", "s.leasehold.>", "_INBOX.>"'
    users = f'{{user: "ann", password: "p", permissions: {{publish: [{permitted}]}}}}'
    with configured(f"authorization {{ users: [{users}] }}") as machine:
        made = Made(machine, access(machine, user="ann", password="p"), name="s", subject="s")
        sink, feed = made.sink(timeout_s=2), made.feed(timeout_s=0.5)
        await sink.prepare()
        writer = await sink.open(claim(1))
        with pytest.raises(SinkUnavailable, match=r'permissions violation for publish to "s\.0"'):
            await writer.write(output(0, 2), Open())
        with pytest.raises(
            FeedUnavailable, match=r'permissions violation for publish to "\$js\.api\.consumer\.msg\.next'
        ):
            await anext(feed.open("0", None))
        for part in (sink, feed, made.connection):
            await part.close()


async def test_a_refusal_does_not_explain_a_later_lost_answer() -> None:
    users = '{user: "ann", password: "p", permissions: {publish: ["s.1", "_INBOX.>"]}}'
    with configured(f"authorization {{ users: [{users}] }}") as machine:
        connection = NatsConnection(access(machine, user="ann", password="p"), timeout_s=2)
        with pytest.raises(Forbidden):
            await connection.request("s.10", b"", what="a refused one")
        machine.send(signal.SIGSTOP)
        with pytest.raises(Unanswered):
            await connection.request("s.1", b"", what="one that may have been stored")
        with pytest.raises(Unanswered):
            await connection.request("s.10", b"", what="one that may have been permitted since")
        machine.send(signal.SIGCONT)
        await connection.close()


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    own = authority.issue_cert("127.0.0.1")
    own.private_key_pem.write_to_path(tmp_path / "server.key")
    own.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    return authority


def tls(folder: Path, more: str = "") -> str:
    return f'tls {{ cert_file: "{folder}/server.pem", key_file: "{folder}/server.key" {more} }}'


async def test_a_server_is_verified_by_its_certificate(tmp_path: Path, authority: trustme.CA) -> None:
    with configured(tls(tmp_path)) as machine:
        assert await stored(machine, tls=True, ca_file=tmp_path / "ca.pem") == [b"1"]
        for settings in ({"tls": True}, {}):
            with pytest.raises(Unreachable, match=r"(?i)certificate verify failed"):
                await stored(machine, **settings)


async def test_a_server_that_asks_for_a_client_s_certificate_gets_it(tmp_path: Path, authority: trustme.CA) -> None:
    own = authority.issue_cert("client.example")
    own.private_key_pem.write_to_path(tmp_path / "client.key")
    own.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
    files = {"certificate_file": tmp_path / "client.pem", "key_file": tmp_path / "client.key"}
    with configured(tls(tmp_path, f', ca_file: "{tmp_path}/ca.pem", verify: true')) as machine:
        assert await stored(machine, tls=True, ca_file=tmp_path / "ca.pem", **files) == [b"1"]
        with pytest.raises(Unreachable):
            await stored(machine, tls=True, ca_file=tmp_path / "ca.pem")


@asynccontextmanager
async def server_that_offers(info: str) -> AsyncIterator[tuple[str, list[bytes]]]:
    """It writes its first line, and nothing more. Yields its address, and what each client sent first."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b'INFO {"server_id":"x","version":"2.12.0","headers":true,"max_payload":1048576%b}\r\n' % info.encode()
        )
        heard.append(await reader.read(1000))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", heard


async def test_nothing_is_sent_to_a_server_without_tls_if_tls_is_set() -> None:
    """Anybody between could take the offer out of the server's first line."""
    async with server_that_offers("") as (servers, heard):
        settings = NatsFeed(**PLACE, servers=servers, tls=True, user="ann", password=SECRET)
        feed = settings.make(None)  # type: ignore[arg-type]  # it is not asked
        with pytest.raises(FeedError, match="the server offers no TLS, and `tls: true` is set"):
            await feed.partitions()
        await feed.close()
    assert set(heard) == {b""}


async def test_a_server_that_stops_in_the_handshake_is_given_up() -> None:
    async with server_that_offers(', "tls_required": true') as (servers, _):
        feed = NatsFeed(**PLACE, servers=servers, tls=True, timeout_s=0.5).make(None)  # type: ignore[arg-type]
        for _ in range(3):
            with pytest.raises(FeedError, match="cannot be reached"):
                await asyncio.wait_for(feed.partitions(), PATIENCE_S)
        await feed.close()
