"""A storage account as a process: its ports, its file, and what clients need to find it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from leasehold_emulators.blob.answers import NAME
from leasehold_emulators.blob.control import Control
from leasehold_emulators.blob.store import Container, Store
from leasehold_emulators.blob.wire import BODY_BYTES_MAX, Wire
from leasehold_emulators.hosting import Clock, Place, guarded, open_control, open_port, open_tls
from leasehold_emulators.journal import Unusable

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and the key of Azurite, which are public."""
TOKEN = "a token for tests alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Place):
    """containers: the names of those to create. key: in base64. token: accepted in place of an access token of Entra."""

    containers: tuple[str, ...] = ()
    account: str = ACCOUNT
    key: str = KEY
    token: str = TOKEN


@asynccontextmanager
async def serve(options: Options) -> AsyncIterator[dict[str, str]]:
    """Serve, and yield the addresses. Raises PortTaken, Unusable."""
    store = Store(options.data / "blob.db" if options.data else None)
    clock = Clock(time.time)
    wire = Wire(store=store, account=options.account, key=options.key, token=options.token, now=clock.now)
    control = Control(wire, clock)
    server = web.Server(
        guarded(wire.serve, options.host), request_factory=request, access_log=None, keepalive_timeout=3600
    )
    wire.servers.append(server)
    async with AsyncExitStack() as stack:
        stack.callback(store.close)
        with store.transaction():
            create(store, options.containers, clock.now())
        host = options.address
        port = await open_port(stack, server, options.host, options.port)
        endpoint = f"http://{host}:{port}/{options.account}"
        account = f"AccountName={options.account};AccountKey={options.key};BlobEndpoint={endpoint};"
        said = {
            "endpoint": endpoint,
            "account": options.account,
            "key": options.key,
            "connection_string": f"DefaultEndpointsProtocol=http;{account}",
            "token": options.token,
            "control": await open_control(stack, options, control.serve, control.read_state),
        }
        if options.tls_port is not None:
            tls, ca = open_tls(stack, options)
            https = await open_port(stack, server, options.host, options.tls_port, tls)
            said |= {"https": f"https://{host}:{https}/{options.account}", "ca": ca}
        yield said


def create(store: Store, names: Iterable[str], now: float) -> None:
    """Create the containers that do not exist. Raises Unusable for a wrong name."""
    for name in names:
        if not NAME.fullmatch(name):
            raise Unusable(f"container {name!r}: a name has 3 to 63 lower case letters, digits and single hyphens")
        if store.container(name) is None:
            store.put_container(Container(name=name, etag=store.next_etag(now), modified=now))


def request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """A request with room for the largest body."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BODY_BYTES_MAX)
