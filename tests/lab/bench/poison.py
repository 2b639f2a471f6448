"""Dead letters at full size: exactly the poison among many events is dead, and what it costs.

Log -> Spark (JSON parse, sum per account) -> PostgreSQL, with dead letters in the batch's transaction. Three drains of as many
events, on one warm Spark: all of them good; some whose bodies do not fit; some that the transform raises on. Each ends with a
look at all balances and all letters. Exit code 1 where one is wrong, or where bodies that do not fit more than halve the
throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import structlog
from observer import postgres
from psycopg.conninfo import make_conninfo
from results import say
from workload import BLOCK_EVENTS, MERGE, PARTITIONS, SETUP, body_of

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.log import LogChangeFeed, append
from leasehold.pipeline.connectors.postgres import PostgresOutputSink, Tables
from leasehold.pipeline.dead_letters import DeadLetters
from leasehold.pipeline.limits import Isolation
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore
from leasehold.service.wiring.build import FOUND_AT_ONCE

SCHEMA = "account STRING NOT NULL, value DECIMAL(20,2) NOT NULL"
SQL = """SELECT partition, account, count(*) AS events,
    sum(CASE WHEN account = 'thief' THEN raise_error('no thieves') ELSE value END) AS value
    FROM events GROUP BY partition, account"""
ACCOUNTS = 1000


@dataclass(frozen=True, slots=True)
class Drain:
    """poison: the body of a bad event, None where all are good; every so many events is one of them."""

    name: str
    poison: bytes | None
    events: int
    every: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--every", type=int, default=1_000, help="one in so many is poison")
    parser.add_argument("--raising-events", type=int, help="how many events to drain where the transform raises")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    drains = [
        Drain("warm-up", b"gibberish", given.events // 10, given.every),
        Drain("all good", None, given.events, given.every),
        Drain("bodies that do not fit", b'{"account": "a", "value": 1.239}', given.events, given.every),
        Drain("raising", body_of(0, "thief", 1), given.raising_events or given.events, given.every),
    ]
    with tempfile.TemporaryDirectory() as directory, postgres(Path(directory)) as server:
        rates = asyncio.run(drained(drains, Path(directory), server.get_uri()))
    share = rates["bodies that do not fit"] / rates["all good"]
    say(f"bodies that do not fit: {share:.2f} of the clean throughput (at least 0.5)")
    sys.exit(share < 0.5)


async def drained(drains: list[Drain], directory: Path, server: str) -> dict[str, float]:
    """Events per second, by name."""
    engine = SparkEngine(master="local[2]")
    session = SparkTransform(
        engine, "session", sql="SELECT * FROM events"
    )  # held, so that Spark outlives the processors
    await session.prepare()
    rates = {}
    for number, drain in enumerate(drains):
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE poison_{number}")
        rates[drain.name] = await one(
            drain, directory / str(number), make_conninfo(server, dbname=f"poison_{number}"), engine
        )
    await session.close()
    return rates


async def one(drain: Drain, directory: Path, dsn: str, engine: SparkEngine) -> float:
    expected = written(drain, directory / "log")
    pipeline = PipelineParts(
        name="balances",
        feed=LogChangeFeed(directory / "log"),
        transform=SparkTransform(
            engine, "balances", sql=SQL, schema=SCHEMA, goes_on=True, isolation=Isolation(most=FOUND_AT_ONCE)
        ),
        sink=PostgresOutputSink(dsn, setup=SETUP, merge=MERGE, tables=Tables(keeps_letters=True)),
        letters=DeadLetters(now=lambda: datetime.now(UTC)),
        batch_timeout_s=3600,
    )
    processor = ProcessorCore([pipeline], SqliteStore(directory / "leases.db"), host="bench")
    began = time.monotonic()
    await processor.start()
    last = await processor.idle()
    took = time.monotonic() - began
    await processor.stop()
    assert not last.failed, last.failed
    dead = check(dsn, drain, expected)
    say(f"{drain.name}: {drain.events:,} events, {dead:,} dead letters, {drain.events / took:,.0f} events/s")
    return drain.events / took


def written(drain: Drain, log: Path) -> Counter[str]:
    """How many good events each account has."""
    counts: Counter[str] = Counter()
    for block, start in enumerate(range(0, drain.events, BLOCK_EVENTS)):
        bodies = []
        for number in range(start, min(start + BLOCK_EVENTS, drain.events)):
            account = f"account-{number % ACCOUNTS}"
            is_poison = drain.poison is not None and number % drain.every == drain.every // 2
            counts[account] += not is_poison
            bodies.append(drain.poison if is_poison and drain.poison else body_of(number, account, 1))
        append(log, str(block % PARTITIONS), bodies)
    return counts


def check(dsn: str, drain: Drain, expected: Counter[str]) -> int:
    """The dead letters, which with the output are the feed."""
    with psycopg.connect(dsn) as connection:
        found = dict(connection.execute("SELECT account, events FROM balances").fetchall())
        letters = connection.execute(
            "SELECT count(*), count(DISTINCT (partition, sequence)) FROM leasehold_dead_letters"
        )
        dead, different = letters.fetchone() or (0, 0)
        bodies = connection.execute("SELECT DISTINCT body FROM leasehold_dead_letters").fetchall()
    assert found == dict(+expected), "the balances are wrong"
    assert dead == different == drain.events - expected.total(), f"{dead} dead letters, {different} different ones"
    assert bodies == ([(drain.poison,)] if drain.poison else []), bodies
    return int(dead)


if __name__ == "__main__":
    main()
