"""`python -m leasehold_emulators.blob`: a wire server of one storage account. It prints its addresses as a line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path

from leasehold_emulators.blob.server import Options, serve
from leasehold_emulators.hosting import wait_until_stopped


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="leasehold_emulators.blob", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="HTTP port; 0 for any")
    parser.add_argument("--tls-port", type=int, default=0, help="HTTPS port, with its own certificate; 0 for any")
    parser.add_argument("--data", type=Path, help="the directory to keep blobs in")
    parser.add_argument("--with-parent", action="store_true", help="end when the parent process has ended")
    return parser.parse_args()


async def run() -> None:
    given = arguments()
    async with serve(Options(port=given.port, tls_port=given.tls_port, data=given.data)) as said:
        print(json.dumps(said), flush=True)  # noqa: T201
        await wait_until_stopped(os.getppid() if given.with_parent else None)


if __name__ == "__main__":
    asyncio.run(run())
