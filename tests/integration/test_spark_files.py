"""What the sink `files` wrote, read by Spark through the manifest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jobs import MakeBatch, Prepare
from unit.pipeline.connectors.files.sink.places import wrote

from leasehold.pipeline.spark.engine import SparkEngine

pytestmark = pytest.mark.xdist_group("spark-1")


async def test_spark_reads_the_files_of_a_snapshot_and_no_leftovers(
    tmp_path: Path, prepared: Prepare, batch: MakeBatch, spark: SparkEngine
) -> None:
    """From a real job's output, with a column that came later, under a name that needs care."""
    transform = await prepared(
        schema="account STRING, amount DECIMAL(18,2)",
        sql="SELECT partition, sequence, enqueued_time, account, amount FROM events",
    )
    bodies = [f'{{"account": "a{number}", "amount": "{number}.25"}}' for number in range(1, 4)]
    first = await transform.apply(batch("p", bodies))
    second = first.append_column("note", pa.array(["é"] * 3))
    snapshot = await asyncio.to_thread(wrote, tmp_path, first, second)
    leave_an_attempt_beside(snapshot.paths[0])
    rows = await asyncio.to_thread(read, spark, snapshot.paths)
    assert len(rows) == 6
    assert {(row["account"], row["amount"]) for row in rows} == {(f"a{n}", Decimal(f"{n}.25")) for n in range(1, 4)}
    assert sorted(str(row["note"]) for row in rows) == ["None"] * 3 + ["é"] * 3
    assert {row["enqueued_time"].astimezone(UTC) for row in rows} == {datetime(2026, 1, 1, tzinfo=UTC)}


def leave_an_attempt_beside(path: str) -> None:
    Path(path).with_name(f"{1:012d}-{'f' * 32}.parquet").write_bytes(Path(path).read_bytes())


def read(spark: SparkEngine, paths: Sequence[str]) -> list[dict[str, Any]]:
    found = spark.running().session.read.option("mergeSchema", True).parquet(*paths)
    return [row.asDict() for row in found.collect()]
