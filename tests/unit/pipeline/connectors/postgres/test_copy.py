"""Rows as COPY takes them, whatever chunks a table has."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.connectors.postgres.copy import load

ROWS = pa.table({"n": pa.array([1, 2], pa.int64()), "text": ["a", None]})
LINES = b'1,"a"\n2,\n'


@pytest.mark.parametrize(
    ("chunks", "times"),
    [([ROWS], 1), ([ROWS.slice(0, 0), ROWS], 1), ([ROWS, ROWS.slice(0, 0), ROWS], 2), ([ROWS.slice(0, 0)], 0)],
    ids=["one", "an empty one first", "an empty one between", "an empty one alone"],
)
def test_empty_chunks_are_no_rows(chunks: list[pa.Table], times: int) -> None:
    """Arrow writes kilobytes of zeros for an empty chunk before others (pyarrow 26.0.1)."""
    assert load(pa.concat_tables(chunks)).csv == LINES * times
