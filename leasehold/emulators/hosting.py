"""What every server of ours needs to be a process of its own: a certificate, a port of HTTP, an end."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from contextlib import suppress
from pathlib import Path

import trustme
from aiohttp import web


def certified(host: str, ca: Path) -> ssl.SSLContext:
    """With a certificate for the host and `localhost`. Its authority lives as long as the process; `ca` gets its certificate."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(ca)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host, "localhost").configure_cert(tls)
    return tls


async def open_port(server: web.Server, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
    """The port, which may be given as 0 for any."""
    runner = web.ServerRunner(server)
    await runner.setup()
    await web.TCPSite(runner, host, port, ssl_context=tls).start()
    return int(runner.addresses[0][1])


async def wait_until_stopped(parent: int | None) -> None:
    """By a signal, or with the parent."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    while not stop.is_set() and parent in (None, os.getppid()):
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1)
