"""`python -m leasehold.emulators.cosmos`: one account on the wire, which prints its addresses as a line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from leasehold.emulators.cosmos.account import Account
from leasehold.emulators.cosmos.control import Clock, Control
from leasehold.emulators.cosmos.wire import BODY_BYTES_MAX, Wire
from leasehold.emulators.hosting import certified, open_port, wait_until_stopped

KEY = base64.b64encode(b"a key for tests alone, of sixty-four bytes as the service has it.").decode()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="leasehold.emulators.cosmos", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="of HTTP; 0 for any")
    parser.add_argument("--https-port", type=int, default=0, help="of HTTPS with a certificate of its own; 0 for any")
    parser.add_argument("--control-port", type=int, default=0)
    parser.add_argument("--ranges", type=int, default=1, help="partition key ranges of a new container")
    parser.add_argument("--key", default=KEY, help="the account's key, in base64")
    parser.add_argument("--token", default="a token for tests alone", help="an access token it takes for one of Entra")
    parser.add_argument("--with-parent", action="store_true", help="end when the process that started it has ended")
    return parser.parse_args()


async def run() -> None:
    options = arguments()
    clock = Clock(time.time)
    wire = Wire(account=Account(options.ranges), key=options.key, token=options.token, now=clock.now)
    server, orders = server_of(wire.serve), server_of(Control(wire, clock).serve)
    wire.servers.append(server)
    http = await open_port(server, options.host, options.port)
    control = await open_port(orders, options.host, options.control_port)
    with tempfile.TemporaryDirectory(prefix="leasehold-cosmos-") as directory:
        ca = Path(directory, "ca.pem")
        https = await open_port(server, options.host, options.https_port, certified(options.host, ca))
        said = {
            "endpoint": f"http://{options.host}:{http}/",
            "https": f"https://{options.host}:{https}/",
            "ca": str(ca),
            "key": options.key,
            "token": options.token,
            "control": f"http://{options.host}:{control}/",
        }
        print(json.dumps(said), flush=True)  # noqa: T201
        await wait_until_stopped(os.getppid() if options.with_parent else None)


def request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """With room for what the service refuses itself."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=4 * BODY_BYTES_MAX)


def server_of(handler: Any) -> web.Server:
    """A client may keep its connection for as long as it likes."""
    return web.Server(handler, request_factory=request, access_log=None, keepalive_timeout=3600)


if __name__ == "__main__":
    asyncio.run(run())
