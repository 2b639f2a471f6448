"""The rows of a Delta table as two programs of others read them: DuckDB and Polars.

DuckDB's extension `delta` reads the log by delta-kernel. Polars gets the list of files from deltalake. Each reads Parquet by
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
from delta_log import versions_with_files


class ReadersDiffer(AssertionError):
    """Two readers find different rows in one table."""


def read_rows(path: Path, *columns: str) -> list[dict[str, Any]]:
    """Sorted, because a table has no order. columns: without any, all of them. Raises ReadersDiffer."""
    by_duckdb, by_polars = (_sorted(read(path, *columns)) for read in (read_by_duckdb, read_by_polars))
    if by_duckdb != by_polars:
        raise ReadersDiffer(
            f"{path}: DuckDB reads {len(by_duckdb)} rows, and Polars {len(by_polars)}:"
            f" {_first_difference(by_duckdb, by_polars)}"
        )
    return by_duckdb


def read_replaced(path: Path, key: Sequence[str], *columns: str) -> list[list[dict[str, Any]]]:
    """For each version of a merged table that has written files: the rows that are new or other than in the version before.

    A version that has written files, and has changed no row, repeats a merge: nothing is in its list. columns: also to be read.
    Versions before the newest are read by Polars alone. Raises ReadersDiffer.
    """
    wanted = (*key, *columns)
    before: dict[tuple[Any, ...], dict[str, Any]] = {}
    replaced = []
    for version in versions_with_files(path):
        rows = polars.read_delta(str(path), version=version, columns=list(wanted)).to_dicts()
        now = {tuple(row[name] for name in key): row for row in rows}
        assert len(now) == len(rows), f"version {version} has a key twice"
        assert before.keys() <= now.keys(), f"version {version} lacks a row of the one before"
        replaced.append([row for same, row in now.items() if before.get(same) != row])
        before = now
    newest = read_rows(path, *wanted) if before else []
    assert len(newest) == len(before), "a commit without files has changed rows"
    assert all(row in newest for row in before.values()), "a commit without files has changed rows"
    return replaced


def read_by_duckdb(path: Path, *columns: str) -> pa.Table:
    wanted = ", ".join(f'"{name}"' for name in columns) or "*"
    return query(f"SELECT {wanted} FROM delta_scan(?)", str(path))


def read_by_polars(path: Path, *columns: str) -> pa.Table:
    return polars.read_delta(str(path), columns=list(columns) or None).to_arrow()


def query(sql: str, *parameters: str) -> pa.Table:
    """By DuckDB, whose `delta_scan` is there."""
    with _duckdb().cursor() as cursor:  # its own: threads may read at the same time
        return cursor.execute(sql, parameters).to_arrow_table()


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """With the extension from its package: DuckDB would download it."""
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    extension = files("duckdb_extension_delta") / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"
    connection.execute(f"LOAD '{extension}'")
    return connection


def _sorted(table: pa.Table) -> list[dict[str, Any]]:
    """By all columns; nulls come last."""
    return sorted(table.to_pylist(), key=lambda row: [(value is None, value) for value in row.values()])


def _first_difference(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    only = [row for row in ours if row not in theirs] or [row for row in theirs if row not in ours]
    return f"only one of them has {only[0]}" if only else "one of them has rows more often"
