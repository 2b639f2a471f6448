"""The sinks and boxes of `make letters`: which stand beside each other, how they are served, and what has arrived in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
from lab.scenarios.outlets import GAPS, GAPS_LAST

from leasehold.pipeline.async_sink import Limits
from leasehold.pipeline.connectors.files.sink import Directory, FileLetters, FilesOutputSink, snapshot_of
from leasehold.pipeline.connectors.log import LogChangeFeed, LogOutputSink
from leasehold.pipeline.connectors.postgres import (
    PostgresLettersFeed,
    PostgresOutputSink,
    Tables,
    letters_merge,
    storable,
)
from leasehold.pipeline.dead_letters import LetterBox
from leasehold.pipeline.dead_letters.box import read_until_now
from leasehold.pipeline.dead_letters.merged_feed import MergedLetters
from leasehold.pipeline.limits import ParallelLimits
from leasehold.pipeline.sink import Sink

NAME = "pipe"
SETUP = "CREATE TABLE IF NOT EXISTS outcome (body bytea CHECK (position('?' IN encode(body, 'escape')) = 0))"
LIMITS = Limits(batch_entries_max=4, in_flight_max=2, buffered_entries_max=20, buffer_age_max_s=0.02)
CALL_S = 0.005
PLACE = "letters"
"""The name of a hub, a database or a container."""
Address: TypeAlias = Mapping[str, str]
"""Of the server that a kind needs; empty for none."""


@dataclass(frozen=True, slots=True)
class Where:
    directory: Path
    dsn: str
    server: Address = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kind:
    """sink, box: of a pipeline. arrived: the bodies in the sink.

    systems: whose crash points it comes through, as in `cases`. refuses: whether the sink refuses bodies with a `?`.
    repeats: whether the sink is one of at least once. server: what it needs, one of SERVED.
    """

    sink: Callable[[Where], Sink]
    box: Callable[[Where], LetterBox]
    arrived: Callable[[Where], AsyncIterator[bytes]]
    systems: tuple[str, ...]
    refuses: bool = False
    repeats: bool = False
    server: str | None = None


# Boxes


def log_box(where: Where) -> LetterBox:
    return LetterBox(feed=LogChangeFeed(where.directory / "letters"), sink=LogOutputSink(where.directory / "letters"))


def files_box(where: Where) -> LetterBox:
    place = where.directory / "letters"
    feed = MergedLetters(FileLetters(Directory(place), NAME))
    return LetterBox(feed=feed, sink=FilesOutputSink(Directory(place)), rows=lambda rows: rows)


def postgres_box(where: Where) -> LetterBox:
    sink = PostgresOutputSink(where.dsn, merge=letters_merge("public"), tables=Tables(keeps_letters=True))
    return LetterBox(feed=PostgresLettersFeed(where.dsn, NAME), sink=sink, rows=storable)


def hub_box(where: Where) -> LetterBox:
    from leasehold.pipeline.connectors.eventhubs.account import account_of
    from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
    from leasehold.pipeline.connectors.eventhubs.sink.sink import EventHubsOutputSink

    account = account_of(connection_string=where.server["connection_string"], event_hub=PLACE)
    return LetterBox(feed=EventHubsChangeFeed(account), sink=EventHubsOutputSink(account, consumer_group="$Default"))


# Sinks


def log_sink(where: Where) -> Sink:
    return LogOutputSink(where.directory / "outcome")


def files_sink(where: Where) -> Sink:
    return FilesOutputSink(Directory(where.directory / "outcome"))


def postgres_sink(where: Where, *, letters: bool = False) -> Sink:
    return PostgresOutputSink(
        where.dsn,
        setup=SETUP,
        merge="INSERT INTO outcome SELECT body FROM batch ORDER BY sequence",
        tables=Tables(keeps_letters=letters),
    )


def requests_sink(where: Where) -> Sink:
    from leasehold.pipeline.connectors.http import http_sink

    return http_sink(f"{where.server['url']}/entries?items=1", results="items", limits=LIMITS)


def cosmos_sink(where: Where) -> Sink:
    from leasehold.common.azure import cosmos_account_of
    from leasehold.pipeline.connectors.cosmos import cosmos_sink

    account = cosmos_account_of(endpoint=where.server["endpoint"], key=where.server["key"])
    return cosmos_sink(account, PLACE, PLACE, limits=LIMITS)


def handlers_sink(where: Where) -> Sink:
    """Calls are short and of different lengths, so that events overtake those of other keys."""
    from leasehold.pipeline.connectors.handlers import HandlerSink

    async def handle(event: Mapping[str, Any]) -> None:
        await asyncio.sleep(CALL_S * (event["sequence"] % 3))
        if b"?" in event["body"]:
            raise ValueError("not this one")
        with (where.directory / "outcome").open("ab") as file:
            file.write(event["body"] + b"\n")

    limits = ParallelLimits(max=4, window=20, attempts=2, backoff_s=CALL_S, park_s=0)
    return HandlerSink(handle, key="sequence", limits=limits)


# What has arrived


async def in_lines(where: Where) -> AsyncIterator[bytes]:
    if (where.directory / "outcome").exists():
        for line in (where.directory / "outcome").read_bytes().splitlines():
            yield line


async def in_table(where: Where) -> AsyncIterator[bytes]:
    with psycopg.connect(where.dsn) as connection:
        for (body,) in connection.execute("SELECT body FROM outcome").fetchall():
            yield bytes(body)


async def in_files(where: Where) -> AsyncIterator[bytes]:
    for body in snapshot_of(Directory(where.directory / "outcome")).table()["body"].to_pylist():
        yield body


async def in_log(where: Where) -> AsyncIterator[bytes]:
    feed = LogChangeFeed(where.directory / "outcome")
    for partition in await feed.partitions():
        async for page in read_until_now(feed, partition.name):
            for body in page.events["body"].to_pylist():
                yield body
    await feed.close()


async def at_endpoint(where: Where) -> AsyncIterator[bytes]:
    from plugins_endpoint import Endpoint

    for row in Endpoint(url=where.server["url"], https="", ca="").entries:
        yield row["body"].encode()


async def in_container(where: Where) -> AsyncIterator[bytes]:
    from plugins_cosmos import Control

    for version in Control(where.server["control"]).versions(f"{PLACE}/{PLACE}"):
        yield version["body"]["body"].encode()


KINDS: Mapping[str, Kind] = {
    "postgres in one transaction": Kind(
        lambda where: postgres_sink(where, letters=True),
        lambda where: LetterBox(feed=PostgresLettersFeed(where.dsn, NAME)),
        in_table,
        ("postgres",),
        refuses=True,
    ),
    "postgres with files": Kind(postgres_sink, files_box, in_table, ("box", "postgres", "files"), refuses=True),
    "log with log": Kind(log_sink, log_box, in_log, ("box", "log")),
    "log with files": Kind(log_sink, files_box, in_log, ("box", "log", "files")),
    "files with postgres": Kind(files_sink, postgres_box, in_files, ("box", "files", "postgres")),
    "files with files": Kind(files_sink, files_box, in_files, ("box", "files")),
    "files with hub": Kind(files_sink, hub_box, in_files, ("box", "eventhubs"), server="eventhubs"),
    "handlers with log": Kind(handlers_sink, log_box, in_lines, ("box", "handlers", "log"), refuses=True, repeats=True),
    "handlers with files": Kind(
        handlers_sink, files_box, in_lines, ("box", "handlers", "files"), refuses=True, repeats=True
    ),
    "http with log": Kind(
        requests_sink, log_box, at_endpoint, ("box", "http", "log"), refuses=True, repeats=True, server="http"
    ),
    "cosmos with log": Kind(cosmos_sink, log_box, in_container, ("box", "cosmos"), repeats=True, server="cosmos"),
}


# Servers: each case has one of its own


@contextmanager
def nothing() -> Iterator[Address]:
    yield {}


@contextmanager
def hub() -> Iterator[Address]:
    from plugins_eventhubs import running

    with running("--hubs", f"{PLACE}:2") as server:
        yield {"connection_string": server.connection_string}


@contextmanager
def endpoint() -> Iterator[Address]:
    """Many entries fail for a while, and those with a `?` for ever."""
    from plugins_endpoint import endpoint_served

    with endpoint_served() as server:
        server.order("trouble", items=GAPS, item_status=408, item_times=GAPS_LAST, refused="?")
        yield {"url": server.url}


@contextmanager
def account() -> Iterator[Address]:
    from azure.cosmos import CosmosClient, PartitionKey
    from plugins_cosmos import running

    with running() as server, CosmosClient(server.endpoint, server.key) as client:
        client.create_database(PLACE).create_container(PLACE, PartitionKey("/partition"))
        server.control.fault("fail", "document.upsert", status=408, share=GAPS, in_a_row=GAPS_LAST)
        yield {"endpoint": server.endpoint, "key": server.key, "control": server.control.url}


SERVED: Mapping[str | None, Callable[[], AbstractContextManager[Address]]] = {
    None: nothing,
    "eventhubs": hub,
    "http": endpoint,
    "cosmos": account,
}
