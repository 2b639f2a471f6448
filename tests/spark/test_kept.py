"""A small batch's plan is run again over later batches, and answers as a plan made anew would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.errors import TransformError
from leasehold.pipeline.spark.transform import SparkTransform

pytestmark = pytest.mark.xdist_group("spark-2")

Prepare = Callable[..., Awaitable[SparkTransform]]
MakeBatch = Callable[..., Batch]

SCHEMA = "account STRING, value DECIMAL(20,2)"
SUMS = "SELECT partition, account, sum(value) AS value, count(*) AS n FROM events GROUP BY partition, account"
KEPT = {
    "nothing": None,
    "a projection": "SELECT *, upper(key) AS loud FROM events WHERE value > 3",
    "an aggregate": SUMS,
    "lists": "SELECT partition, sort_array(collect_list(value)) AS v, min_by(key, sequence) AS k FROM events GROUP BY partition",
    "a window": "SELECT partition, sum(value) OVER (PARTITION BY partition, account ORDER BY sequence) AS s FROM events",
    "explode": "SELECT partition, letter FROM events LATERAL VIEW explode(split(concat(account, key), '')) AS letter",
    "a union": "SELECT partition, account FROM events UNION ALL SELECT partition, key FROM events",
    "an order": "SELECT partition, value FROM events ORDER BY value DESC",
}
NOT_KEPT = {
    "the time": "SELECT partition, current_timestamp() AS at FROM events",
    "the time in a condition": "SELECT partition FROM events WHERE enqueued_time <= now()",
    "the time by name": "SELECT partition, CAST(concat('n', 'ow') AS TIMESTAMP) AS at FROM events",
    "the time, made text before there is a plan": "SELECT * FROM (SELECT partition, key FROM events)"
    " PIVOT (count(*) FOR key IN (current_timestamp()::string AS a, 'b' AS b))",
    "a constant that is random": "SELECT partition, hex(aes_encrypt('Spark', '0000111122223333')) AS r FROM events",
    "a random number": "SELECT partition, rand() AS r FROM events",
    "a random id": "SELECT partition, uuid() AS id FROM events",
    "a subquery": "SELECT partition, sequence FROM events WHERE value > (SELECT avg(value) FROM events)",
    "a broadcast": "SELECT /*+ BROADCAST(b) */ a.partition, b.value FROM events a JOIN events b USING (partition, account)",
    "a shuffle": "SELECT /*+ REPARTITION(2, account) */ partition, account FROM events",
    "several distincts": "SELECT partition, count(DISTINCT account) a, count(DISTINCT key) k FROM events GROUP BY partition",
    "a join with itself": "SELECT a.partition, a.sequence, b.value FROM events a JOIN events b USING (partition, account)",
    "a range of its own": "SELECT partition, id FROM events CROSS JOIN range(2)",
}
"""What a plan that is run again would answer with yesterday's constants, or with what it computed for another batch."""


def events(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "key": "abc"[number % 3],
            "body": f'{{"account":"{"defgh"[number * number % 5]}","value":{number}.50}}'.encode(),
        }
        for number in range(first, first + count)
    ]


def rows(output: pa.Table) -> list[str]:
    return sorted(map(repr, output.to_pylist()))


@dataclass
class Failing:
    """A DataFrame whose job fails."""

    _jdf: Any

    def toArrow(self) -> pa.Table:  # noqa: N802  # as Spark names it
        raise RuntimeError("the job failed")


def is_kept(transform: SparkTransform) -> bool:
    own = transform._job._runs.own
    assert own is not None
    return own.kept is not None


@pytest.mark.parametrize("name", KEPT)
async def test_a_plan_run_again_answers_as_one_made_anew(name: str, prepared: Prepare, batch: MakeBatch) -> None:
    transform = await prepared(sql=KEPT[name], schema=SCHEMA)
    await transform.apply(batch("p0", events(0, 40)))
    assert is_kept(transform)
    other = await prepared(sql=KEPT[name], schema=SCHEMA)
    assert other._job._runs.own is not None
    other._job._runs.own.is_looked_at = True  # as if no plan of it could be kept
    for partition, first, count in (("p0", 40, 7), ("p1", 3, 1), ("p0", 10, 200)):
        later = batch(partition, events(first, count))
        again, anew = await transform.apply(later), await other.apply(later)
        assert rows(again) == rows(anew)
        assert again.schema == anew.schema
        assert again.num_rows > 0
        assert is_kept(transform)
        assert not is_kept(other)


@pytest.mark.parametrize("name", NOT_KEPT)
async def test_what_a_plan_would_remember_is_planned_anew(name: str, prepared: Prepare, batch: MakeBatch) -> None:
    transform = await prepared(sql=NOT_KEPT[name], schema=SCHEMA)
    await transform.apply(batch("p0", events(0, 40)))
    assert not is_kept(transform)


async def test_the_time_goes_on(prepared: Prepare, batch: MakeBatch) -> None:
    transform = await prepared(sql="SELECT partition, current_timestamp() AS at FROM events")
    one, other = [await transform.apply(batch("p0", events(n, 1))) for n in range(2)]
    assert one.column("at")[0].as_py() < other.column("at")[0].as_py()


@pytest.mark.parametrize(
    ("now", "mark", "stays"),
    [
        ("SELECT partition, 'new' AS mark FROM events", "new", True),
        ("SELECT partition, 'new' AS mark FROM events WHERE 0 < (SELECT count(*) FROM events)", "old", False),
    ],
)
async def test_a_query_that_means_something_else_by_now_is_planned_anew(
    now: str, mark: str, stays: bool, prepared: Prepare, batch: MakeBatch
) -> None:
    transform = await prepared(sql="SELECT partition, 'old' AS mark FROM events")
    await transform.apply(batch("p0", events(0, 40)))
    assert transform._job._runs.own is not None
    assert transform._job._runs.own.kept is not None
    transform._job._runs.own.kept.query = lambda source: source.sparkSession.sql(
        now
    )  # as current_date() does at midnight
    for _ in range(2):
        output = await transform.apply(batch("p0", events(40, 3)))
        assert output.column("mark").to_pylist() == 3 * [mark]
        assert is_kept(transform) is stays


async def test_a_run_that_fails_keeps_no_plan_that_cannot_be_run_again(prepared: Prepare, batch: MakeBatch) -> None:
    transform = await prepared(sql="SELECT partition, 0L AS n FROM events")
    await transform.apply(batch("p0", events(0, 40)))
    own = transform._job._runs.own
    assert own is not None
    assert own.kept is not None
    own.kept.query = lambda source: source.sparkSession.sql(
        "SELECT partition, (SELECT count(*) FROM events) AS n FROM events"
    )
    own.kept.output = cast(DataFrame, Failing(own.kept.output._jdf))
    with pytest.raises(TransformError):
        await transform.apply(batch("p0", events(40, 3)))
    assert isinstance(own.kept.output, Failing), (
        "it computes a subquery once, and would answer with that for later batches"
    )


async def test_a_function_is_called_for_every_batch(
    prepared: Prepare, batch: MakeBatch, function: Callable[[str], str]
) -> None:
    transform = await prepared(function=function('def transform(events): return events.select("partition")'))
    await transform.apply(batch("p0", events(0, 40)))
    assert transform._job._runs.own is not None
    assert transform._job._runs.own.kept is None


async def test_large_batches_have_plans_of_their_own(prepared: Prepare, batch: MakeBatch) -> None:
    transform = await prepared(sql=SUMS, schema=SCHEMA)
    await transform.apply(batch("p0", events(0, 12_000)))
    assert transform._job._runs.own is not None
    assert not transform._job._runs.own.is_looked_at
    await transform.apply(batch("p0", events(0, 40)))
    assert is_kept(transform)
    large = await transform.apply(batch("p0", events(0, 12_000)))
    assert not transform._job._runs.own.session.catalog.tableExists(
        "events"
    )  # or it would hold them until the next one comes
    assert sum(large.column("n").to_pylist()) == 12_000


async def test_batches_side_by_side_get_their_own_rows(prepared: Prepare, batch: MakeBatch) -> None:
    transform = await prepared(sql="SELECT partition, key, value FROM events", schema=SCHEMA)
    await transform.apply(batch("p0", events(0, 1)))
    assert is_kept(transform)
    for first in range(0, 200, 20):
        parts = [(first + 5 * n, n + 1) for n in range(4)]  # of one partition, so that none shares a job
        outputs = await asyncio.gather(*(transform.apply(batch("p0", events(*part))) for part in parts))
        for (number, count), output in zip(parts, outputs, strict=True):
            assert [int(value) for value in output.column("value").to_pylist()] == list(range(number, number + count))


async def test_a_run_that_fails_leaves_nothing_behind(prepared: Prepare, batch: MakeBatch) -> None:
    sql = "SELECT partition, sum(1 / (value - 3.5)) AS v FROM events GROUP BY partition"
    transform = await prepared(sql=sql, schema=SCHEMA)
    await transform.apply(batch("p0", events(10, 2)))
    assert is_kept(transform)
    with pytest.raises(Exception, match="by zero"):
        await transform.apply(batch("p0", events(0, 10)))
    anew = await prepared(sql=sql, schema=SCHEMA)
    later = batch("p0", events(20, 5))
    assert rows(await transform.apply(later)) == rows(await anew.apply(later))
