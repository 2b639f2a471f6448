"""How executors stage rows in PostgreSQL: each part is one transaction, into the table that the owner made for its batch.

A part counts only if the owner's transaction names it. So a COPY needs no epoch: after a later claim, its table is gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import psycopg
import pyarrow as pa
from psycopg.sql import Identifier

from leasehold.common.dsn import read_dsn
from leasehold.common.postgres import address_of
from leasehold.pipeline.connectors.postgres import refusal
from leasehold.pipeline.connectors.postgres.copy import Load, load
from leasehold.pipeline.connectors.postgres.session import Timeouts, parameters_of, settings_of
from leasehold.pipeline.connectors.postgres.sql import loaded
from leasehold.pipeline.connectors.postgres.staging_sql import PART, ROW
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.staging import StagedPart, Stager, sorted_slices

SLICE_BYTES = 4 * 1024 * 1024
"""How much of a part is converted and sent at once. Conversions take several times as much, and executors have little memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresStager(Stager):
    """variable: the environment variable with the DSN. table: schema and name of the staging table. columns: the output's."""

    variable: str
    table: tuple[str, str]
    columns: pa.Schema
    epoch: int
    start: str | None
    timeouts: Timeouts

    def stage(self, table: pa.Table, unique: str) -> StagedPart:
        rows = table.select(self.columns.names).cast(self.columns)
        parameters = parameters_of(read_variable(self.variable), self.timeouts, "leasehold executor")
        address = address_of(parameters)
        try:
            connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise refusal.not_connected(error, address, f"the variable {self.variable}") from None
        with closing(connection):
            try:
                size = self._copy(connection, loads_of(rows, unique))
            except psycopg.Error as error:
                doing = f"staging rows in `{self.table[1]}`"
                is_lost = connection.closed  # if the part was committed all the same, nothing names it
                raise refusal.refused(error, address, doing, is_lost=is_lost, is_sent=False) from None
        return StagedPart(epoch=self.epoch, start=self.start, name=unique, rows=table.num_rows, bytes=size)

    def _copy(self, connection: psycopg.Connection, loads: Iterable[Load]) -> int:
        """Copy all rows of the part or none, in one transaction. Returns the size as CSV.

        Each slice has a COPY of its own: the server limits the time of a statement, and would count the time to make the CSV.
        """
        size = 0
        connection.execute(settings_of(self.timeouts))
        with connection.transaction():
            for each in loads:
                with connection.cursor().copy(loaded(each.columns, Identifier(*self.table))) as copy:
                    copy.write(each.csv)
                size += len(each.csv)
        return size


def is_stageable(names: Sequence[str]) -> bool:
    """Whether no column of the output has a name that a staging table needs itself."""
    return not {PART, ROW} & set(names)


def loads_of(table: pa.Table, part: str) -> Iterator[Load]:
    """The rows in their order, slice by slice. Raises SinkRejected."""
    first = 0
    for rows in sorted_slices(table, SLICE_BYTES):
        yield load(numbered(rows, part, first))
        first += rows.num_rows


def numbered(table: pa.Table, part: str, first: int = 0) -> pa.Table:
    """The table with two more columns: the part's name, and the row's place in the part. first: the place of the first row."""
    rows = table.num_rows
    places = pa.array(np.arange(first, first + rows))
    return table.append_column(PART, pa.repeat(part, rows)).append_column(ROW, places)


def read_variable(name: str) -> str:
    """The DSN that executors use. Raises SinkRejected, which names the variable and quotes nothing of its value."""
    value = os.environ.get(name)
    if not value:
        raise SinkRejected(
            f"the environment variable {name}, which `executors_env` names, is not set: set it to the DSN for staging, on all"
            " hosts and executors"
        )
    try:
        read_dsn(value)
    except ValueError as error:
        raise SinkRejected(f"the environment variable {name} {error}") from None
    return value


def role_of(dsn: str) -> str | None:
    """The role that executors log in as; None if the DSN leaves it to the environment."""
    return read_dsn(dsn).get("user")
