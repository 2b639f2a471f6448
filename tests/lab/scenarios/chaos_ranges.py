"""What executors read and stage in chaos on a cluster: a pipeline beside the bank, from a log with bursts to rows in PostgreSQL.

A burst is more than a host reads before it leaves what waits to executors, and the output of a range is so large that its task
stages it. Each row has the number of its event, and knows whether it was staged.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from lab.scenarios.chaos_books import Difference, compare_logs

from leasehold.pipeline.connectors.log import append

ROLE = "copy"
PARTITIONS = ("0", "1")
"""One for each host."""
VARIABLE = "CHAOS_STAGING_DSN"
LOG = "numbers"
FROM_EVENTS = 200
PAGE_EVENTS = 50
"""A host reads four pages of a burst, and finds that enough is left for executors."""
BURST_EVENTS, BURST_EVERY_S = 3 * FROM_EVENTS, 30.0
LAST_EVENTS = 10 * FROM_EVENTS
"""A host reads eight times FROM_EVENTS by itself after executors have refused three batches in a row."""
OUTPUT_BYTES = 12_000
"""Of an event: a range of half FROM_EVENTS is above what a task hands back."""
SETUP = r"""
    CREATE TABLE IF NOT EXISTS copies (
        place bigserial, partition text, sequence bigint, number bigint, pad text,
        is_staged boolean DEFAULT (current_query() LIKE '%leasehold\_staged\_%'), at timestamptz DEFAULT now()
    )
"""
"""Rows that executors staged come by an INSERT that reads a table of that name; no other statement names one."""

Spans = Sequence[tuple[float, float]]
"""Of Unix time."""


def pipeline(directory: Path) -> dict[str, Any]:
    """Its settings. directory: of the log."""
    return {
        "name": ROLE,
        "feed": {
            "type": "leasehold.pipeline.connectors.log:LogFeed",
            "path": str(directory / LOG),
            "page_events_max": PAGE_EVENTS,
        },
        "schema": "n BIGINT NOT NULL",
        "sql": f"SELECT partition, sequence, n AS number, repeat('x', {OUTPUT_BYTES}) AS pad FROM events",
        "sink": {
            "type": "postgres",
            "dsn": "${LEASEHOLD_POSTGRES_DSN}",
            "setup": SETUP,
            "table": "copies",
            "executors_env": VARIABLE,
        },
        "executors_read": True,
        "executors_read_from": FROM_EVENTS,
    }


def environment(dsn: str) -> dict[str, str]:
    """Of hosts and executors."""
    return {VARIABLE: dsn}


class Backlog:
    """Appends bursts to the log, to each partition in turn. written: partition -> how many events.

    late: partition -> the number from which on they were written after the last fault.
    """

    def __init__(self, directory: Path) -> None:
        self.written = dict.fromkeys(PARTITIONS, 0)
        self.late: Mapping[str, int] = {}
        self._path = directory / LOG
        self._append_to_all(BURST_EVENTS)

    async def write(self, every_s: float) -> None:
        """Until it is cancelled."""
        for partition in itertools.cycle(PARTITIONS):
            await asyncio.sleep(every_s)
            self._append(partition, BURST_EVENTS)

    def write_last(self) -> None:
        """After the last fault: so much that executors read some of it, whatever they have refused before."""
        self.late = dict(self.written)
        self._append_to_all(LAST_EVENTS)

    def _append_to_all(self, events: int) -> None:
        for partition in PARTITIONS:
            self._append(partition, events)

    def _append(self, partition: str, events: int) -> None:
        first = self.written[partition]
        append(self._path, partition, [json.dumps({"n": number}) for number in range(first, first + events)])
        self.written[partition] += events


class Row(NamedTuple):
    """number: of its event. at: when its transaction began, in Unix time."""

    partition: str
    number: int
    is_staged: bool
    at: float


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of the log. written, late: of the Backlog. rows: in their order."""

    written: Mapping[str, int]
    late: Mapping[str, int]
    rows: Sequence[Row]

    @property
    def events(self) -> int:
        return sum(self.written.values())

    @property
    def staged(self) -> list[Row]:
        return [row for row in self.rows if row.is_staged]

    @property
    def staged_late(self) -> int:
        """Of what was written after the last fault."""
        return sum(row.number >= self.late.get(row.partition, self.events) for row in self.staged)

    def staged_within(self, spans: Spans) -> int:
        return sum(any(since <= row.at <= until for since, until in spans) for row in self.staged)

    @property
    def is_whole(self) -> bool:
        """Every event has arrived; some of them perhaps too often."""
        numbers = self._numbers()
        return all(numbers[partition] >= set(range(count)) for partition, count in self.written.items())

    def compare(self, result: Difference) -> None:
        """Adds what is lost, duplicated or out of order."""
        for partition, count in self.written.items():
            numbers = [row.number for row in self.rows if row.partition == partition]
            compare_logs(f"copies, partition {partition}", range(count), numbers, result)

    def idle_after(self, ended: float) -> float | None:
        """How many seconds after the last fault executors had staged something; None if they did not any more."""
        later = [row.at - ended for row in self.staged if row.at > ended]
        return min(later) if later else None

    def failures(self, spans: Spans, ended: float, recovery_s: float) -> Iterator[str]:
        """What was not put to the test, or came after recovery_s. spans: of Spark's faults. ended: when the last fault did."""
        if not self.staged:
            yield "executors read and staged nothing"
        elif not self.staged_within(spans):
            yield "executors staged nothing while faults of Spark lasted"
        if not self.staged_late:
            yield "executors read and staged nothing of what was written after the last fault"
        elif (idle_s := self.idle_after(ended)) is None or idle_s > recovery_s:
            yield f"executors staged nothing for {recovery_s:g} s after the last fault"

    def _numbers(self) -> dict[str, set[int]]:
        numbers: dict[str, set[int]] = {partition: set() for partition in self.written}
        for row in self.rows:
            numbers[row.partition].add(row.number)
        return numbers


def copies_in(backlog: Backlog, dsn: str) -> Copied:
    """Blocks. Raises psycopg.Error."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT partition, number, is_staged, extract(epoch FROM at)::float8 FROM copies ORDER BY place"
        ).fetchall()
    return Copied(dict(backlog.written), backlog.late, [Row(*row) for row in found])
