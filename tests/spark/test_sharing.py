"""Output for a batch is the same whichever partitions share its job: a family of queries, each run together and apart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest
from plugins_cluster import is_over_connect

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.errors import TransformError
from leasehold.pipeline.spark.transform import SparkTransform

pytestmark = pytest.mark.xdist_group("spark-1")

Prepare = Callable[..., Awaitable[SparkTransform]]
MakeBatch = Callable[..., Batch]

SHARE = {
    "events as they are": "SELECT * FROM events",
    "an aggregate": "SELECT partition, key, count(*) AS n, sum(sequence) AS s FROM events GROUP BY partition, key",
    "an aggregate by a renamed partition": (
        "SELECT p AS partition, count(*) AS n FROM (SELECT partition AS p, key FROM events) GROUP BY p"
    ),
    "several distinct counts": (
        "SELECT partition, count(DISTINCT key) AS k, count(DISTINCT operation) AS o FROM events GROUP BY partition"
    ),
    "having": "SELECT partition, key, count(*) AS n FROM events GROUP BY partition, key HAVING count(*) > 3",
    "distinct": "SELECT DISTINCT partition, key FROM events",
    "a window": (
        "SELECT partition, sequence, row_number() OVER (PARTITION BY partition, key ORDER BY sequence) AS r FROM events"
    ),
    "the first of a window": (
        "SELECT partition, key, sequence FROM (SELECT *, row_number() OVER (PARTITION BY partition ORDER BY sequence) AS r"
        " FROM events) WHERE r <= 3"
    ),
    "a join with itself": (
        "SELECT a.partition, a.sequence, b.sequence AS before FROM events a"
        " LEFT JOIN events b ON a.partition = b.partition AND a.sequence = b.sequence + 1"
    ),
    "a full join using the partition": (
        "SELECT partition, sequence FROM events FULL JOIN"
        " (SELECT partition, sequence + 1 AS sequence FROM events) USING (partition, sequence)"
    ),
    "a join with an aggregate of itself": (
        "WITH totals AS (SELECT partition, count(*) AS n FROM events GROUP BY partition)"
        " SELECT e.partition, e.sequence, t.n FROM events e JOIN totals t USING (partition)"
    ),
    "a join with constants": (
        "SELECT partition, sequence, rate FROM events LEFT JOIN (VALUES ('a', 1), ('b', 2)) AS rates (k, rate) ON key = k"
    ),
    "exists within the partition": (
        "SELECT partition, sequence FROM events e WHERE EXISTS"
        " (SELECT 1 FROM events x WHERE x.partition = e.partition AND x.sequence = e.sequence + 1 AND x.key = 'a')"
    ),
    "a union": "SELECT partition, key FROM events UNION ALL SELECT partition, operation FROM events",
    "a union without duplicates": "SELECT partition, key FROM events UNION SELECT partition, operation FROM events",
    "grouping sets": (
        "SELECT partition, key, count(*) AS n FROM events GROUP BY GROUPING SETS ((partition, key), (partition))"
    ),
    "explode": "SELECT partition, sequence, word FROM events LATERAL VIEW explode(map_keys(properties)) AS word",
    "except": "SELECT partition, key FROM events EXCEPT SELECT partition, operation FROM events",
}
READ_OVER_CONNECT = (
    *("events as they are", "an aggregate", "an aggregate by a renamed partition", "several distinct counts"),
    *("having", "distinct", "a window", "the first of a window"),
)
"""Chains of one input (pipeline/spark/plan_text.py). There, all others and all functions get a job for each partition."""
APART = {
    "a window over another key": (
        "SELECT partition, sequence, row_number() OVER (PARTITION BY key ORDER BY partition, sequence) AS r FROM events"
    ),
    "a window over everything": "SELECT partition, sequence, sum(sequence) OVER () AS s FROM events",
    "a limit": "SELECT partition, sequence FROM events ORDER BY key, partition, sequence LIMIT 5",
    "a sort": "SELECT partition, sequence FROM events ORDER BY key",
    "a scalar subquery": "SELECT partition, sequence, (SELECT max(sequence) FROM events) AS newest FROM events",
    "a subquery over everything": (
        "SELECT partition, sequence FROM events WHERE sequence IN (SELECT max(sequence) FROM events GROUP BY key)"
    ),
    "a join by another key": (
        "SELECT a.partition, a.sequence, b.sequence AS other FROM events a JOIN events b ON a.key = b.key"
    ),
    "a join with an aggregate by another key": (
        "SELECT e.partition, e.sequence, t.n FROM events e"
        " JOIN (SELECT key, count(*) AS n FROM events GROUP BY key) t ON e.key = t.key"
    ),
    "any of several": "SELECT partition, key, collect_list(sequence) AS s FROM events GROUP BY partition, key",
}
FOREIGN = (
    "SELECT key FROM events",
    "SELECT 'p0' AS partition, key FROM events",
    "SELECT key AS partition FROM events",
    "SELECT upper(partition) AS partition FROM events",
    "SELECT partition, key, count(*) AS n FROM events GROUP BY ROLLUP (partition, key)",
    "SELECT b.partition FROM events a LEFT JOIN events b ON a.partition = b.partition AND b.key = 'none'",
    "SELECT partition FROM events UNION ALL SELECT 'p9'",
    "SELECT 1 AS partition FROM events",
)
SHARE_FUNCTIONS = {
    "an aggregate": 'def transform(events): return events.groupBy("partition", "key").agg(F.max("sequence").alias("m"))',
    "a Python function of one row": """
        def transform(events):
            upper = F.udf(lambda key: key and key.upper(), "string")
            return events.select("partition", "sequence", upper("key").alias("k"))
    """,
}
APART_FUNCTIONS = {
    "a pandas function": """
        def transform(events):
            @F.pandas_udf("double")
            def centred(values: pd.Series) -> pd.Series:
                return values - values.mean()
            return events.coalesce(1).select("partition", "sequence", centred("sequence").alias("c"))
    """,
    "rows in bulk": """
        def transform(events):
            def numbered(batches):
                import pyarrow as pa
                table = pa.Table.from_batches(batches)
                rank = pa.array(range(table.num_rows), pa.int64())
                yield from table.append_column("rank", rank).to_batches()
            out = "partition string, sequence long, rank long"
            return events.coalesce(1).select("partition", "sequence").mapInArrow(numbered, out)
    """,
    "a look at the data": """
        def transform(events):
            newest = events.agg(F.max("sequence")).collect()[0][0] or 0
            return events.select("partition", (F.lit(newest) - F.col("sequence")).alias("behind"))
    """,
}


def some_events(partition: str) -> list[dict[str, Any]]:
    pick = random.Random(f"events of {partition}")
    return [{"key": pick.choice("abcde"), "operation": pick.choice(["create", "a", None])} for _ in range(40)]


def rows(output: pa.Table) -> list[str]:
    return sorted(map(repr, output.to_pylist()))


def assert_shares(transform: SparkTransform, *, over_connect: bool) -> None:
    assert transform.checked is not None
    why_not = transform.checked.why_not_shared
    if over_connect or not is_over_connect():
        assert why_not is None
    else:
        assert str(why_not).startswith("over Spark Connect, ")


async def assert_same_together_and_apart(transform: SparkTransform, batch: MakeBatch) -> None:
    batches = [batch(name, some_events(name), first=10 * number) for number, name in enumerate(("p0", "p1"))]
    apart = [rows(await transform.apply(each)) for each in batches]
    together = [rows(output) for output in await asyncio.gather(*map(transform.apply, batches))]
    assert together == apart
    assert any(apart)


@pytest.mark.parametrize("name", SHARE)
async def test_a_query_keyed_by_partition_shares_jobs_and_changes_nothing(
    name: str, prepared: Prepare, batch: MakeBatch
) -> None:
    transform = await prepared(sql=SHARE[name])
    assert_shares(transform, over_connect=name in READ_OVER_CONNECT)
    await assert_same_together_and_apart(transform, batch)


@pytest.mark.parametrize("name", APART)
async def test_a_query_that_mixes_partitions_gives_each_its_own_job(
    name: str, prepared: Prepare, batch: MakeBatch
) -> None:
    transform = await prepared(sql=APART[name])
    assert transform.checked is not None
    assert not transform.checked.shares_jobs
    await assert_same_together_and_apart(transform, batch)


@pytest.mark.parametrize("name", SHARE_FUNCTIONS)
async def test_a_function_that_keeps_partitions_apart_shares_jobs(
    name: str, prepared: Prepare, batch: MakeBatch, function: Callable[[str], str]
) -> None:
    transform = await prepared(function=function(SHARE_FUNCTIONS[name]))
    assert_shares(transform, over_connect=False)
    await assert_same_together_and_apart(transform, batch)


@pytest.mark.parametrize("name", APART_FUNCTIONS)
async def test_a_function_that_mixes_partitions_gives_each_its_own_job(
    name: str, prepared: Prepare, batch: MakeBatch, function: Callable[[str], str]
) -> None:
    transform = await prepared(function=function(APART_FUNCTIONS[name]))
    assert transform.checked is not None
    assert not transform.checked.shares_jobs
    await assert_same_together_and_apart(transform, batch)


@pytest.mark.parametrize("sql", FOREIGN)
async def test_output_without_the_events_own_partition_is_refused_by_name(
    sql: str, prepared: Prepare, batch: MakeBatch
) -> None:
    """Over Connect, where plans are not all read, by the first batch whose output has the row of another partition."""

    async def processed() -> None:
        transform = await prepared(sql=sql)
        assert is_over_connect()
        await transform.apply(batch("p1", some_events("p1")))

    with pytest.raises(TransformError, match="`partition`"):
        await processed()


async def test_the_greatest_partition_is_refused_or_gets_a_job_of_its_own(prepared: Prepare, batch: MakeBatch) -> None:
    sql = "SELECT max(partition) AS partition, key FROM events GROUP BY key"
    if is_over_connect():
        await assert_same_together_and_apart(await prepared(sql=sql), batch)
    else:
        with pytest.raises(TransformError, match="`partition`"):
            await prepared(sql=sql)
