"""The sink `postgres` and its settings: servers that are not there, secrets that stay secret, sessions with bounds."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from patience import PATIENCE_S
from plugins_bank import ONE, Make, Open, claim, output
from plugins_pg import Postgres
from psycopg.conninfo import make_conninfo

from leasehold.pipeline.connectors.postgres import PostgresOutputSink, Tables, Timeouts
from leasehold.pipeline.errors import SinkRejected, SinkUnavailable

SECRET = "s3cr3t-pässword"


async def test_a_server_that_is_not_there_is_said_at_once(sink_of: Make) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        sink = sink_of(dsn=f"postgresql://bob:{SECRET}@127.0.0.1:{port}/bank", table="t")
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(
                SinkUnavailable, match=f"127.0.0.1:{port}/bank cannot be reached: .*refused"
            ) as unavailable:
                await sink.prepare()
    assert SECRET not in repr(unavailable.value)


async def test_a_server_that_never_answers_is_given_up(sink_of: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        sink = sink_of(
            dsn=make_conninfo(host="127.0.0.1", port=mute.getsockname()[1]), table="t", timeouts=Timeouts(connect_s=0.1)
        )
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(SinkUnavailable, match="cannot be reached: connection timeout expired"):
                await sink.prepare()


async def test_a_wrong_password_is_refused_without_telling_it(postgres: Postgres, sink_of: Make) -> None:
    access = postgres.data_dir / "pg_hba.conf"
    before = access.read_text()
    postgres.fetch("DROP ROLE IF EXISTS teller")
    postgres.fetch("CREATE ROLE teller LOGIN PASSWORD 'right'")
    try:
        access.write_text("local all teller scram-sha-256\n" + before)
        postgres.fetch("SELECT pg_reload_conf()")
        sink = sink_of(dsn=postgres.dsn_of("teller", password=SECRET), table="t")
        with pytest.raises(SinkRejected, match=r"password authentication failed.*correct `dsn`") as refused:
            await sink.prepare()
        assert SECRET not in repr(refused.value)
    finally:
        access.write_text(before)
        postgres.fetch("SELECT pg_reload_conf()")
        postgres.fetch("DROP ROLE teller")


async def test_a_database_that_does_not_exist_is_refused(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(dsn=make_conninfo(postgres.dsn, dbname="nowhere"), table="t")
    with pytest.raises(SinkRejected, match='database "nowhere" does not exist'):
        await sink.prepare()


def test_the_identity_holds_no_secrets_and_tells_destinations_apart() -> None:
    sink = PostgresOutputSink(f"postgresql://bob:{SECRET}@db1:5433,db2:5434/bank?application_name=x", table="balances")
    assert sink.identity == "postgresql://db1,db2:5433,5434/bank schema=public target=balances"
    same = PostgresOutputSink(
        "host=db1,db2 port=5433,5434 dbname=bank user=eve", table="balances", tables=Tables(history=True)
    )
    assert same.identity == sink.identity
    others = [
        PostgresOutputSink("host=db1 dbname=bank", table="balances"),
        PostgresOutputSink("host=db1 dbname=bank", table="balances", tables=Tables("mine")),
        PostgresOutputSink("host=db1 dbname=bank", merge="INSERT INTO balances TABLE batch"),
    ]
    assert len({other.identity for other in others} | {sink.identity}) == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "exactly one of `merge` and `table`"),
        ({"merge": "x", "table": "y"}, "exactly one of `merge` and `table`"),
        ({"merge": "x", "key": ["a"]}, "`key` requires `table`"),
        ({"dsn": f"postgresql://bob:%{SECRET}@host/x", "table": "x"}, "`dsn` is not a PostgreSQL connection string"),
        ({"dsn": f"bob:{SECRET}", "table": "x"}, "`dsn` is not a PostgreSQL connection string"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        PostgresOutputSink(**({"dsn": "host=x"} | settings))
    assert SECRET not in repr(refused.value)


async def test_a_session_is_bounded_and_keeps_the_search_path(postgres: Postgres, sink_of: Make) -> None:
    postgres.fetch(f"ALTER DATABASE {postgres.name} SET search_path = elsewhere, public")
    names = (
        "application_name",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "search_path",
        "client_encoding",
    )
    shown = ", ".join(f"current_setting('{name}')" for name in names)
    sink = sink_of(
        setup="CREATE TABLE shown (settings text)",
        merge=f"INSERT INTO shown SELECT concat_ws('; ', {shown}) FROM batch",
    )
    await sink.prepare()
    await (await sink.open(claim())).write(output(ONE), Open())
    assert postgres.fetch("SELECT * FROM shown") == [("leasehold; 10s; 10s; elsewhere, public; UTF8",)]


@pytest.mark.parametrize(("on_windows", "interval"), [(False, "1s"), (True, "0")])
async def test_a_server_looks_for_lost_clients_if_it_can(
    postgres: Postgres, sink_of: Make, on_windows: bool, interval: str
) -> None:
    if on_windows:
        postgres.act_as_on_windows()
    sink = sink_of(
        setup="CREATE TABLE public.shown (setting text)",
        merge="INSERT INTO public.shown SELECT current_setting('client_connection_check_interval') FROM batch LIMIT 1",
    )
    await sink.prepare()
    await (await sink.open(claim())).write(output(ONE), Open())
    assert postgres.fetch("SELECT * FROM public.shown") == [(interval,)]
