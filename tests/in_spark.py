"""One of everything that transforms do in Spark, a line of JSON for what came out otherwise: python in_spark.py

Run where Spark has less than it came with: in the image, and in tests with the image's jars.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import orc, parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, lit, pandas_udf, udf
from pyspark.sql.functions import sum as sum_of

from leasehold.pipeline.spark.jvm import start_jvm
from leasehold.pipeline.spark.master import defaults

VALUES = {
    "sum(id) FROM range(10)": 45,
    "from_json('{\"a\": 1.25}', 'a DECIMAL(20,2)').a": "1.25",
    "to_json(struct(1 AS a, array('x') AS b))": '{"a":1,"b":["x"]}',
    "from_csv('1,x', 'a INT, b STRING').b": "x",
    "schema_of_json('{\"a\": 1}')": "STRUCT<a: BIGINT>",
    "count(*) FROM range(4) a JOIN range(2, 9) b USING (id)": 2,
    "count(*) FROM range(4) a LEFT ANTI JOIN range(2, 9) b USING (id)": 2,
    "max(n) FROM (SELECT row_number() OVER (PARTITION BY id % 2 ORDER BY id) AS n FROM range(9))": 5,
    "count(DISTINCT id % 3) FROM range(9)": 3,
    "approx_count_distinct(id) FROM range(3)": 3,
    "percentile_approx(id, 0.5) FROM range(9)": 4,
    "histogram_numeric(id, 2)[0].y FROM range(2)": 1.0,
    "corr(id, id) FROM range(3)": 1.0,
    "sum(id) FROM range(4) GROUP BY ROLLUP (id % 2) HAVING grouping_id() = 1": 6,
    "sum(v) FROM (SELECT explode(array(1, 2)) AS v)": 3,
    "size(collect_list(x)) FROM VALUES (1), (2) AS t(x)": 2,
    "x FROM (SELECT * FROM VALUES (1, 2), (1, 4) AS t(a, b)) PIVOT (sum(b) FOR a IN (1 AS x))": 6,
    "aggregate(transform(array(1, 2), x -> x * 2), 0, (a, x) -> a + x)": 6,
    "regexp_extract('account-7', '-(\\\\d)', 1)": "7",
    "'é' COLLATE UNICODE_CI = 'É' COLLATE UNICODE_CI": True,
    "date_format(TIMESTAMP '2026-01-31 12:00:00', 'EEEE')": "Saturday",
    "from_utc_timestamp(TIMESTAMP '2026-07-01 12:00:00', 'Europe/Berlin') = TIMESTAMP '2026-07-01 14:00:00'": True,
    "sha2('a', 256) = sha2('b', 256)": False,
    "cast(aes_decrypt(aes_encrypt('a', '0123456789abcdef'), '0123456789abcdef') AS STRING)": "a",
    "variant_get(parse_json('{\"a\": 3}'), '$.a', 'int')": 3,
    "xpath_int('<a><b>1</b></a>', 'a/b')": 1,
    "try_divide(1, 0) IS NULL": True,
    "hll_sketch_estimate(hll_sketch_agg(id)) FROM range(3)": 3,
    "bitmap_count(bitmap_construct_agg(bitmap_bit_position(id))) FROM range(1, 4)": 3,
    "uuid() <> uuid()": True,
}
"""SELECT ... -> what comes out."""


def plus_one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc

    for batch in batches:
        yield pa.RecordBatch.from_arrays([pc.add(batch.column("id"), 1)], names=["id"])


def total(frame: DataFrame) -> object:
    return frame.agg(sum_of("id")).toArrow().column(0)[0].as_py()


def read(session: SparkSession, kind: str) -> object:
    """Only read: to write, Hadoop calls `chmod`, which the image can do without."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/numbers"
        WRITERS[kind](file)
        return total(session.read.format(kind).schema("id LONG").load(file))


NUMBERS = pa.table({"id": [1, 2, 3, 4]})
WRITERS: dict[str, Callable[[str], object]] = {
    "parquet": lambda file: parquet.write_table(NUMBERS, file),
    "orc": lambda file: orc.write_table(NUMBERS, file),
    "csv": lambda file: Path(file).write_text("1\n2\n3\n4\n", encoding="utf-8"),
    "json": lambda file: Path(file).write_text('{"id": 1}\n{"id": 9}\n', encoding="utf-8"),
}


def pandas_sum(session: SparkSession) -> object:
    frame = session.range(4).groupBy(lit(None)).applyInPandas(lambda rows: rows[["id"]] + 1, "id long")
    return total(frame)


PYTHON: dict[str, Callable[[SparkSession], object]] = {
    "udf": lambda session: total(session.range(4).select(udf(lambda n: n + 1, "long")("id").alias("id"))),
    "pandas_udf": lambda session: total(session.range(4).select(pandas_udf(lambda n: n + 1, "long")("id").alias("id"))),
    "mapInArrow": lambda session: total(session.range(4).mapInArrow(plus_one, "id long")),
    "applyInPandas": pandas_sum,
    "createDataFrame": lambda session: total(session.createDataFrame(pa.table({"id": [1, 2, 3, 4]}))),
    "a shuffle": lambda session: total(session.range(1000).repartition(8, "id").sort("id").limit(5)),
    "a broadcast": lambda session: total(session.range(5).join(broadcast(session.range(5)), "id")),
    **{kind: (lambda session, kind=kind: read(session, kind)) for kind in WRITERS},
}


def outcomes(session: SparkSession) -> Iterator[tuple[str, object, object]]:
    """What was done, what came out, and what was to."""
    for text, expected in VALUES.items():
        yield text, _value(lambda text=text: session.sql(f"SELECT {text}").toArrow().column(0)[0].as_py()), expected
    for name, work in PYTHON.items():
        yield name, _value(lambda work=work: work(session)), 10


def _value(work: Callable[[], Any]) -> object:
    try:
        value = work()
    except Exception as error:  # whatever it is, it is what is looked for
        return f"{type(error).__name__}: {str(error)[:300]}"
    return value if isinstance(value, bool | int | float | str) else str(value)


def main() -> None:
    running = start_jvm(defaults("local[2]", "512m", 1 << 24), lambda process: None)
    count = 0
    try:
        for what, found, expected in outcomes(running.session):
            count += 1
            if found != expected:
                sys.stdout.write(json.dumps([what, found, expected]) + "\n")
    finally:
        running.stop()
    sys.stdout.write(f"{count} done\n")


if __name__ == "__main__":
    main()
