"""Serves the API inside the running event loop, and stops with it.

    async with serve(create_app(view), host="127.0.0.1", port=8080, log=log) as port:
        ...                                  # requests are answered meanwhile; port 0 takes a free one

Leaving the block, even by cancellation, takes about a second at most: nothing new is accepted, and answers in progress may
finish. Signals are left to the caller.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Any

import uvicorn
from structlog.typing import FilteringBoundLogger as Log
from uvicorn.protocols.http.h11_impl import H11Protocol

from leasehold.service.api.problems import problem
from leasehold.service.errors import StartFailed

# How many connections the API accepts, and how long it waits for a client that is slow or silent.
#
# uvicorn waits without a limit for a request's head, and for an answer to be read, so silent clients could hold all connections.
# Here a client has `PATIENCE_S`. If all connections are taken, a new one replaces the one that has been silent the
# longest, so silent clients cannot keep probes out.


CONNECTIONS_MAX = 500
"""Many systems let a process have 1,024 open files, and each connection is one."""
PATIENCE_S = 20.0
"""How long a client may take to send the whole head of a request, or to read the next piece of an answer."""


class BoundedConnection(H11Protocol):
    """One connection. asyncio calls the methods that this class overrides, except `on_response_complete`: uvicorn calls that."""

    _waiting: asyncio.TimerHandle | None = None
    silent_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.silent_since = self.loop.time()
        self._wait()
        if len(self.connections) > CONNECTIONS_MAX and not self._is_given_a_place():
            self.app = _busy

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_where_it_owes()

    def on_response_complete(self) -> None:
        self.silent_since = self.loop.time()
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._wait_where_it_owes()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    @property
    def is_silent(self) -> bool:
        """Whether no request is in progress: the head of the next one has not arrived, or not completely."""
        cycle: Any = self.cycle  # None before the first
        return cycle is None or bool(cycle.response_complete)

    def _is_given_a_place(self) -> bool:
        ours = [each for each in self.connections if isinstance(each, BoundedConnection)]
        silent = [each for each in ours if each.is_silent and each is not self]
        if silent:
            longest = min(silent, key=lambda each: each.silent_since)
            self.connections.discard(longest)  # at once: `connection_lost` is called a moment later
            longest.transport.abort()
        return bool(silent)

    def _wait_where_it_owes(self) -> None:
        """Wait if the client owes a request's head, or the reading of what was written."""
        if self.is_silent or self.flow.write_paused:
            self._wait()
        else:
            self._stop_waiting()

    def _wait(self) -> None:
        """Wait from the first moment on: bytes that drip in or out do not extend the time."""
        if self._waiting is None:
            self._waiting = self.loop.call_later(PATIENCE_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


async def _busy(scope: Any, receive: Any, send: Any) -> None:
    detail = f"this host has reached its limit of {CONNECTIONS_MAX} connections: retry later, or use another host"
    headers = {"connection": "close", "retry-after": "1", "cache-control": "no-store"}
    await problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers)(scope, receive, send)


GRACE_S = 1
"""How long an answer in progress may take once the server stops."""

App = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def serve(app: App, *, host: str, port: int, log: Log) -> AsyncIterator[int]:
    """Serve the app, and yield the bound port. Raises StartFailed if the port cannot be bound."""
    listener = listen(host, port)
    with listener, _forwarded(log):
        server = _Server(
            uvicorn.Config(
                app,
                http=BoundedConnection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        serving = asyncio.create_task(server.serve([listener]), name="api")
        bound: int = listener.getsockname()[1]
        try:
            log.info("api listening", url=f"http://{_address_text(host, bound)}")
            yield bound
        finally:
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave out uvicorn's handlers: the command line decides what a signal ends, and a host drains before its API ends."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Port 0 takes a free one. Raises StartFailed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError, UnicodeError) as error:
        raise StartFailed(f"the API cannot be served on {_address_text(host, port)}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    match error:
        case OSError(errno=errno.EADDRINUSE):
            return "the port is taken; set api.port to 0, which picks a free one, or end the process that uses it"
        case OSError(errno=errno.EACCES):
            return "this user may not open the port; set api.port to one above 1023"
        case _:
            return (
                f"{getattr(error, 'strerror', None) or error}; set api.host to an address of this machine (127.0.0.1)"
            )


def _address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def _forwarded(log: Log) -> Iterator[None]:
    """Send uvicorn's messages to the host's log: faults with their traceback. Requests that are not HTTP, or that the end of the
    server cuts short, are logged only at level debug."""
    messages, handler = logging.getLogger("uvicorn.error"), _Forward(log)
    propagate, messages.propagate = messages.propagate, False
    messages.addHandler(handler)
    try:
        yield
    finally:
        messages.removeHandler(handler)
        messages.propagate = propagate


class _Forward(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Exception):
            self._log.error("http server", what=record.getMessage(), exc_info=error)
        else:
            self._log.debug("http server", what=record.getMessage())
