"""A host of `lab.scenarios.letters`: python -m lab.scenarios.letters_host KIND ORDER, which is a JSON object.

It processes a log until nothing is left, without Spark: its transform fails on bodies with a `!`, but for those that are mended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog
from lab.scenarios.letters_kinds import KINDS, NAME, Address, Kind, Where
from unit.pipeline.burials import Picky

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.log import LogChangeFeed
from leasehold.pipeline.dead_letters import DeadLetters, beside
from leasehold.pipeline.limits import BatchLimits
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

PAGE_EVENTS = 10
LEASES = "leases.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a host is told. directory, dsn, server: as of Where. mended: bodies that it lets pass."""

    name: str
    directory: str
    dsn: str
    server: Address
    mended: str

    def encoded(self) -> str:
        return json.dumps(asdict(self))


def pipeline_of(kind: Kind, where: Where, mended: set[bytes]) -> PipelineParts:
    box, sink, transform = kind.box(where), kind.sink(where), Picky()
    transform.mended = mended
    letters = DeadLetters(now=lambda: datetime.now(UTC), share_max=1.0)
    return PipelineParts(
        name=NAME,
        feed=LogChangeFeed(where.directory / "feed", page_events_max=PAGE_EVENTS),
        transform=transform,
        sink=sink if box.sink is None else beside(sink, box, letters),
        letters=letters,
        box=box,
        limits=BatchLimits(events_max=PAGE_EVENTS),
    )


async def processed(kind: Kind, order: Order) -> int:
    where = Where(Path(order.directory), order.dsn, order.server)
    timing = Timing(balance_s=1)
    store = SqliteStore(where.directory / LEASES)
    pipeline = pipeline_of(kind, where, set(order.mended.encode().split()))
    processor = ProcessorCore([pipeline], store, host=order.name, timing=timing)
    await processor.start()
    last = await processor.idle()
    await processor.stop()
    return 1 if last.failed else 0


def main() -> int:
    kind, order = sys.argv[1:]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    return asyncio.run(processed(KINDS[kind], Order(**json.loads(order))))


if __name__ == "__main__":
    sys.exit(main())
