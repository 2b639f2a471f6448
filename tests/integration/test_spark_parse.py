"""The strict parse, as Spark carries it out: an event becomes exactly what its body says, or is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pipeline.batch import Batch
from pipeline.errors import PoisonEvent
from pipeline.event import EVENT_SCHEMA
from pipeline.parse import Reasons, strict_parse
from pipeline.schema import read_schema
from pipeline.spark import SparkEngine, SparkTransform

Prepare = Callable[..., Awaitable[SparkTransform]]
MakeBatch = Callable[..., Batch]

SCALARS = "amount DECIMAL(18,2), i INT, l BIGINT, b BOOLEAN, d DATE, t TIMESTAMP, n TIMESTAMP_NTZ, f DOUBLE, g FLOAT, s STRING"
NESTED = (
    "o STRUCT<a: INT NOT NULL, d: DECIMAL(10,2), s: STRING>, l ARRAY<DECIMAL(10,2)>, m MAP<STRING, INT>,"
    " ls ARRAY<STRUCT<q: INT NOT NULL, p: DECIMAL(5,1), t: ARRAY<TIMESTAMP>>>"
)
NOON = datetime(2026, 1, 31, 10, tzinfo=UTC)

GOOD: dict[str, dict[str, Any]] = {
    '{"amount": 1.20}': {"amount": Decimal("1.20")},
    '{"amount": 1.2}': {"amount": Decimal("1.20")},
    '{"amount": "1.20"}': {"amount": Decimal("1.20")},
    '{"amount": "1.2000"}': {"amount": Decimal("1.20")},
    '{"amount": "-5.5"}': {"amount": Decimal("-5.50")},
    '{"amount": 5}': {"amount": Decimal("5.00")},
    '{"amount": 1234567890123456.78}': {"amount": Decimal("1234567890123456.78")},
    '{"amount": null}': {},
    "{}": {},
    '  {"i": 7} ': {"i": 7},
    '{"i": "7", "unknown": [1.5, {"x": null}]}': {"i": 7},
    '{"l": 9223372036854775807}': {"l": 2**63 - 1},
    '{"b": true}': {"b": True},
    '{"b": "false"}': {"b": False},
    '{"d": "2026-01-31"}': {"d": date(2026, 1, 31)},
    '{"d": "0001-01-01"}': {"d": date(1, 1, 1)},
    '{"d": "9999-12-31"}': {"d": date(9999, 12, 31)},
    '{"t": "2026-01-31T10:00:00Z"}': {"t": NOON},
    '{"t": "2026-01-31 10:00"}': {"t": NOON},
    '{"t": "2026-01-31T15:30:00+0530"}': {"t": NOON},
    '{"t": "2026-01-31T10:00:00.123456Z"}': {"t": NOON.replace(microsecond=123456)},
    '{"t": "2026-01-31T10:00:00.123456000Z"}': {"t": NOON.replace(microsecond=123456)},
    '{"n": "2026-01-31T10:00:00"}': {"n": NOON.replace(tzinfo=None)},
    '{"f": 1.5}': {"f": 1.5},
    '{"f": 1e308}': {"f": 1e308},
    '{"s": "x\\ny"}': {"s": "x\ny"},
    '{"s": "1.20"}': {"s": "1.20"},
    '{"s": "{}"}': {"s": "{}"},
    '{"s": 5}': {"s": "5"},
    '{"s": true}': {"s": "true"},
    '{"s": "\\ud83d\\ude00"}': {"s": "\U0001f600"},
}
BAD: dict[str | bytes, str] = {
    '{"amount": 1.239}': "column 'amount' does not fit DECIMAL(18,2): '1.239'",
    '{"amount": "1.239"}': "column 'amount' does not fit DECIMAL(18,2): '1.239'",
    '{"amount": 1.2300000000000000000001}': "column 'amount' does not fit DECIMAL(18,2): '1.2300000000000000000001'",
    '{"amount": 12345678901234567.8}': "column 'amount' does not fit DECIMAL(18,2): '12345678901234567.8'",
    '{"amount": 1e400}': "column 'amount' does not fit DECIMAL(18,2): 'Infinity' (written with an exponent",
    '{"amount": 1.23e0}': "column 'amount' does not fit DECIMAL(18,2): '1.23' (written with an exponent",
    f'{{"amount": {"1" * 40}}}': "column 'amount' does not fit DECIMAL(18,2): '1.1111111111111112E39'",
    f'{{"amount": "{"1" * 40}"}}': f"column 'amount' does not fit DECIMAL(18,2): '{'1' * 40}'",
    '{"amount": "abc"}': "column 'amount' does not fit DECIMAL(18,2): 'abc'",
    '{"amount": "1,234"}': "column 'amount' does not fit DECIMAL(18,2): '1,234'",
    '{"amount": ""}': "column 'amount' does not fit DECIMAL(18,2): ''",
    '{"amount": true}': "column 'amount' does not fit DECIMAL(18,2): 'true'",
    '{"amount": {"x": 1}}': "column 'amount' does not fit DECIMAL(18,2): '{\"x\":1}'",
    '{"i": 1.5}': "column 'i' does not fit INT: '1.5'",
    '{"i": 2147483648}': "column 'i' does not fit INT: '2147483648'",
    '{"i": true}': "column 'i' does not fit INT: 'true'",
    '{"l": 9223372036854775808}': "column 'l' does not fit BIGINT: '9223372036854775808'",
    '{"b": "yes"}': "column 'b' does not fit BOOLEAN: 'yes'",
    '{"b": 1}': "column 'b' does not fit BOOLEAN: '1'",
    '{"d": "2026-02-30"}': "column 'd' does not fit DATE: '2026-02-30'",
    '{"d": "2026-01-31T10:00:00"}': "column 'd' does not fit DATE: '2026-01-31T10:00:00'",
    '{"d": "0000-01-01"}': "column 'd' does not fit DATE: '0000-01-01'",
    '{"d": "a\\nb"}': "column 'd' does not fit DATE: 'a b'",
    '{"t": "T10:00"}': "column 't' does not fit TIMESTAMP: 'T10:00'",
    '{"t": 1700000000}': "column 't' does not fit TIMESTAMP: '1700000000'",
    '{"t": "2026-01-31T25:00:00Z"}': "column 't' does not fit TIMESTAMP: '2026-01-31T25:00:00Z'",
    '{"t": "2026-01-31T10:00:00.1234567Z"}': "column 't' does not fit TIMESTAMP: '2026-01-31T10:00:00.1234567Z'",
    '{"t": "9999-12-31T23:59:59-05:00"}': "column 't' does not fit TIMESTAMP: '9999-12-31T23:59:59-05:00'",
    '{"t": "0000-01-01T00:00:00Z"}': "column 't' does not fit TIMESTAMP: '0000-01-01T00:00:00Z'",
    '{"n": "2026-01-31T10:00:00Z"}': "column 'n' does not fit TIMESTAMP_NTZ: '2026-01-31T10:00:00Z'",
    '{"f": 1e400}': "column 'f' does not fit DOUBLE: '\"Infinity\"'",
    '{"f": "NaN"}': "column 'f' does not fit DOUBLE: 'NaN'",
    '{"g": 1e39}': "column 'g' does not fit FLOAT: '1.0E39'",
    '{"s": 1.20}': "column 's' does not fit STRING: '1.2'",
    '{"s": {"a": 1}}': "column 's' does not fit STRING: '{\"a\":1}'",
    '{"s": "\\ud800"}': "the body escapes half a character",
    b"\xff{}": "the body is not UTF-8",
    "": "the body is not one JSON object: ''",
    "null": "the body is not one JSON object: 'null'",
    "5": "the body is not one JSON object: '5'",
    "[{}]": "the body is not one JSON object: '[{}]'",
    "{} x": "the body is not one JSON object: '{} x'",
    "{}{}": "the body is not one JSON object: '{}{}'",
    "{'i': 1}": "the body is not one JSON object: '{'i': 1}'",
    '{"f": NaN}': "the body is not one JSON object: '{\"f\": NaN}'",
    "[" * 5000: "the body is not one JSON object: '" + "[" * 80 + "'",
}
GOOD_NESTED: dict[str, dict[str, Any]] = {
    "{}": {},
    '{"o": {"a": 1, "d": 1.25, "s": "x"}}': {"o": {"a": 1, "d": Decimal("1.25"), "s": "x"}},
    '{"o": null, "l": [1, "2.50", null, 3.1]}': {"l": [Decimal("1.00"), Decimal("2.50"), None, Decimal("3.10")]},
    '{"m": {"k": 1, "z": null}}': {"m": [("k", 1), ("z", None)]},
    '{"ls": [{"q": 1, "p": 1.5, "t": ["2026-01-31T10:00:00Z"]}, null]}': {
        "ls": [{"q": 1, "p": Decimal("1.5"), "t": [NOON]}, None]
    },
}
BAD_NESTED: dict[str | bytes, str] = {
    '{"o": {"d": 1}}': "column 'o.a' is missing or null",
    '{"o": {"a": 1, "d": 1.239}}': "column 'o.d' does not fit DECIMAL(10,2): '1.239'",
    '{"o": {"a": 1, "d": 1e2}}': "column 'o.d' does not fit DECIMAL(10,2): '100.0' (written with an exponent",
    '{"o": {"a": 1.5}}': "column 'o.a' does not fit INT: '1.5'",
    '{"o": {"a": 1, "s": 1.5}}': "column 'o.s' does not fit STRING: '1.5'",
    '{"o": 5}': "column 'o' does not fit STRUCT: '5'",
    '{"o": [1]}': "column 'o' does not fit STRUCT: '[1]'",
    '{"l": [1, 1.239]}': "column 'l[]' does not fit DECIMAL(10,2): '1.239'",
    '{"l": {"a": 1}}': "column 'l' does not fit ARRAY: '{\"a\":1}'",
    '{"m": {"k": 1.5}}': "column 'm{}' does not fit INT: '1.5'",
    '{"m": [1]}': "column 'm' does not fit MAP: '[1]'",
    '{"ls": [{"q": null}]}': "column 'ls[].q' is missing or null",
    '{"ls": [{"q": 1, "p": 1.55}]}': "column 'ls[].p' does not fit DECIMAL(5,1): '1.55'",
    '{"ls": [{"q": 1, "t": ["2026-01-31T10:00:00Z", "x"]}]}': "column 'ls[].t[]' does not fit TIMESTAMP: 'x'",
    '{"ls": [1]}': "the body does not fit the schema",
}


@pytest.mark.parametrize(("schema", "good"), [(SCALARS, GOOD), (NESTED, GOOD_NESTED)])
async def test_what_fits_becomes_exactly_what_it_says(
    schema: str, good: dict[str, dict[str, Any]], prepared: Prepare, batch: MakeBatch
) -> None:
    output = await (await prepared(schema=schema)).apply(batch("0", list(good)))
    for body, found, expected in zip(
        good, output.drop_columns(EVENT_SCHEMA.names).to_pylist(), good.values(), strict=True
    ):
        assert {name: value for name, value in found.items() if value is not None} == expected, body


@pytest.mark.parametrize(
    ("schema", "good", "bad"), [(SCALARS, GOOD, BAD), (NESTED, GOOD_NESTED, BAD_NESTED)], ids=["scalars", "nested"]
)
def test_what_does_not_fit_is_refused_with_column_and_value(
    schema: str,
    good: dict[str, dict[str, Any]],
    bad: dict[str | bytes, str],
    spark: SparkEngine,
    batch: MakeBatch,
) -> None:
    """And the conditions without words, which jobs test, agree with the words."""
    session = spark.running().session.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    columns = read_schema(json.loads(StructType.fromDDL(schema).json()))
    parse, terse = strict_parse(columns), Reasons(columns, words=False)
    fits = " AND ".join(f"({each}) IS NULL" for each in (terse.of_body(), *terse.of_columns()))
    events = session.createDataFrame(batch("0", [*good, *bad]).table).selectExpr(*parse.raw).selectExpr(*parse.typed)
    found = events.selectExpr(parse.reason, f"{fits} AS fits").toArrow().to_pylist()
    for body, row, reason in zip([*good, *bad], found, [None] * len(good) + list(bad.values()), strict=True):
        assert row["fits"] == (reason is None), body
        assert row["reason"] is None if reason is None else row["reason"].startswith(reason), (body, row["reason"])


@pytest.mark.parametrize("body", [None, "{}", '{"a": null}'])
async def test_a_missing_field_is_poison_only_where_it_must_not_be_null(
    body: str | None, prepared: Prepare, batch: MakeBatch
) -> None:
    output = await (await prepared(schema="a INT, b STRING")).apply(batch("0", [body]))
    assert output.select(["a", "b"]).to_pylist() == [{"a": None, "b": None}]
    reason = "the body is null" if body is None else "column 'a' is missing or null"
    with pytest.raises(PoisonEvent, match=reason):
        await (await prepared(schema="a INT NOT NULL, b STRING")).apply(batch("0", [body]))


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
