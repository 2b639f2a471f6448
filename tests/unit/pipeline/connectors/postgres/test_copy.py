"""Rows as COPY takes them, whatever chunks a table has, and whatever it shares its buffers with."""

from __future__ import annotations

import pyarrow as pa
import pytest

from leasehold.pipeline.connectors.postgres.copy import load
from leasehold.pipeline.errors import SinkRejected

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


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2)], ids=str)
def test_bytes_are_written_in_hex_and_null_as_nothing(kind: pa.DataType) -> None:
    values = pa.array([b"zz", b"a\0", None, b"\xff\n", b"zz"], kind)
    column = pa.chunked_array([values.slice(1, 3), values.slice(0, 0), values.slice(2, 2)])
    assert load(pa.table({"n": range(5), "b": column})).csv == b'0,"\\x6100"\n1,\n2,"\\xff0a"\n3,\n4,"\\xff0a"\n'


def test_bytes_may_be_none_at_all() -> None:
    columns = {"n": [1, 2], "b": pa.array([b"", b""])}
    assert load(pa.table(columns)).csv == b'1,"\\x"\n2,"\\x"\n'
    assert load(pa.table({"n": [1], "b": pa.array([None], pa.binary())})).csv == b"1,\n"


def test_nul_is_refused_only_in_rows_that_are_written() -> None:
    table = pa.table({"text": ["a", "b\0", "c"]})
    assert load(table.slice(0, 1)).csv == b'"a"\n'
    assert load(table.slice(2)).csv == b'"c"\n'
    with pytest.raises(SinkRejected, match="holds the character NUL"):
        load(table.slice(1))
