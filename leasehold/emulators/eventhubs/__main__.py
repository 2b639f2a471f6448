"""`python -m leasehold.emulators.eventhubs`: one namespace on the wire, which prints its addresses as a line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import json
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from leasehold.emulators.eventhubs.control import Clock, Control
from leasehold.emulators.eventhubs.edge import Edges
from leasehold.emulators.eventhubs.namespace import MESSAGE_BYTES_MAX, Namespace
from leasehold.emulators.eventhubs.tokens import Keys
from leasehold.emulators.eventhubs.tunnel import serve_tunnel
from leasehold.emulators.hosting import certified, open_port, wait_until_stopped

KEY = base64.b64encode(b"a key for tests alone, of 32 byte").decode()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="leasehold.emulators.eventhubs", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="of AMQP without TLS; 0 for any")
    parser.add_argument("--tls-port", type=int, default=0, help="of AMQP with a certificate of its own; 0 for any")
    parser.add_argument("--ws-port", type=int, default=0, help="of WebSockets; 0 for any")
    parser.add_argument("--wss-port", type=int, default=0, help="of WebSockets with that certificate; 0 for any")
    parser.add_argument("--control-port", type=int, default=0)
    parser.add_argument(
        "--hubs", default="raw-event:4,transformed-event:4", help="name:partitions, with commas between"
    )
    parser.add_argument(
        "--groups", default="", help="consumer groups of every hub beside $Default, with commas between"
    )
    parser.add_argument("--events-max", type=int, help="how many events a partition keeps; all, if not given")
    parser.add_argument("--message-bytes-max", type=int, default=MESSAGE_BYTES_MAX)
    parser.add_argument("--key-name", default="RootManageSharedAccessKey")
    parser.add_argument("--key", default=KEY)
    parser.add_argument("--token", default="a token for tests alone", help="what it takes for an access token of Entra")
    parser.add_argument("--with-parent", action="store_true", help="end when the process that started it has ended")
    return parser.parse_args()


async def run() -> None:
    options = arguments()
    clock = Clock(time.time)
    keys = Keys(keys={options.key_name: options.key}, jwt=options.token)
    namespace = Namespace(keys=keys, now_ms=clock.now_ms, message_bytes_max=options.message_bytes_max)
    edges = Edges(namespace)
    control = Control(edges=edges, clock=clock, hubs=hubs(options))
    control.make_hubs()
    loop = asyncio.get_running_loop()
    host = options.host
    plain = await loop.create_server(edges.socket, host, options.port)
    tunnels = partial(serve_tunnel, edges)
    with tempfile.TemporaryDirectory(prefix="leasehold-eventhubs-") as directory:
        ca = Path(directory, "ca.pem")
        tls = certified(host, ca)
        secure = await loop.create_server(edges.socket, host, options.tls_port, ssl=tls)
        said = {
            "host": host,
            "port": port_of(plain),
            "tls_port": port_of(secure),
            "ws_port": await open_port(http(tunnels), host, options.ws_port),
            "wss_port": await open_port(http(tunnels), host, options.wss_port, tls),
            "ca": str(ca),
            "key_name": options.key_name,
            "key": options.key,
            "token": options.token,
            "connection_string": f"Endpoint=sb://{host}:{port_of(plain)};SharedAccessKeyName={options.key_name};"
            f"SharedAccessKey={options.key};UseDevelopmentEmulator=true",
            "control": f"http://{host}:{await open_port(http(control.serve), host, options.control_port)}/",
        }
        quieten_gc()
        print(json.dumps(said), flush=True)  # noqa: T201
        await wait_until_stopped(os.getppid() if options.with_parent else None)


def hubs(options: argparse.Namespace) -> dict[str, tuple[int, set[str], int | None]]:
    groups = {group for group in options.groups.split(",") if group}
    named = (hub.rpartition(":") for hub in options.hubs.split(","))
    return {name: (int(partitions), groups, options.events_max) for name, _, partitions in named}


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


def http(handler: Any) -> web.Server:
    return web.Server(handler, access_log=None)


def quieten_gc() -> None:
    """Millions of events live long, so collecting garbage among them is a waste."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


if __name__ == "__main__":
    asyncio.run(run())
