"""Connections to PostgreSQL, shared by leases and sinks: DSNs, limits at the server, and why a connection fails.

A DSN is as the driver reads it: a postgresql:// address or key=value pairs. Nothing of it is ever quoted.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar

from psycopg import AsyncConnection, Error, pq
from psycopg.sql import SQL, Composed
from psycopg.sql import Literal as Quoted

from leasehold.common.cancellation import await_shielded
from leasehold.common.dsn import read_dsn, read_dsn_without_password
from leasehold.common.entra_token import TokenSource

T = TypeVar("T")
VERSION_MIN = 14
CLIENT_CHECK = "client_connection_check_interval"
CLIENT_CHECK_MS = SQL("CASE WHEN strpos(version(), 'linux') > 0 THEN '1000' ELSE current_setting({}) END").format(
    Quoted(CLIENT_CHECK)
)
"""How often a server checks, while it runs a statement, whether the client is still connected.

Servers on Windows and older ones on macOS refuse the setting (22023). SQL cannot catch that, so only servers on Linux get it.
"""


def parameters_of(
    dsn: str, application_name: str, *, connect_s: float, idle_s: float, has_token: bool = False
) -> dict[str, Any]:
    """The parameters of a connection: ours, unless the DSN has others. Raises ValueError.

    connect_s: for one attempt. idle_s: how long a peer may acknowledge nothing. has_token: the password is a token.
    """
    try:
        given = read_dsn(dsn)
    except ValueError as error:
        raise ValueError(f"`dsn` {error}") from None
    if has_token:
        given = read_dsn_without_password(dsn)
    silent_s = max(1, round(idle_s))
    return {
        "application_name": application_name,
        "connect_timeout": max(2, round(connect_s)),
        "tcp_user_timeout": silent_s * 1000,
        "keepalives_idle": silent_s,
        "keepalives_interval": max(1, silent_s // 3),
        "keepalives_count": 3,
        **given,
        "client_encoding": "UTF8",
    }


def servers_in(dsn: str) -> int:
    """How many servers a connection tries, one after the other, each within `connect_timeout`. Raises ValueError."""
    try:
        given = read_dsn(dsn)
    except ValueError as error:
        raise ValueError(f"`dsn` {error}") from None
    named = {**_defaults(), **given}
    return max(len(str(named.get(name, "")).split(",")) for name in ("host", "hostaddr"))


def _defaults() -> dict[str, str]:
    """The parameters from libpq's defaults and the environment."""
    known = {option.keyword.decode(): option.val and option.val.decode() for option in pq.Conninfo.get_defaults()}
    return {name: value for name, value in known.items() if value}


def address_of(parameters: Mapping[str, Any]) -> str:
    """Names the server, without secrets."""
    named = {**_defaults(), **parameters}
    if "service" in named and "host" not in named:
        return f"service {named['service']}"
    host = named.get("host") or named.get("hostaddr") or "localhost"
    return f"{host}:{named.get('port', 5432)}/{named.get('dbname') or named.get('user', '')}"


def limits_at_server(*, lock_s: float, statement_s: float, idle_s: float, transaction_s: float) -> Composed:
    """A query that sets limits for the session, in case its client dies, stops or becomes unreachable.

    lock_s: of waiting for one lock. idle_s: of silence inside a transaction, and of a peer that acknowledges nothing.
    Settings that a server lacks are skipped.
    """
    return _set_for_session(
        {
            "lock_timeout": round(lock_s * 1000),
            "statement_timeout": round(statement_s * 1000),
            "idle_in_transaction_session_timeout": round(idle_s * 1000),
            "transaction_timeout": round(transaction_s * 1000),
            CLIENT_CHECK: CLIENT_CHECK_MS,
            **_keepalives(idle_s),
        }
    )


def keepalives_at_server(idle_s: float) -> Composed:
    """A query that sets keepalives for the session: how soon the server gives up on a peer that acknowledges nothing."""
    return _set_for_session(_keepalives(idle_s))


def _keepalives(idle_s: float) -> dict[str, int]:
    silent_s = max(1, round(idle_s))
    return {
        "tcp_user_timeout": silent_s * 1000,
        "tcp_keepalives_idle": silent_s,
        "tcp_keepalives_interval": max(1, silent_s // 3),
        "tcp_keepalives_count": 3,
    }


def _set_for_session(settings: Mapping[str, int | Composed]) -> Composed:
    """The values are numbers, or SQL expressions that yield texts."""
    values = {name: Quoted(str(value)) if isinstance(value, int) else value for name, value in settings.items()}
    pairs = SQL(", ").join(SQL("({}, {})").format(Quoted(name), value) for name, value in values.items())
    return SQL(
        "SELECT set_config(name, wanted.value, false) FROM (VALUES {}) AS wanted (name, value) JOIN pg_settings USING (name)"
    ).format(pairs)


# One connection.


class TokenRefused(Exception):
    """The server has refused the access token. The next connection gets another one."""


async def connect(parameters: Mapping[str, Any], tokens: TokenSource | None = None) -> AsyncConnection:
    """A connection with autocommit, and without prepared statements, because a pooler would give them to others.

    tokens: for the password. Raises NoToken, TokenRefused, and Error.
    """
    login = dict(parameters)
    if tokens is not None:
        login["password"] = await tokens.fetch()
    try:
        return await AsyncConnection.connect(**login, autocommit=True, prepare_threshold=None)
    except Error as error:
        if tokens is None or not is_login_refused(error):
            raise
        tokens.forget(login["password"])
        raise TokenRefused(words_of(error)) from None


def is_cut(connection: AsyncConnection) -> bool:
    """Whether the server has closed an idle connection: it sends nothing else on one."""
    if connection.closed:
        return True
    line = select.poll()
    line.register(connection.fileno(), select.POLLIN)
    return bool(line.poll(0))


async def run_within(seconds: float, conversation: Awaitable[T], cut: Callable[[], None]) -> T:
    """Run a conversation. If it times out or is cancelled, its connection is cut, and the server rolls back its transaction.

    By default, the driver would first ask the server to cancel, and wait for that, which takes a long time on a stalled network.
    Raises TimeoutError, and what `conversation` raises.
    """
    talk = asyncio.ensure_future(conversation)
    try:
        async with asyncio.timeout(seconds):
            return await await_shielded(talk)
    finally:
        if not talk.done():
            cut()
            await asyncio.wait({talk})
        if not talk.cancelled():
            talk.exception()  # retrieve it: the cut caused it, or it arrived together with the cancellation


def cut(connection: AsyncConnection) -> None:
    """Shut the connection down: nothing more is sent or received, and the server notices."""
    if connection.closed:
        return
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)  # fails if the other side was faster


# Why a connection fails. The reason has no SQLSTATE, only a text.


_LOGIN_REFUSED = re.compile(r"FATAL: .*(?:authentication|token)", re.IGNORECASE)
"""Errors of Entra ID, whose texts have changed with its name."""
_SETTINGS_ARE_WRONG = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "permission denied",
    "certificate",
    "server does not support SSL",
    "is not permitted to log in",
)
_NO_SUCH_HOST = (
    "Name or service not known",
    "No address associated with hostname",
    "nodename nor servname provided",
)
"""getaddrinfo's errors for a name that does not exist; a name server that is away is another error."""


def cause_of(error: Error) -> Literal["settings", "host", "outage"]:
    """What keeps a connection from being made: wrong settings, a host name that does not exist, or something that may pass."""
    words = words_of(error)
    if any(wrong in words for wrong in _SETTINGS_ARE_WRONG):
        return "settings"
    return "host" if any(nowhere in words for nowhere in _NO_SUCH_HOST) else "outage"


def is_login_refused(error: Error) -> bool:
    return _LOGIN_REFUSED.search(str(error)) is not None


def words_of(error: Error) -> str:
    """The error in one line, with the server's detail and hint; its type if it has no text."""
    if error.sqlstate is None:
        return " ".join(str(error).split()) or type(error).__name__
    more = [text for text in (error.diag.message_detail, error.diag.message_hint) if text]
    return " ".join([f"{error.sqlstate} {error.diag.message_primary}", *(f"({text})" for text in more)])
