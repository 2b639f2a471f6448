"""Sinks that deliver at least once, with `batch_events_max: 200` and hosts that are killed at random: how much comes again.

The feed reads with its own page size, and each file is one page. Hosts die once so many events have arrived, drawn from a seed.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from plugins_endpoint import endpoint_served

from pipeline.connectors.python import HandlerContext
from pipeline.sink import CloseReason
from scenarios.host import Failed, until
from scenarios.outlets import DATABASE, MakeOutlet, Outlet, OverCosmos, OverHttp, by_account, client_of
from scenarios.sinks import ACCOUNTS, Room

EVENTS = 4000
"""In each file."""
BATCH, BUFFERED = 200, 1000
REQUESTS = {"batch_entries_max": 20, "in_flight_max": 2, "buffered_entries_max": BUFFERED, "buffer_age_max_s": 0.02}
KILLS = {"http": 20, "python": 20, "cosmos": 5}
"""As many as a minute or two allow."""
AGAIN_MAX = {"http": BUFFERED + 2 * BATCH, "cosmos": BUFFERED + 2 * BATCH, "python": BATCH}
"""Of a partition and for each kill, as docs/guarantees.md says."""
TAKES_S = 0.05
ROW_S = 0.0005


class Http(OverHttp):
    """Slow, so that hosts die in the middle of their work."""

    batch, again_max = BATCH, AGAIN_MAX["http"]

    def sink(self) -> dict[str, Any]:
        return {"type": "http", "url": f"{self._endpoint.url}/entries", "content": "body", **REQUESTS}

    def empty(self) -> None:
        self._endpoint.order("reset")
        self._endpoint.order("trouble", takes_s=TAKES_S)


class Documents(OverCosmos):
    batch, again_max = BATCH, AGAIN_MAX["cosmos"]

    def sink(self) -> dict[str, Any]:
        return {**super().sink(), **REQUESTS, "in_flight_max": 40}


class Numbers:
    """Handlers that note each event in a file of the room."""

    batch, again_max, lines = BATCH, AGAIN_MAX["python"], 1

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def sink(self) -> dict[str, Any]:
        return {"type": "python", "handler": "scenarios.repetition:Noting"}

    def empty(self) -> None:
        """The room has emptied its directory."""

    def arrived(self) -> dict[str, list[int]]:
        lines = [
            line for file in self._directory.glob("*.noted") for line in file.read_text().splitlines(keepends=True)
        ]
        return by_account(json.loads(line) for line in lines if line.endswith("\n"))


class Noting:
    """A handler. Its file lies beside the host's settings: `leasehold run FILE`."""

    def open(self, context: HandlerContext) -> None:
        self._file = Path(sys.argv[2]).with_name(f"{context.partition}.noted").open("ab", buffering=0)

    def process(self, context: HandlerContext, table: pa.Table) -> None:
        for body in table["body"].to_pylist():
            self._file.write(body + b"\n")
            time.sleep(ROW_S)

    def close(self, context: HandlerContext, reason: CloseReason) -> None:
        self._file.close()


@contextmanager
def outlet_of(sink: str) -> Iterator[MakeOutlet]:
    if sink == "http":
        with endpoint_served() as endpoint:
            yield lambda directory: Http(endpoint)
    elif sink == "cosmos":
        from plugins_cosmos import running

        with running() as server:
            with client_of(server) as client:
                client.create_database(DATABASE)
            server.control.fault("delay", "document.upsert", delay_s=TAKES_S)
            yield lambda directory: Documents(server, directory.name)
    else:
        yield Numbers


def repeated(room: Room, outlet: Outlet, *, seed: int, kills: int) -> list[int]:
    """After each kill, how many events of a partition came once more at most. Raises Failed.

    The last host is left in peace, and everything has arrived in the end.
    """
    moments = sorted(random.Random(seed).sample(range(1, len(ACCOUNTS) * room.events), kills))
    lives = [_arrived_by_then(room, outlet, moment) for moment in [*moments, None]]
    everything = set(range(1, room.events + 1))
    if any(set(lives[-1].get(account, ())) != everything for account in ACCOUNTS):
        raise Failed("something is missing in the end")
    return [
        max(_again(now.get(account, []), len(before.get(account, []))) for account in ACCOUNTS)
        for before, now in pairwise(lives)
    ]


def _arrived_by_then(room: Room, outlet: Outlet, moment: int | None) -> dict[str, list[int]]:
    """What had arrived when a host ended that was killed once so many different events had; or at its own end."""
    with room.running("a") as host:
        if moment is None:
            room.see_end(host)
        else:
            until(lambda: _count(outlet) >= moment, f"{moment} events arrive")
            host.send(signal.SIGKILL)
            host.ended()
    return outlet.arrived()


def _count(outlet: Outlet) -> int:
    """Of different events."""
    return sum(len(set(numbers)) for numbers in outlet.arrived().values())


def _again(numbers: list[int], known: int) -> int:
    """How many of those behind the first `known` are among these."""
    return len(set(numbers[known:]) & set(numbers[:known]))
