"""The sink `postgres` with `identity`: access tokens as passwords that change while the host runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from patience import PATIENCE_S
from plugins_bank import Make, Open, batch, claim, made_sink, output
from plugins_pg import Postgres

from leasehold.common import entra_token
from leasehold.common.dsn import read_dsn_without_password
from leasehold.common.postgres import is_login_refused
from leasehold.pipeline.connectors.postgres import Connections, PostgresLettersFeed, PostgresOutputSink
from leasehold.pipeline.errors import FeedUnavailable, SinkRejected, SinkUnavailable

SCOPE = "https://ossrdbms-aad.database.windows.net/.default"
HOUR_S = 3600


class Issuer:
    """A credential of azure-identity's kind. `token` is what it issues now, and `left_s` how long that holds."""

    def __init__(self, token: str, left_s: float = HOUR_S) -> None:
        self.token = token
        self.left_s = left_s
        self.error: Exception | None = None
        self.asked: list[tuple[str, ...]] = []

    async def get_token(self, *scopes: str) -> AccessToken:
        self.asked.append(scopes)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return AccessToken(self.token, int(time.time() + self.left_s))


class Teller:
    """A role that logs in with a password, which is the newest token."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self.dsn = postgres.dsn_of("teller")

    def takes(self, token: str) -> None:
        """And no other one, for new connections."""
        self._postgres.fetch(f"ALTER ROLE teller PASSWORD '{token}'")

    def cut(self) -> None:
        self._postgres.fetch("SELECT pg_terminate_backend(pid, 10_000) FROM pg_stat_activity WHERE usename = 'teller'")


@pytest.fixture
def teller(postgres: Postgres) -> Iterator[Teller]:
    access = postgres.data_dir / "pg_hba.conf"
    before = access.read_text()
    postgres.fetch("DROP ROLE IF EXISTS teller")
    postgres.fetch("CREATE ROLE teller LOGIN SUPERUSER PASSWORD 'token-1'")
    try:
        access.write_text("local all teller scram-sha-256\n" + before)
        postgres.fetch("SELECT pg_reload_conf()")
        yield Teller(postgres)
    finally:
        access.write_text(before)
        postgres.fetch("SELECT pg_reload_conf()")
        postgres.fetch("DROP OWNED BY teller CASCADE")
        postgres.fetch("DROP ROLE teller")


@pytest.fixture
def issuer() -> Issuer:
    return Issuer("token-1")


@pytest.fixture
async def sink(sink_of: Make, teller: Teller, issuer: Issuer) -> PostgresOutputSink:
    made = sink_of(
        dsn=teller.dsn,
        identity="default",
        credential=issuer,
        setup="CREATE TABLE IF NOT EXISTS seen (id int)",
        table="seen",
    )
    await made.prepare()
    return made


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)})


async def test_new_connections_get_the_newest_token_and_old_ones_stay(
    postgres: Postgres, teller: Teller, issuer: Issuer, sink_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    issuer.left_s = 250  # of an hour: it is time for the next one
    sink = sink_of(
        dsn=teller.dsn, identity="default", credential=issuer, setup="CREATE TABLE seen (id int)", table="seen"
    )
    await sink.prepare()
    writer = await sink.open(claim())
    await writer.write(output(rows(1), None, "1"), Open())
    assert issuer.asked == [(SCOPE,)]

    issuer.token, issuer.left_s = "token-2", HOUR_S
    teller.takes("token-2")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(f"{teller.dsn} password=token-1")
    await writer.write(output(rows(2), "1", "2"), Open())
    assert len(issuer.asked) == 1

    teller.cut()
    await writer.write(output(rows(3), "2", "3"), Open())
    assert len(issuer.asked) == 2
    teller.cut()
    await writer.write(output(rows(4), "3", "4"), Open())
    assert len(issuer.asked) == 2, "a token that holds for an hour is kept"
    assert postgres.fetch("SELECT id FROM seen ORDER BY id") == [(1,), (2,), (3,), (4,)]
    assert "token-" not in caplog.text


async def test_a_token_that_the_server_refuses_is_replaced_and_the_batch_tried_again(
    postgres: Postgres, teller: Teller, issuer: Issuer, sink: PostgresOutputSink
) -> None:
    writer = await sink.open(claim())
    teller.takes("token-2")  # before the token's time is over
    teller.cut()
    with pytest.raises(SinkUnavailable, match=r"refused the access token: .*belongs to this `identity`") as refused:
        await writer.write(output(rows(1), None, "1"), Open())
    assert "token-" not in repr(refused.value)
    issuer.token = "token-2"
    await writer.write(output(rows(1), None, "1"), Open())
    assert postgres.fetch("SELECT id FROM seen") == [(1,)]


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        ('connection failed: FATAL:  password authentication failed for user "u"', True),
        ("connection failed: FATAL:  Microsoft Entra authentication failed", True),
        ("connection failed: FATAL:  The access token has expired", True),
        ('connection failed: FATAL:  role "u" does not exist', False),
        ("connection failed: connection to server at token.example failed: Connection refused", False),
    ],
)
def test_what_counts_as_a_refused_token(words: str, is_refused: bool) -> None:
    assert is_login_refused(psycopg.OperationalError(words)) is is_refused


async def test_an_identity_that_gets_no_token_is_an_outage(
    teller: Teller, issuer: Issuer, sink_of: Make, postgres: Postgres
) -> None:
    sink = sink_of(dsn=teller.dsn, identity="default", credential=issuer, setup="CREATE TABLE seen ()", table="seen")
    issuer.error = ClientAuthenticationError("nobody is at home\nand much more")
    with pytest.raises(
        SinkUnavailable, match=r"no access token \(nobody is at home\): log in, or check `identity`$"
    ) as caught:
        await sink.prepare()
    assert not isinstance(caught.value, SinkRejected)
    issuer.error = None
    await sink.prepare()
    assert postgres.fetch("SELECT * FROM seen") == []


async def test_a_token_is_used_until_it_ends_while_no_new_one_can_be_had(
    teller: Teller, issuer: Issuer, sink_of: Make
) -> None:
    issuer.left_s = 100
    sink = sink_of(
        dsn=teller.dsn, identity="default", credential=issuer, setup="CREATE TABLE seen (id int)", table="seen"
    )
    await sink.prepare()
    writer = await sink.open(claim())
    issuer.error = RuntimeError("busy")
    teller.cut()
    await writer.write(output(rows(1), None, "1"), Open())
    assert len(issuer.asked) == 2


async def test_an_identity_that_never_answers_is_given_up(
    teller: Teller, sink_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mute(Issuer):
        async def get_token(self, *scopes: str) -> AccessToken:
            return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(entra_token, "TIMEOUT_S", 0.05)
    sink = sink_of(dsn=teller.dsn, identity="default", credential=Mute(""), table="seen")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(SinkUnavailable, match=r"no answer within 0\.05 s"):
            await sink.prepare()


async def test_connections_that_are_made_together_share_a_token(issuer: Issuer, teller: Teller, sink_of: Make) -> None:
    sink = sink_of(
        dsn=teller.dsn,
        identity="default",
        credential=issuer,
        setup="CREATE TABLE IF NOT EXISTS balances (account text, value int)",
        table="balances",
    )
    await asyncio.gather(*(sink.prepare() for _ in range(4)))
    writers = await asyncio.gather(*(sink.open(claim(partition=str(n))) for n in range(4)))
    await asyncio.gather(*(writer.write(batch(None), Open()) for writer in writers))
    assert len(issuer.asked) == 1


@pytest.mark.parametrize(("identity", "chosen"), [("default", {}), ("11-22", {"managed_identity_client_id": "11-22"})])
async def test_azure_identity_is_asked_and_closed(
    teller: Teller, monkeypatch: pytest.MonkeyPatch, identity: str, chosen: dict[str, str]
) -> None:
    made: list[Any] = []

    class Found(Issuer):
        def __init__(self, **options: str) -> None:
            super().__init__("token-1")
            made.append(options)

        async def close(self) -> None:
            made.append("closed")

    monkeypatch.setattr("azure.identity.aio.DefaultAzureCredential", Found)
    sink = made_sink(teller.dsn, identity=identity, setup="CREATE TABLE seen (id int)", table="seen")
    await sink.prepare()
    teller.cut()
    writer = await sink.open(claim())
    await writer.write(output(rows(1)), Open())
    await sink.close()
    assert made == [chosen, "closed"]


async def test_dead_letters_are_read_with_a_token(teller: Teller, issuer: Issuer) -> None:
    connections = Connections(identity="default", credential=issuer)
    letters = PostgresLettersFeed(teller.dsn, "balances", connections=connections)
    assert await letters.partitions() == []
    assert issuer.asked == [(SCOPE,)]
    issuer.error = RuntimeError("nobody is at home")
    issuer.left_s = -1
    lost = PostgresLettersFeed(teller.dsn, "balances", connections=connections)
    with pytest.raises(FeedUnavailable, match="nobody is at home"):
        await lost.partitions()
    await asyncio.gather(letters.close(), lost.close())


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("postgresql://u:s3cr3t@h/d", "`identity` provides the password, and `dsn` has one too"),
        ("host=h password=s3cr3t", "`identity` provides the password, and `dsn` has one too"),
        ("host=h sslmode=prefer", "`identity` sends a token, which needs TLS"),
        ("host=h sslmode=disable", "`identity` sends a token, which needs TLS"),
    ],
)
def test_a_dsn_with_a_password_or_without_tls_is_refused(dsn: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        made_sink(dsn, identity="default", table="t")
    assert "s3cr3t" not in repr(refused.value)


@pytest.mark.parametrize(
    ("dsn", "environment", "sslmode"),
    [
        ("host=h", None, "require"),
        ("host=h", "disable", "require"),
        ("host=h", "verify-ca", "verify-ca"),
        ("host=h sslmode=verify-full", "require", "verify-full"),
        ("host=h sslrootcert=system", None, "verify-full"),
    ],
)
def test_tokens_are_sent_over_tls(
    dsn: str, environment: str | None, sslmode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    if environment is not None:
        monkeypatch.setenv("PGSSLMODE", environment)
    assert read_dsn_without_password(dsn)["sslmode"] == sslmode
