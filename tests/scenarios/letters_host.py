"""A host of `scenarios.letters`: python -m scenarios.letters_host DIRECTORY KIND DSN MENDED

It processes a log until nothing is left, without Spark: its transform fails on bodies with a `!`, but for those that are mended.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog
from unit.pipeline.burials import Picky

from leases.stores.sqlite import SqliteStore
from leases.timing import Timing
from pipeline.batch import BatchLimits
from pipeline.connectors.filesink import Directory, FileLetters, FilesSink
from pipeline.connectors.log import LogFeed, LogSink
from pipeline.connectors.postgres import PostgresLetters, PostgresSink, letters_merge, storable
from pipeline.dead_letters import DeadLetters, LetterBox, beside
from pipeline.dead_letters.strands import StrandedLetters
from pipeline.sink import Sink
from service.pipeline import Pipeline
from service.processor import Processor

NAME = "pipe"
PAGE_EVENTS = 10
SETUP = "CREATE TABLE IF NOT EXISTS outcome (body bytea CHECK (position('?' IN encode(body, 'escape')) = 0))"


@dataclass(frozen=True, slots=True)
class Where:
    directory: Path
    dsn: str


@dataclass(frozen=True, slots=True)
class Kind:
    """sink, box: of a pipeline. systems: whose crash points it comes through, as in `scenarios.cases`.

    refuses: whether the sink refuses bodies with a `?`.
    """

    sink: Callable[[Where], Sink]
    box: Callable[[Where], LetterBox]
    systems: tuple[str, ...]
    refuses: bool = False


def log_box(where: Where) -> LetterBox:
    return LetterBox(feed=LogFeed(where.directory / "letters"), sink=LogSink(where.directory / "letters"))


def files_box(where: Where) -> LetterBox:
    place = where.directory / "letters"
    feed = StrandedLetters(FileLetters(Directory(place), NAME))
    return LetterBox(feed=feed, sink=FilesSink(Directory(place)), rows=lambda rows: rows)


def postgres_box(where: Where) -> LetterBox:
    sink = PostgresSink(where.dsn, merge=letters_merge("public"), letters=True)
    return LetterBox(feed=PostgresLetters(where.dsn, NAME), sink=sink, rows=storable)


def log_sink(where: Where) -> Sink:
    return LogSink(where.directory / "outcome")


def files_sink(where: Where) -> Sink:
    return FilesSink(Directory(where.directory / "outcome"))


def postgres_sink(where: Where, *, letters: bool = False) -> Sink:
    return PostgresSink(
        where.dsn,
        setup=SETUP,
        merge="INSERT INTO outcome SELECT body FROM batch ORDER BY sequence",
        letters=letters,
    )


KINDS: Mapping[str, Kind] = {
    "postgres in one transaction": Kind(
        lambda where: postgres_sink(where, letters=True),
        lambda where: LetterBox(feed=PostgresLetters(where.dsn, NAME)),
        ("postgres",),
        refuses=True,
    ),
    "postgres with files": Kind(postgres_sink, files_box, ("box", "postgres", "files"), refuses=True),
    "log with log": Kind(log_sink, log_box, ("box", "log")),
    "log with files": Kind(log_sink, files_box, ("box", "log", "files")),
    "files with postgres": Kind(files_sink, postgres_box, ("box", "files", "postgres")),
    "files with files": Kind(files_sink, files_box, ("box", "files")),
}


def pipeline_of(kind: Kind, where: Where, mended: set[bytes]) -> Pipeline:
    box, sink, transform = kind.box(where), kind.sink(where), Picky()
    transform.mended = mended
    return Pipeline(
        name=NAME,
        feed=LogFeed(where.directory / "feed", page_events_max=PAGE_EVENTS),
        transform=transform,
        sink=sink if box.sink is None else beside(sink, box),
        letters=DeadLetters(now=lambda: datetime.now(UTC), share_max=1.0),
        box=box,
        limits=BatchLimits(events_max=PAGE_EVENTS),
    )


async def processed(kind: Kind, where: Where, mended: set[bytes]) -> int:
    timing = Timing(duration_s=12, renew_s=3, balance_s=1, margin_s=2)
    store = SqliteStore(where.directory / "leases.db")
    processor = Processor([pipeline_of(kind, where, mended)], store, host="host", timing=timing)
    await processor.start()
    last = await processor.idle()
    await processor.stop()
    return 1 if last.failed else 0


def main() -> int:
    directory, kind, dsn, mended = sys.argv[1:]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    return asyncio.run(processed(KINDS[kind], Where(Path(directory), dsn), set(mended.encode().split())))


if __name__ == "__main__":
    sys.exit(main())
