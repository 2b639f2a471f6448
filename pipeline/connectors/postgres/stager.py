"""How executors stage rows in PostgreSQL: each part is one COPY into the table that the owner of the lease made for its batch.

A part counts only if the owner's transaction names it. So a COPY needs no epoch: after a later claim, its table is gone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg.sql import Identifier

from pipeline.connectors.postgres import refusal
from pipeline.connectors.postgres.copy import Load, load
from pipeline.connectors.postgres.session import Timeouts, address_of, parameters_of, read_dsn, settings_of
from pipeline.connectors.postgres.sql import PART, ROW, Column, loaded
from pipeline.errors import SinkRejected
from pipeline.staging import StagedPart, Stager, sorted_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresStager(Stager):
    """variable: of the environment, with the DSN. table: its schema and its name. columns: the output's."""

    variable: str
    table: tuple[str, str]
    columns: pa.Schema
    epoch: int
    start: str | None
    timeouts: Timeouts

    def stage(self, table: pa.Table, unique: str) -> StagedPart:
        rows = load(numbered(sorted_rows(table.select(self.columns.names).cast(self.columns)), unique))
        parameters = parameters_of(read_variable(self.variable), self.timeouts, "leasehold executor")
        address = address_of(parameters)
        try:
            connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise refusal.not_connected(error, address, f"the variable {self.variable}") from None
        with closing(connection):
            try:
                self._copy(connection, rows)
            except psycopg.Error as error:
                doing = f"staging rows in `{self.table[1]}`"
                is_lost = connection.closed  # a part that arrived all the same is never named
                raise refusal.refused(error, address, doing, is_lost=is_lost, is_sent=False) from None
        return StagedPart(epoch=self.epoch, start=self.start, name=unique, rows=table.num_rows, bytes=len(rows.csv))

    def _copy(self, connection: psycopg.Connection, rows: Load) -> None:
        """One transaction: all rows of the part or none."""
        connection.execute(settings_of(self.timeouts))
        with connection.cursor().copy(loaded(rows.columns, Identifier(*self.table))) as copy:
            copy.write(rows.csv)


def columns_of(columns: pa.Schema) -> tuple[Column, ...]:
    """A staging table's, as COPY fills them. Raises SinkRejected."""
    return load(columns.empty_table()).columns


def is_stageable(names: Sequence[str]) -> bool:
    """Whether the output leaves the names free that a staging table needs itself."""
    return not {PART, ROW} & set(names)


def numbered(table: pa.Table, part: str) -> pa.Table:
    """With the part's name, and the place of each row in it."""
    rows = table.num_rows
    return table.append_column(PART, pa.repeat(part, rows)).append_column(ROW, pa.array(range(rows), pa.int64()))


def read_variable(name: str) -> str:
    """The DSN that executors use. Raises SinkRejected, which names the variable and quotes nothing of its value."""
    value = os.environ.get(name)
    if not value:
        raise SinkRejected(
            f"the environment variable {name} is not set, which `executors_env` names: set it to the DSN for staging, on all"
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
