"""An account as a process: its ports, its journal, and what clients need to find it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from leasehold_emulators.cosmos.account import Account
from leasehold_emulators.cosmos.control import Control
from leasehold_emulators.cosmos.persistence import restore
from leasehold_emulators.cosmos.wire import BODY_BYTES_MAX, Wire
from leasehold_emulators.hosting import Clock, Place, guarded, open_control, open_port, open_tls
from leasehold_emulators.journal import Journal

KEY = "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="
"""The key of Microsoft's emulator, which is public."""
TOKEN = "a token for tests alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Place):
    """ranges: partition key ranges of a new container. containers: (database, container, path of the partition key) to create.

    key: in base64. token: accepted in place of an access token of Entra.
    """

    ranges: int = 1
    containers: tuple[tuple[str, ...], ...] = ()
    key: str = KEY
    token: str = TOKEN


@asynccontextmanager
async def serve(options: Options) -> AsyncIterator[dict[str, str]]:
    """Serve, and yield the addresses. Raises PortTaken, Unusable."""
    journal = Journal(options.data / "cosmos.db" if options.data else None)
    clock = Clock(time.time)
    account = Account(options.ranges, journal)
    restore(account, journal.replay())
    wire = Wire(account=account, key=options.key, token=options.token, now=clock.now)
    control = Control(wire, clock)
    server = server_of(guarded(wire.serve, options.host))
    wire.servers.append(server)
    for named in options.containers:
        create(account, named, clock.now())
    journal.commit()
    async with AsyncExitStack() as stack:
        stack.callback(journal.close)
        host = options.address
        endpoint = f"http://{host}:{await open_port(stack, server, options.host, options.port)}/"
        said = {
            "endpoint": endpoint,
            "key": options.key,
            "connection_string": f"AccountEndpoint={endpoint};AccountKey={options.key};",
            "token": options.token,
            "control": await open_control(stack, options, control.serve, control.read_state),
        }
        if options.tls_port is not None:
            tls, ca = open_tls(stack, options)
            https = await open_port(stack, server, options.host, options.tls_port, tls)
            said |= {"https": f"https://{host}:{https}/", "ca": ca}
        yield said


def create(account: Account, named: tuple[str, ...], now: float) -> None:
    """Create a database and a container unless they exist."""
    database, container, path = named
    if database not in account.databases:
        account.create_database(database, now)
    if container not in account.databases[database].containers:
        key = {"paths": [path], "kind": "Hash", "version": 2}
        account.create_container(account.databases[database], {"id": container, "partitionKey": key}, now)


def request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """A request with room for bodies that are too large: the service itself refuses those."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=4 * BODY_BYTES_MAX)


def server_of(handler: Any) -> web.Server:
    """A server that keeps idle connections open for an hour."""
    return web.Server(handler, request_factory=request, access_log=None, keepalive_timeout=3600)
