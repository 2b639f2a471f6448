"""The strict parse before Spark: every type arrives as it is, and poison is found whatever a query looks at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.errors import PoisonEvent
from leasehold.pipeline.spark.transform import SparkTransform

pytestmark = pytest.mark.xdist_group("spark-1")

Prepare = Callable[..., Awaitable[SparkTransform]]
MakeBatch = Callable[..., Batch]

EVERY_TYPE = (
    "amount DECIMAL(18,2) NOT NULL, i INT, l BIGINT, b BOOLEAN, d DATE, t TIMESTAMP, n TIMESTAMP_NTZ, f DOUBLE,"
    " g FLOAT, s STRING, o STRUCT<a: INT NOT NULL, d: DECIMAL(10,2)>, ls ARRAY<STRUCT<q: INT NOT NULL, p: DECIMAL(5,1)>>,"
    " m MAP<STRING, INT>"
)
BODY = """
    {"amount": "1.20", "i": 7, "l": 9223372036854775807, "b": "true", "d": "2026-01-31", "t": "2026-01-31T11:00:00+01:00",
     "n": "2026-01-31T10:00:00", "f": 1.5, "g": 0.5, "s": "\\ud83d\\ude00", "o": {"a": 1, "d": 1.25},
     "ls": [{"q": 1, "p": 1.5}], "m": {"k": 1}}
"""
NOON = datetime(2026, 1, 31, 10, tzinfo=UTC)


async def test_every_type_goes_through_spark_as_it_is(prepared: Prepare, batch: MakeBatch) -> None:
    transform = await prepared(schema=EVERY_TYPE)
    output = (await transform.apply(batch("0", [BODY, '{"amount": 0}']))).drop_columns(
        ["partition", "sequence", "offset", "enqueued_time", "key", "body", "properties", "operation"]
    )
    full, bare = output.to_pylist()
    assert full == {
        "amount": Decimal("1.20"),
        "i": 7,
        "l": 2**63 - 1,
        "b": True,
        "d": date(2026, 1, 31),
        "t": NOON,
        "n": NOON.replace(tzinfo=None),
        "f": 1.5,
        "g": 0.5,
        "s": "\U0001f600",
        "o": {"a": 1, "d": Decimal("1.25")},
        "ls": [{"q": 1, "p": Decimal("1.5")}],
        "m": [("k", 1)],
    }
    assert bare == dict.fromkeys(full) | {"amount": Decimal("0.00")}


READS_LITTLE = (
    "SELECT partition, k FROM events WHERE k = 'x'",
    "SELECT partition, a FROM events WHERE a > 5 AND k IS NOT NULL",
    "SELECT partition, count(*) AS n FROM events GROUP BY partition",
    "SELECT partition, k FROM events JOIN (VALUES ('x', 1)) AS v (kk, r) ON k = kk",
    "SELECT e.partition FROM events e WHERE EXISTS (SELECT 1 FROM events f WHERE f.partition = e.partition AND f.k = e.k)",
    "SELECT partition, sequence FROM events WHERE sequence < 0",
)


@pytest.mark.parametrize("sql", READS_LITTLE)
async def test_poison_is_found_whatever_the_query_looks_at(sql: str, prepared: Prepare, batch: MakeBatch) -> None:
    """Neither pruned columns nor the query's own conditions hide it."""
    transform = await prepared(schema="a INT, b DECIMAL(10,2), k STRING", sql=sql)
    bodies: Sequence[str] = ('{"k": "x"}', '{"k": "y", "b": 1.239}', '{"k": "x"}')
    with pytest.raises(PoisonEvent, match=r"column 'b' does not fit DECIMAL\(10,2\): '1\.239'") as caught:
        await transform.apply(batch("0", bodies))
    assert caught.value.before == 1
    with pytest.raises(PoisonEvent, match="the body is not one JSON object: 'gibberish'"):
        await transform.apply(batch("0", ["{}", "gibberish"]))
