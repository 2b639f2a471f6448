"""Connections that cannot be prepared."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg import OperationalError

from leasehold.pipeline.connectors.postgres.session import Connections, PostgresServer, Timeouts
from leasehold.pipeline.errors import SinkUnavailable


class Connection:
    """Of a server that logs in, and then does not answer or ends the connection."""

    info = SimpleNamespace(server_version=170_000)

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        self.is_closed = False

    async def execute(self, statement: Any) -> None:
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (None, "no answer within 0.01 s"),
        (OperationalError(), "OperationalError"),
        (OperationalError("the connection is lost"), "the connection is lost"),
    ],
)
async def test_why_a_connection_cannot_be_prepared_is_always_named(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, why: str
) -> None:
    connection = Connection(error)

    async def open_connection() -> Connection:
        return connection

    server = PostgresServer("host=db dbname=bank", Connections(max=1, timeouts=Timeouts(connect_s=0.01)))
    monkeypatch.setattr(server, "_open_connection", open_connection)

    async def converse(session: Any) -> None:
        raise AssertionError("no session")

    with pytest.raises(SinkUnavailable) as raised:
        await server.talk("reading", converse)
    assert str(raised.value).endswith(f"cannot be reached: {why}")
    assert connection.is_closed
