"""A PySpark without the private parts that make small batches fast: public calls, and the same output."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.spark import pyspark_internals, session, transform
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform

pytestmark = pytest.mark.xdist_group("spark-1")

Prepare = Callable[..., Awaitable[SparkTransform]]
MakeBatch = Callable[..., Batch]

COUNT = "SELECT partition, count(*) AS n, max(sequence) AS last FROM events GROUP BY partition"


@pytest.fixture
def _public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark_internals, "_sends_at_once", lambda: False)


@pytest.mark.usefixtures("_public")
async def test_a_batch_in_several_spark_partitions_is_whole_however_the_plan_before_it_was_kept(
    prepared: Prepare, batch: MakeBatch
) -> None:
    counts = await prepared(sql=COUNT)
    await counts.apply(batch("0", [b"{}"] * 3))
    own = counts._job._runs.own
    assert own is not None
    assert own.kept is not None
    own.session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2")  # as `spark.conf` may
    output = await counts.apply(batch("0", [b"{}"] * 5, first=3))
    assert output.to_pylist() == [{"partition": "0", "n": 5, "last": 7}]


@pytest.mark.usefixtures("_public")
async def test_the_first_batch_in_several_spark_partitions_keeps_no_plan(
    prepared: Prepare, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(session.INVARIANTS, "spark.sql.execution.arrow.maxRecordsPerBatch", "2")
    counts = await prepared(sql=COUNT)
    own = counts._job._runs.own
    assert own is not None
    for first in (0, 5):
        output = await counts.apply(batch("0", [b"{}"] * 5, first=first))
        assert output.to_pylist() == [{"partition": "0", "n": 5, "last": first + 4}]
    assert own.kept is None


@pytest.mark.parametrize("part", ["_jdf", "noSuchMethod"])
async def test_batches_share_no_jobs_if_plans_cannot_be_read(
    part: str, prepared: Prepare, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(frame: Any) -> Any:
        if part == "_jdf":
            raise AttributeError(part)
        return pyspark_internals.plan_of(frame).noSuchMethod()

    for module in (session, transform):
        monkeypatch.setattr(module, "plan_of", hidden)
    counts = await prepared(sql=COUNT)
    assert counts.checked is not None
    assert "cannot be read" in str(counts.checked.why_not_shared)
    for first in (0, 3):
        output = await counts.apply(batch("0", [b"{}"] * 3, first=first))
        assert output.to_pylist() == [{"partition": "0", "n": 3, "last": first + 2}]


async def test_a_host_learns_what_its_jvm_lacks_from_the_jvm_itself(spark: SparkEngine) -> None:
    plan = pyspark_internals.plan_of(spark.running().session.range(1))
    assert pyspark_internals.of_plans(lambda: plan.noSuchMethod(), "unknown") == "unknown"
    assert pyspark_internals.of_plans(lambda: plan.queryExecution().toString(), "unknown") != "unknown"
