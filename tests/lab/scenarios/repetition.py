"""Every sink with `batch_events_max: 200` and hosts that are killed at random: how much is repeated.

The feed reads with its own page size: each file is one page, or two. A seed draws when hosts die: over sinks that may repeat
events, once so many have arrived; over the others, which are too quick to watch, at a point of one of their batches.

    make repetition                 every sink, 20 kills each; prints how much each kill repeated
    make repetition SINK=cosmos     one of them

`handlers` is the sink `python` with a function that is called side by side. For each key, its events also have to come in order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from lab.scenarios.outlets import (
    DATABASE,
    LINES,
    InDirectory,
    MakeOutlet,
    Outlet,
    OverCosmos,
    OverHttp,
    by_account,
    client_of,
)
from lab.scenarios.place import place, say
from lab.scenarios.sinks import ACCOUNTS, Room, is_in_order
from patience import Failed, until
from plugins_cli import events_in
from plugins_endpoint import endpoint_served

from leasehold import Context, Event, Handler
from leasehold.pipeline.sink import CloseReason

BATCH, BUFFERED = 200, 1000
REQUESTS = {"batch_entries_max": 20, "in_flight_max": 2, "buffered_entries_max": BUFFERED, "buffer_age_max_s": 0.02}
KILLS_MAX = 20
WINDOW = 400
KILLS = {"http": 5, "python": 5, "handlers": 5, "cosmos": 5, "postgres": 5, "files": 5, "log": 5, "eventhubs": 5}
"""In the acceptance tests: as many as a minute or two allow."""
AGAIN_MAX = {
    "http": BUFFERED + 2 * BATCH,
    "cosmos": BUFFERED + 2 * BATCH,
    "python": BATCH,
    "handlers": WINDOW + 2 * (WINDOW // 4),
}
AGAIN_MAX |= dict.fromkeys(("postgres", "files", "log", "eventhubs"), 0)
"""Of a partition and for each kill, as docs/guarantees.md says."""
EVENTS = {sink: 4_000 if again else 20_000 for sink, again in AGAIN_MAX.items()}
"""In each file."""
POINTS = ("batch transformed", "before write", "after write")
"""Which each batch reaches once."""
HUB = "delivered"
TAKES_S = 0.05
CALL_S = 0.01
ROW_S = 0.0005


class Http(OverHttp):
    """Slow, so that hosts die in the middle of their work."""

    batch, again_max = BATCH, AGAIN_MAX["http"]
    lines = None  # without `order_by`

    def sink(self) -> dict[str, Any]:
        return {"type": "http", "url": f"{self._endpoint.url}/entries", "content": "body", **REQUESTS}

    def empty(self) -> None:
        self._endpoint.order("reset")
        self._endpoint.order("trouble", takes_s=TAKES_S)


class Documents(OverCosmos):
    batch, again_max = BATCH, AGAIN_MAX["cosmos"]

    def sink(self) -> dict[str, Any]:
        return {**super().sink(), **REQUESTS, "in_flight_max": 40}


class Files(InDirectory):
    batch = BATCH


class Log:
    batch, again_max, lines = BATCH, 0, 1

    def __init__(self, directory: Path) -> None:
        self._path = directory / "log"

    def sink(self) -> dict[str, Any]:
        return {"type": "log", "path": str(self._path)}

    def empty(self) -> None:
        """The room has emptied its directory."""

    def arrived(self) -> dict[str, list[int]]:
        if not self._path.exists():
            return {}
        return by_account(event for events in events_in(self._path).values() for event in events)


class Rows:
    batch, again_max, lines = BATCH, 0, 1

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def sink(self) -> dict[str, Any]:
        setup = "CREATE TABLE IF NOT EXISTS arrived (row bigserial, body bytea)"
        merge = "INSERT INTO arrived (body) SELECT body FROM batch ORDER BY sequence"
        return {"type": "postgres", "dsn": self._dsn, "setup": setup, "merge": merge}

    def empty(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS arrived, leasehold_positions")

    def arrived(self) -> dict[str, list[int]]:
        with psycopg.connect(self._dsn) as connection:
            try:
                rows = connection.execute("SELECT body FROM arrived ORDER BY row").fetchall()
            except psycopg.errors.UndefinedTable:
                return {}
        return by_account(json.loads(body) for (body,) in rows)


class Hub:
    batch, again_max, lines = BATCH, 0, 1

    def __init__(self, server: Any) -> None:
        self._server = server

    def sink(self) -> dict[str, Any]:
        address = {"connection_string": self._server.connection_string, "event_hub": HUB}
        return {"type": "eventhubs", **address, "consumer_group": "sinks"}

    def empty(self) -> None:
        self._server.control.make_hub(HUB, 2, ["sinks"])

    def arrived(self) -> dict[str, list[int]]:
        return by_account(json.loads(body) for name in "01" for body in self._server.control.bodies(HUB, name))


class Numbers:
    """Handlers that note each event in a file of the room."""

    batch, again_max, lines = BATCH, AGAIN_MAX["python"], 1

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def sink(self) -> dict[str, Any]:
        return {"type": "python", "handler": "lab.scenarios.repetition:Noting", "gets": "table"}

    def empty(self) -> None:
        """The room has emptied its directory."""

    def arrived(self) -> dict[str, list[int]]:
        lines = [
            line for file in self._directory.glob("*.noted") for line in file.read_text().splitlines(keepends=True)
        ]
        return by_account(json.loads(line) for line in lines if line.endswith("\n"))


class Noting(Handler):
    """A handler. Its file lies beside the host's settings: `leasehold run FILE`."""

    def open(self, context: Context) -> None:
        self._file = Path(sys.argv[2]).with_name(f"{context.partition}.noted").open("ab", buffering=0)

    def process(self, table: pa.Table, context: Context) -> None:
        for body in table["body"].to_pylist():
            self._file.write(body + b"\n")
            time.sleep(ROW_S)

    def close(self, context: Context, reason: CloseReason) -> None:
        self._file.close()


class SideBySide(Numbers):
    """A function that is called for ten keys of a partition at a time."""

    again_max, lines = AGAIN_MAX["handlers"], LINES

    def sink(self) -> dict[str, Any]:
        parallel = {"key": "key", "max": 16, "window": WINDOW, "timeout_s": 10}
        return {"type": "python", "handler": "lab.scenarios.repetition:note", "parallel": parallel}


async def note(changes: list[Event], context: Context) -> None:
    """A handler of single events. Its files lie beside the host's settings, as those of `Noting`."""
    partition = context.partition
    if partition not in NOTED:
        NOTED[partition] = Path(sys.argv[2]).with_name(f"{partition}.noted").open("ab", buffering=0)
    await asyncio.sleep(CALL_S * random.uniform(0.5, 1.5))  # so that calls side by side end in another order
    NOTED[partition].write((changes[0].body or b"") + b"\n")


NOTED: dict[str, FileIO] = {}


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
    elif sink == "postgres":
        with place("repetition") as (_, server):
            yield lambda directory: Rows(server.get_uri())
    elif sink == "eventhubs":
        from plugins_eventhubs import running as hubs_running

        with hubs_running("--hubs", "none:1") as namespace:
            yield lambda directory: Hub(namespace)
    else:
        makes: dict[str, MakeOutlet] = {"files": Files, "log": Log, "python": Numbers, "handlers": SideBySide}
        yield makes[sink]


def repeated(room: Room, outlet: Outlet, *, seed: int, kills: int) -> list[int]:
    """After each kill, how many events of a partition came once more at most. Raises Failed.

    The last host is left in peace, and everything has arrived in the end.
    """
    rng, everything = random.Random(seed), len(ACCOUNTS) * room.events
    if outlet.again_max:
        first_half = range(1, everything // 2)  # a host that is killed a little late is not done yet
        lives = [_killed_once_arrived(room, outlet, moment) for moment in sorted(rng.sample(first_half, kills))]
    else:
        batches_max = everything // BATCH // kills - 1
        lives = [_killed_at(room, f"{rng.choice(POINTS)}:{rng.randint(1, batches_max)}") for _ in range(kills)]
    if 2 * sum(_different(life) < everything for life in lives) < kills:
        raise Failed("most kills came after everything had arrived")
    with room.running("a") as host:
        room.see_end(host)
    lives.append(outlet.arrived())
    if any(set(lives[-1].get(account, ())) != set(range(1, room.events + 1)) for account in ACCOUNTS):
        raise Failed("something is missing in the end")
    if outlet.lines is not None and not all(is_in_order(numbers, outlet.lines) for numbers in lives[-1].values()):
        raise Failed("events of a key came out of order")
    if outlet.lines is not None and not all(each_in_order(lives, account, outlet.lines) for account in ACCOUNTS):
        raise Failed("a host handled events of a key out of order, or twice")
    if not outlet.again_max and any(len(numbers) > room.events for numbers in lives[-1].values()):
        raise Failed("something arrived twice")
    return [
        max(_again(now.get(account, []), len(before.get(account, []))) for account in ACCOUNTS)
        for before, now in pairwise(lives)
    ]


def each_in_order(lives: Sequence[Mapping[str, list[int]]], account: str, lines: int) -> bool:
    """Whether each life had the events of a key once and in order, also those that came again."""
    ends = [0, *(len(life.get(account, [])) for life in lives)]
    numbers = lives[-1].get(account, [])
    slices = [numbers[start:end] for start, end in pairwise(ends)]
    keys = ([n for n in each if n % lines == rest] for each in slices for rest in range(lines))
    return all(line == sorted(set(line)) for line in keys)


def _killed_once_arrived(room: Room, outlet: Outlet, events: int) -> dict[str, list[int]]:
    """What has arrived in the end."""
    with room.running("a") as host:
        until(lambda: _different(outlet.arrived()) >= events, f"{events} events arrive")
        host.send(signal.SIGKILL)
        host.ended()
    return outlet.arrived()


def _killed_at(room: Room, point: str) -> dict[str, list[int]]:
    """What has arrived in the end. Raises Failed."""
    with room.running("a", armed=point) as host:
        if (code := host.ended()) != -signal.SIGKILL:
            raise Failed(f"'{point}' was not reached: exit code {code}: {host.words}")
    return room.outlet.arrived()


def _different(arrived: Mapping[str, list[int]]) -> int:
    """How many events."""
    return sum(len(set(numbers)) for numbers in arrived.values())


def _again(numbers: list[int], known: int) -> int:
    """How many of those behind the first `known` are among these."""
    return len(set(numbers[known:]) & set(numbers[:known]))


def measured(sink: str, directory: Path, *, kills: int, seed: int) -> list[int]:
    """Raises Failed."""
    with outlet_of(sink) as make:
        room = Room(directory, make, events=EVENTS[sink])
        room.begin()
        try:
            return repeated(room, room.outlet, seed=seed, kills=kills)
        finally:
            room.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="How much each kill of a host repeats, for every sink.")
    parser.add_argument("--sink", choices=AGAIN_MAX, help="by default all")
    parser.add_argument("--kills", type=int, default=KILLS_MAX)
    parser.add_argument("--seed", type=int, default=200)
    given = parser.parse_args()
    is_good = True
    for sink in [given.sink] if given.sink else AGAIN_MAX:
        with tempfile.TemporaryDirectory(prefix="leasehold-repetition-") as directory:
            try:
                again = measured(sink, Path(directory) / "room", kills=given.kills, seed=given.seed)
                most, verdict = max(again), f"at most {max(again)} of a partition for each of {len(again)} kills"
            except Failed as failed:
                most, verdict = sys.maxsize, str(failed)
        is_good &= most <= AGAIN_MAX[sink]
        say(f"{sink:10}{'ok' if most <= AGAIN_MAX[sink] else 'FAILED':8}{verdict}; promised: {AGAIN_MAX[sink]}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
