"""Tables that ask more of a writer than an append are refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from leasehold.pipeline.connectors.files.delta.protocol import Demands, check
from leasehold.pipeline.errors import SinkRejected

PLAIN = Demands(
    writer_version=2,
    writer_features=(),
    properties={"delta.checkpointInterval": "10"},
    partition_columns=(),
    columns=pa.schema([("a", pa.int64())]),
)


def column_with(name: str) -> pa.Schema:
    return pa.schema([pa.field("a", pa.int64(), metadata={name: "1"})])


@pytest.mark.parametrize(
    "demands",
    [
        PLAIN,
        replace(PLAIN, writer_version=7, writer_features=("timestampNtz", "appendOnly", "deletionVectors")),
        replace(PLAIN, properties={"delta.appendOnly": "true", "delta.columnMapping.mode": "none"}),
    ],
)
def test_tables_that_take_a_plain_append_are_written_to(demands: Demands) -> None:
    check(demands, "/lake/t", is_rewriting=False)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"partition_columns": ("day",)}, "the partition columns day"),
        ({"writer_version": 8}, "writer version 8"),
        ({"writer_version": 7, "writer_features": ("rowTracking",)}, "the table feature `rowTracking`"),
        ({"properties": {"delta.constraints.positive": "a > 0"}}, "the constraint `positive`"),
        ({"properties": {"delta.columnMapping.mode": "name"}}, "column mapping"),
        ({"properties": {"delta.setTransactionRetentionDuration": "interval 1 day"}}, "positions of idle partitions"),
        ({"columns": column_with("delta.invariants")}, "a column invariant, 'a'"),
        ({"columns": column_with("delta.generationExpression")}, "a generated column, 'a'"),
        ({"columns": column_with("delta.identity.start")}, "an identity column, 'a'"),
    ],
)
def test_others_are_refused_with_what_they_ask_for(change: dict[str, Any], why: str) -> None:
    with pytest.raises(SinkRejected, match="the Delta table /lake/t has ") as error:
        check(replace(PLAIN, **change), "/lake/t", is_rewriting=False)
    assert why in str(error.value)


def test_rows_of_a_table_that_only_grows_are_not_replaced() -> None:
    grows = replace(PLAIN, properties={"delta.appendOnly": "true"})
    check(grows, "/lake/t", is_rewriting=False)
    with pytest.raises(SinkRejected, match="remove `key_columns`, or unset the property"):
        check(grows, "/lake/t", is_rewriting=True)
