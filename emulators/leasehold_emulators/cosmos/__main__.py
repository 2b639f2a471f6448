"""`python -m leasehold_emulators.cosmos`: a wire server of one account. It prints its addresses as a line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os

from leasehold_emulators.cosmos.server import KEY, TOKEN, Options, serve
from leasehold_emulators.hosting import wait_until_stopped


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="leasehold_emulators.cosmos", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="HTTP port; 0 for any")
    parser.add_argument("--https-port", type=int, default=0, help="HTTPS port, with its own certificate; 0 for any")
    parser.add_argument("--control-port", type=int, default=0)
    parser.add_argument("--ranges", type=int, default=1, help="partition key ranges of a new container")
    parser.add_argument("--key", default=KEY, help="the account's key, in base64")
    parser.add_argument("--token", default=TOKEN, help="accepted in place of an access token of Entra")
    parser.add_argument("--with-parent", action="store_true", help="end when the parent process has ended")
    return parser.parse_args()


async def run() -> None:
    given = arguments()
    options = Options(
        host=given.host,
        port=given.port,
        tls_port=given.https_port,
        control_port=given.control_port,
        ranges=given.ranges,
        key=given.key,
        token=given.token,
    )
    async with serve(options) as said:
        print(json.dumps(said), flush=True)  # noqa: T201
        await wait_until_stopped(os.getppid() if given.with_parent else None)


if __name__ == "__main__":
    asyncio.run(run())
