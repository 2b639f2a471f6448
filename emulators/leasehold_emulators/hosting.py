"""What every emulator needs to run as a process: ports, a certificate, a control page, and a way to stop."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

PAGE = Path(__file__).with_name("control.html")
CLOSE_S = 2.0
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
    " connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Authority(NamedTuple):
    """Paths of the certificate that clients trust and of its key. key: None if the two do not outlive the process."""

    certificate: Path
    key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The addresses of an emulator; port 0 is any free one. tls_port: None for no TLS. data: None to keep all in memory."""

    host: str = "127.0.0.1"
    port: int = 0
    tls_port: int | None = None
    control_port: int = 0
    control_host: str = "127.0.0.1"
    data: Path | None = None

    @property
    def address(self) -> str:
        """The host by which clients on this machine reach the emulator."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"[{host}]" if ":" in host else host

    def authority(self, directory: Path) -> Authority:
        """In a data directory, the authority outlives the process, so that clients have to trust it only once."""
        if self.data:
            return Authority(self.data / "ca.pem", self.data / "ca-key.pem")
        return Authority(directory / "ca.pem")


@dataclass(slots=True)
class Clock:
    """The emulator's clock, in seconds: the machine's, moved by `offset_s`."""

    machine: Callable[[], float]
    offset_s: float = 0.0

    def now(self) -> float:
        return self.machine() + self.offset_s

    def now_ms(self) -> int:
        return int(self.now() * 1000)


class PortTaken(Exception):
    """The port cannot be opened, usually because another process listens there."""


def certified(host: str, authority: Authority) -> ssl.SSLContext:
    """A TLS context with a certificate for the host and `localhost`."""
    import trustme  # slow to import, and only TLS needs it

    if authority.key and authority.key.exists():
        signer = trustme.CA.from_pem(authority.certificate.read_bytes(), authority.key.read_bytes())
    else:
        signer = trustme.CA()
        authority.certificate.parent.mkdir(parents=True, exist_ok=True)
        signer.cert_pem.write_to_path(authority.certificate)
        if authority.key:
            with os.fdopen(os.open(authority.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(signer.private_key_pem.bytes())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    signer.issue_cert(host.strip("[]"), "localhost").configure_cert(tls)
    return tls


def open_tls(stack: AsyncExitStack, place: Place) -> tuple[ssl.SSLContext, str]:
    """A TLS context for the place's address, and the file of the certificate to trust. Both are for use until the stack ends."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-emulator-"))
    authority = place.authority(Path(directory))
    return certified(place.address, authority), str(authority.certificate)


async def open_port(
    stack: AsyncExitStack, server: web.Server, host: str, port: int, tls: ssl.SSLContext | None = None
) -> int:
    """Serve on the port, 0 for any free one, until the stack ends. Returns the port's number. Raises PortTaken."""
    runner = web.ServerRunner(server, shutdown_timeout=CLOSE_S)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError as error:
        raise refused_port(host, port, error) from error
    return int(runner.addresses[0][1])


def break_connections(servers: Iterable[web.Server]) -> int:
    """Break every open connection, busy or not, and return their number."""
    open_ones = [each.transport for server in servers for each in server.connections if each.transport]
    for transport in open_ones:
        transport.abort()
    return len(open_ones)


def refused_port(host: str, port: int, error: OSError) -> PortTaken:
    reason = "another process listens there" if error.errno == errno.EADDRINUSE else str(error.strerror or error)
    return PortTaken(f"cannot serve on {host}:{port}: {reason}. Stop it, or choose another port.")


async def wait_until_stopped(parent: int | None) -> None:
    """Wait for SIGTERM or SIGINT or, if `parent` is given, until that process is no longer our parent."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    while not stop.is_set() and parent in (None, os.getppid()):
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1)


# --- the control port ---------------------------------------------------------------------------------------------------


def control_server(orders: Handler, read_state: Callable[[], dict[str, Any]]) -> web.Server:
    """GET / is the page, GET /state what it shows, and each POST an order."""

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        if problem := foreign(request.method, request.headers):
            return web.Response(status=403, text=json.dumps({"error": problem}), content_type="application/json")
        if request.method == "POST":
            return await orders(request)
        if request.path == "/state":
            return web.json_response(read_state(), headers=PAGE_HEADERS)
        if request.path == "/":
            return web.Response(text=PAGE.read_text(), content_type="text/html", headers=PAGE_HEADERS)
        return web.json_response({"error": f"no page {request.path}"}, status=404)

    return web.Server(serve, access_log=None)


async def open_control(
    stack: AsyncExitStack, place: Place, orders: Handler, read_state: Callable[[], dict[str, Any]]
) -> str:
    """Serve the control page under names of this machine only, and return its address. Raises PortTaken."""
    server = control_server(orders, read_state)
    host = "[::1]" if ":" in place.control_host else "127.0.0.1"
    return f"http://{host}:{await open_port(stack, server, place.control_host, place.control_port)}/"


def is_local(headers: Mapping[str, str]) -> bool:
    """Whether the client addressed this machine by a name of the loopback interface. Pure."""
    host = headers.get("Host", "")
    return host in LOOPBACK or host.rsplit(":", 1)[0] in LOOPBACK


def guarded(handler: Handler, host: str) -> Handler:
    """On loopback, refuse requests to other names: other sites may point theirs to this machine, and their pages know the key."""
    if f"[{host}]" not in LOOPBACK and host not in LOOPBACK:
        return handler

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        if is_local(request.headers):
            return await handler(request)
        return web.json_response({"error": f"the emulator serves {', '.join(LOOPBACK)} only"}, status=403)

    return serve


def foreign(method: str, headers: Mapping[str, str]) -> str | None:
    """Why the request is refused, None if it is not: pages of other sites may try to send orders. Pure."""
    host = headers.get("Host", "")
    if not is_local(headers):
        return f"the control port serves {', '.join(LOOPBACK)} only, not {host!r}"
    if headers.get("Origin", f"http://{host}") != f"http://{host}":
        return "an order must come from the control page, or from a client that sends no Origin"
    if method == "POST" and not headers.get("Content-Type", "").startswith("application/json"):
        return "an order is JSON: send `Content-Type: application/json`"
    if method not in ("GET", "POST"):
        return "the control port serves GET and POST only"
    return None
