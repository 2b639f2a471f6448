"""A table as a sink: the rows of a batch and the position that it brings are one transaction.

`positions` has a row for each lease, with the epoch of its owner. A claim raises the epoch there, and a batch is committed only
while its owner's epoch still stands. So nothing that an earlier owner does can take effect after a later claim.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from sqlite3 import Connection
from typing import NamedTuple, TypeVar

from leasehold import (
    Claim,
    CloseReason,
    Fenced,
    Output,
    Permit,
    Sink,
    SinkRejected,
    SinkUnavailable,
    SinkWriter,
    Standing,
    crash_point,
    events_of,
    generation_lost,
    lease_of,
)
from plugins.tables.database import EVENTS, Database, Unavailable, append

T = TypeVar("T")
SCHEMA = f"""{EVENTS}
CREATE TABLE IF NOT EXISTS positions (
    lease TEXT PRIMARY KEY, generation INTEGER NOT NULL, epoch INTEGER NOT NULL, owner TEXT NOT NULL, position TEXT,
    ended INTEGER NOT NULL
);
"""


class Held(NamedTuple):
    """What the table knows of a lease."""

    generation: int
    epoch: int
    owner: str
    position: str | None
    ended: int


class TableSink(Sink):
    """Output columns: `body` (STRING or BINARY), and `key` if wanted. A source partition's rows get its name."""

    leasehold_interface = 1
    holds_position = True

    def __init__(self, path: str) -> None:
        self._database = Database(path, SCHEMA)

    @property
    def identity(self) -> str:
        return f"tables:{self._database.path}"

    def claimed(self, state: str) -> str:
        """The lease keeps whether the table has a position, so that a deleted file is noticed."""
        return state

    async def prepare(self) -> None:
        await run(self._database, lambda connection: None)

    async def open(self, claim: Claim) -> TableWriter:
        def take(connection: Connection) -> Held:
            held = admitted(claim, find(connection, claim.pipeline, claim.partition), self.identity)
            keep(connection, claim, held)
            return held

        return TableWriter(self._database, claim, await run(self._database, take))

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        held = await run(self._database, lambda connection: find(connection, pipeline, partition))
        return None if held is None else Standing(held.generation, held.position)

    async def close(self) -> None:
        await self._database.close()


class TableWriter(SinkWriter):
    def __init__(self, database: Database, claim: Claim, held: Held) -> None:
        self._database = database
        self._claim = claim
        self._held = held

    @property
    def position(self) -> str | None:
        return self._held.position

    @property
    def state(self) -> str:
        return known(self._claim.generation)

    async def write(self, output: Output, permit: Permit) -> None:
        if self._held.ended:
            raise SinkRejected(f"partition '{self._claim.partition}' has ended, and nothing more is taken from it")
        rows = [(row["key"], row["body"]) for row in events_of(output.table, "a table").to_pylist()]
        await self._commit(rows, self._held._replace(position=output.to), permit)
        crash_point("published")

    async def end(self, permit: Permit) -> None:
        await self._commit([], self._held._replace(ended=1), permit)

    async def close(self, reason: CloseReason) -> None:
        """Nothing is held between writes."""

    async def _commit(self, rows: list[tuple[str | None, bytes | None]], held: Held, permit: Permit) -> None:
        time = datetime.now(UTC).isoformat()

        def commit(connection: Connection) -> None:
            if find(connection, self._claim.pipeline, self._claim.partition) != self._held:
                raise Fenced(f"partition '{self._claim.partition}' was claimed by another owner")
            append(connection, self._claim.partition, time, rows)
            keep(connection, self._claim, held)
            permit.check()

        await run(self._database, commit)
        self._held = held


def admitted(claim: Claim, held: Held | None, where: str) -> Held:
    """What a claim stores. Pure. Raises Fenced, SinkRejected."""
    if held is None and claim.state == known(claim.generation):
        raise SinkRejected(f"{where} no longer has the position of '{claim.partition}': restore it, or reset the lease")
    if held is None or held.generation < claim.generation:
        return Held(claim.generation, claim.epoch, claim.owner, claim.continuation, 0)
    if held.generation > claim.generation:
        raise generation_lost(claim, where, held.generation)
    if (held.epoch, held.owner) != (claim.epoch, claim.owner) and held.epoch >= claim.epoch:
        raise Fenced(f"{where} knows '{held.owner}' with epoch {held.epoch}: not {claim.epoch}", epoch=held.epoch)
    return held._replace(epoch=claim.epoch, owner=claim.owner)


def known(generation: int) -> str:
    return f"known:{generation}"


def find(connection: Connection, pipeline: str, partition: str) -> Held | None:
    query = "SELECT generation, epoch, owner, position, ended FROM positions WHERE lease = ?"
    found = connection.execute(query, (lease_of(pipeline, partition),)).fetchone()
    return None if found is None else Held(*found)


def keep(connection: Connection, claim: Claim, held: Held) -> None:
    lease = lease_of(claim.pipeline, claim.partition)
    connection.execute("INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?, ?)", (lease, *held))


async def run(database: Database, work: Callable[[Connection], T]) -> T:
    try:
        return await database.run(work)
    except Unavailable as error:
        raise SinkUnavailable(str(error)) from error
