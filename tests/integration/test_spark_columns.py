"""Spark is sent the columns that a query reads and no others, and answers as if it had been sent all of them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from plugins_bank import Make, Open, claim, output
from plugins_pg import Postgres
from pyspark.sql.types import StructType

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.parsing.schema import arrow_schema, read_schema
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.session import PipelineSession
from leasehold.pipeline.spark.transform import SparkTransform

pytestmark = pytest.mark.xdist_group("spark-1")

Prepare = Callable[..., Awaitable[SparkTransform]]
MakeBatch = Callable[..., Batch]

SCHEMA = "account STRING, value DECIMAL(20,2)"
EVERYTHING = (*EVENT_SCHEMA.names, "account", "value")
OF_EVERY_TYPE = """
    is BOOLEAN NOT NULL, tiny TINYINT, small SMALLINT, whole INT NOT NULL, big BIGINT, float FLOAT, double DOUBLE,
    text STRING NOT NULL, day DATE, at TIMESTAMP, then TIMESTAMP_NTZ, amount DECIMAL(20,2), list ARRAY<INT>,
    lists ARRAY<ARRAY<STRING>>, map MAP<STRING, DOUBLE>, struct STRUCT<a: INT NOT NULL, b: ARRAY<STRUCT<c: DATE>>>
"""
READ = {
    "an aggregate": (
        "SELECT partition, account, sum(value) AS value, count(*) AS n FROM events GROUP BY partition, account",
        ("partition", "account", "value"),
    ),
    "a filter": (
        "SELECT partition, sequence FROM events WHERE operation = 'a'",
        ("partition", "sequence", "operation"),
    ),
    "having": (
        "SELECT partition, count(DISTINCT key) AS k FROM events GROUP BY partition HAVING max(sequence) > 3",
        ("partition", "sequence", "key"),
    ),
    "a common table": (
        "WITH e AS (SELECT partition, value FROM events) SELECT partition, sum(value) AS v FROM e GROUP BY partition",
        ("partition", "value"),
    ),
    "a window": (
        "SELECT partition, row_number() OVER (PARTITION BY partition, account ORDER BY value, sequence) AS r FROM events",
        ("partition", "sequence", "account", "value"),
    ),
    "explode": (
        "SELECT partition, word FROM events LATERAL VIEW explode(map_keys(properties)) AS word",
        ("partition", "properties"),
    ),
    "a subquery": (
        "SELECT partition, key FROM events e WHERE value > (SELECT min(sequence) FROM events x WHERE x.operation = 'b')",
        ("partition", "sequence", "key", "operation", "value"),
    ),
    "a union": (
        "SELECT partition, account FROM events UNION ALL SELECT partition, key FROM events",
        ("partition", "key", "account"),
    ),
    "a name given to another column": (
        "SELECT partition, account AS key, key AS k FROM events",
        ("partition", "key", "account"),
    ),
    "what only another day reads": (
        "SELECT partition, if(current_date() > DATE'9000-01-01', key, account) AS k FROM events",
        ("partition", "key", "account"),
    ),
    "everything": ("SELECT * FROM events", EVERYTHING),
    "a union of everything": ("TABLE events UNION ALL TABLE events", EVERYTHING),
    "everything but what it names": ("SELECT * EXCEPT (body) FROM events", EVERYTHING),
    "columns that two sides share": (
        "SELECT partition, sequence FROM events NATURAL JOIN (SELECT 'a' AS key)",
        EVERYTHING,
    ),
}
"""A query, and what of the events it reads, or more."""


def events(count: int = 40) -> list[dict[str, Any]]:
    return [
        {
            "key": "abc"[number % 3],
            "operation": "ab"[number % 2],
            "body": f'{{"account":"{"abcde"[number % 5]}","value":{number}.50}}'.encode(),
        }
        for number in range(count)
    ]


def rows(output: pa.Table) -> list[str]:
    return sorted(map(repr, output.to_pylist()))


@pytest.mark.parametrize("name", READ)
async def test_a_query_is_given_what_it_reads_and_answers_as_if_given_all(
    name: str, prepared: Prepare, batch: MakeBatch
) -> None:
    sql, read = READ[name]
    transform = await prepared(sql=sql, schema=SCHEMA)
    assert transform.checked is not None
    given = await transform.apply(batch("p0", events()))
    assert tuple(transform.checked.reads) == read
    transform.checked = replace(transform.checked, reads=EVERYTHING)
    assert rows(given) == rows(await transform.apply(batch("p0", events())))
    assert given.num_rows > 0


async def test_a_function_is_given_every_column(prepared: Prepare, function: Callable[[str], str]) -> None:
    transform = await prepared(
        function=function('def transform(events): return events.select("partition")'), schema=SCHEMA
    )
    assert transform.checked is not None
    assert tuple(transform.checked.reads) == EVERYTHING


def test_what_a_query_is_checked_with_has_the_types_that_events_are_sent_with(spark: SparkEngine) -> None:
    own = PipelineSession(spark.running())
    schema = arrow_schema(read_schema(json.loads(StructType.fromDDL(OF_EVERY_TYPE).json())))
    none = pa.unify_schemas([EVENT_SCHEMA, schema]).empty_table()
    assert own.unknown(none).schema == own.events(none).schema
    assert len(own.unknown(none).columns) == len(EVENT_SCHEMA) + len(schema)


async def test_a_null_without_a_type_arrives_in_a_column_of_any_type(
    prepared: Prepare, batch: MakeBatch, postgres: Postgres, sink_of: Make
) -> None:
    postgres.fetch("CREATE TABLE t (partition text, a int, score int, who uuid, tags text[])")
    sql = "SELECT partition, a, NULL AS score, NULL AS who, NULL AS tags FROM events"
    transform = await prepared(schema="a INT NOT NULL", sql=sql)
    sink = sink_of(table="t")
    await sink.prepare()
    await sink.check_columns(transform.columns)
    await (await sink.open(claim())).write(output(await transform.apply(batch("0", ['{"a": 7}']))), Open())
    assert postgres.fetch("SELECT * FROM t") == [("0", 7, None, None, None)]
