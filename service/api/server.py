"""Serves the API inside the running event loop, and stops with it.

    async with serve(create_app(view), host="127.0.0.1", port=8080, log=log) as port:
        ...                                  # requests are answered meanwhile; port 0 takes a free one

Leaving the block, by cancellation too, ends within about a second: nothing new is accepted, answers in progress may finish.
Signals stay with the caller.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from structlog.typing import FilteringBoundLogger as Log

from service.api.connections import BoundedConnection
from service.errors import StartFailed

GRACE_S = 1
"""How long an answer in progress may take once the server stops."""

App = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def serve(app: App, *, host: str, port: int, log: Log) -> AsyncIterator[int]:
    """Yields the port that is bound. Raises StartFailed where it cannot be."""
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
            log.info("api listening", url=f"http://{_shown(host, bound)}")
            yield bound
        finally:
            server.should_exit = True
            await serving


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Not uvicorn's: the command line decides what a signal ends, and a host drains before its API goes."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Port 0 takes a free one. Raises StartFailed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError, UnicodeError) as error:
        raise StartFailed(f"the API cannot be served on {_shown(host, port)}: {_reason(error)}") from None


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


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def _forwarded(log: Log) -> Iterator[None]:
    """uvicorn's messages go to our log: faults with their traceback. Requests that are no HTTP, or that the end of the server
    cut short, are nobody's alarm."""
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
