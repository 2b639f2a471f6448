"""`python -m leasehold_emulators.eventhubs`: a wire server of one namespace. It prints its addresses as a line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os

from leasehold_emulators.eventhubs.namespace import MESSAGE_BYTES_MAX
from leasehold_emulators.eventhubs.server import KEY, KEY_NAME, TOKEN, Options, serve
from leasehold_emulators.hosting import wait_until_stopped


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="leasehold_emulators.eventhubs", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="AMQP port without TLS; 0 for any")
    parser.add_argument("--tls-port", type=int, default=0, help="AMQP port, with its own certificate; 0 for any")
    parser.add_argument("--ws-port", type=int, default=0, help="WebSocket port; 0 for any")
    parser.add_argument("--wss-port", type=int, default=0, help="WebSocket port, with that certificate; 0 for any")
    parser.add_argument("--control-port", type=int, default=0)
    parser.add_argument(
        "--hubs", default="raw-event:4,transformed-event:4", help="NAME:PARTITIONS, separated by commas"
    )
    parser.add_argument(
        "--groups", default="", help="consumer groups of every hub, in addition to $Default, separated by commas"
    )
    parser.add_argument("--events-max", type=int, help="how many events a partition keeps; by default all")
    parser.add_argument("--message-bytes-max", type=int, default=MESSAGE_BYTES_MAX)
    parser.add_argument("--key-name", default=KEY_NAME)
    parser.add_argument("--key", default=KEY)
    parser.add_argument("--token", default=TOKEN, help="accepted in place of an access token of Entra")
    parser.add_argument("--with-parent", action="store_true", help="end when the parent process has ended")
    return parser.parse_args()


async def run() -> None:
    given = arguments()
    named = (hub.rpartition(":") for hub in given.hubs.split(","))
    options = Options(
        host=given.host,
        port=given.port,
        tls_port=given.tls_port,
        ws_port=given.ws_port,
        wss_port=given.wss_port,
        control_port=given.control_port,
        hubs={name: int(partitions) for name, _, partitions in named},
        groups=frozenset(group for group in given.groups.split(",") if group),
        events_max=given.events_max,
        message_bytes_max=given.message_bytes_max,
        key_name=given.key_name,
        key=given.key,
        token=given.token,
    )
    async with serve(options) as said:
        print(json.dumps(said), flush=True)  # noqa: T201
        await wait_until_stopped(os.getppid() if given.with_parent else None)


if __name__ == "__main__":
    asyncio.run(run())
