"""Jobs that fail, hang, are not wanted any more, or lose their Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
from jobs import PER_KEY, MakeBatch, Prepare, Write, keyed
from patience import until_async

from leasehold.pipeline.errors import FailsTogether, PoisonEvent, TransformError
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.sql_text import SCHEMA_LEVELS_MAX

pytestmark = pytest.mark.xdist_group("spark-2")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("assert key != '!', 'mind the key'", "AssertionError: mind the key"),
        ("import os; key == '!' and os._exit(7)", r"Python worker exited unexpectedly \(crashed\)"),
    ],
    ids=["raises", "kills its worker"],
)
async def test_a_poison_event_is_named_with_its_source_and_costs_others_nothing(
    body: str, reason: str, prepared: Prepare, batch: MakeBatch, function: Write
) -> None:
    transform = await prepared(function=function(PER_KEY.format(body=body)))
    good, bad = await asyncio.gather(
        transform.apply(batch("0", keyed("abc"))),
        transform.apply(batch("1", keyed("ab!d"), first=10)),
        return_exceptions=True,
    )
    assert not isinstance(good, BaseException)
    assert good.column("key").to_pylist() == ["a", "b", "c"]
    assert isinstance(bad, PoisonEvent)
    assert (bad.before, bad.sequence, bad.events) == (2, 12, 1)
    with pytest.raises(
        PoisonEvent, match=rf"^partition '1', sequence 12 \(file transactions-1.csv, line 14\): {reason}:"
    ):
        raise bad


PRETENDING = [
    "OutOfMemoryError",
    "x\njava.lang.OutOfMemoryError: Java heap space",
    "x\nCaused by: java.lang.OutOfMemoryError: Java heap space",
    "Total size of serialized results of 2 tasks",
    "x\nTraceback (most recent call last):\nImportError: y",
]


async def test_an_event_that_pretends_to_be_an_error_of_spark_is_poison(
    spark: SparkEngine, prepared: Prepare, batch: MakeBatch, function: Write
) -> None:
    cast = await prepared(sql="SELECT partition, sequence, CAST(key AS INT) AS n FROM events")
    raises = await prepared(function=function(PER_KEY.format(body="if key != '1': raise ValueError(key)")))
    running = spark.running()
    for transform in (cast, raises):
        for key in PRETENDING:
            with pytest.raises(PoisonEvent) as caught:
                await transform.apply(batch("0", [{"key": "1"}, {"key": key}]))
            assert caught.value.before == 1
    assert spark.running() is running


async def test_events_that_fail_only_together_are_told_where_to_be_cut(prepared: Prepare, batch: MakeBatch) -> None:
    sql = "SELECT partition, sum(CAST(key AS BIGINT)) AS total FROM events GROUP BY partition"
    large = str(2**62)
    events = [{"key": key} for key in ("1", large, "2", "3", large, "4")]
    with pytest.raises(FailsTogether, match="6 events that fail only together") as caught:
        await (await prepared(sql=sql)).apply(batch("0", events))
    assert caught.value.cut == 3


async def test_ansi_mode_stays_on(prepared: Prepare, batch: MakeBatch) -> None:
    transform = await prepared(sql="SELECT partition, CAST(key AS INT) AS n FROM events")
    with pytest.raises(PoisonEvent, match="The value 'x' of the type"):
        await transform.apply(batch("0", keyed("1x")))


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELEC partition", "Syntax error at or near 'SELEC'"),
        ("SELECT partition, nosuch FROM events", "`nosuch` cannot be resolved"),
        ("SELECT partition, key, key FROM events", "several columns `key`"),
        pytest.param(f"SELECT partition, {'(' * 5000}1{')' * 5000} AS n FROM events", "`sql` must nest", id="brackets"),
        pytest.param(
            f"SELECT partition, {'+'.join(['sequence'] * 1000)} AS n FROM events",
            "nests too deeply, or chains",
            id="chain",
        ),
    ],
)
async def test_wrong_sql_is_told_in_a_line_before_any_event_is_read(sql: str, words: str, prepared: Prepare) -> None:
    with pytest.raises(TransformError, match=words) as caught:
        await prepared(sql=sql)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("pipeline 'pipeline-0': ")


@pytest.mark.parametrize("kind", ["STRUCT<a: {}>", "ARRAY<{}>", "MAP<STRING, {}>"])
async def test_a_schema_nests_as_deep_as_it_may_and_no_deeper(kind: str, prepared: Prepare) -> None:
    def nested(levels: int) -> str:
        ddl = "INT"
        for _ in range(levels):
            ddl = kind.format(ddl)
        return f"value {ddl}"

    transform = await prepared(schema=nested(SCHEMA_LEVELS_MAX))
    assert "value" in transform.description
    with pytest.raises(TransformError, match="'pipeline-1': `schema` must nest <> at most 32 levels deep"):
        await prepared(schema=nested(SCHEMA_LEVELS_MAX + 1))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def transform(events): raise ValueError('not\\ntoday')", "ValueError: not$"),
        ("def transform(events): raise SystemExit(3)", "SystemExit: 3"),
        ("def transform(events): return 5", "returned int, not a DataFrame"),
        ("transform = 5", "is not a function"),
    ],
)
async def test_a_wrong_function_is_told_in_a_line(body: str, words: str, prepared: Prepare, function: Write) -> None:
    with pytest.raises(TransformError, match=words):
        await prepared(function=function(body))


async def test_a_module_that_workers_lack_is_the_transforms_fault_and_no_poison(
    prepared: Prepare, batch: MakeBatch, function: Write
) -> None:
    transform = await prepared(function=function(PER_KEY.format(body="import nosuchmodule")))
    with pytest.raises(TransformError, match="No module named 'nosuchmodule'"):
        await transform.apply(batch("0", keyed("abc")))


async def test_rows_that_a_function_moves_to_another_partition_are_refused(
    prepared: Prepare, batch: MakeBatch, function: Write
) -> None:
    moves = """
        import pyarrow as pa

        def transform(events):
            def moved(batches):
                for batch in batches:
                    yield pa.RecordBatch.from_arrays([pa.array(["9"] * batch.num_rows)], ["partition"])
            return events.select("partition").mapInArrow(moved, "partition string")
    """
    transform = await prepared(function=function(moves))
    with pytest.raises(TransformError, match="rows of partition '9'"):
        await transform.apply(batch("0", keyed("abc")))


async def test_output_beyond_the_cap_is_refused_in_words(prepared: Prepare, batch: MakeBatch) -> None:
    transform = await prepared(sql="SELECT partition, repeat(key, 1000000) AS k FROM events")
    assert (await transform.apply(batch("0", keyed("a")))).num_rows == 1
    with pytest.raises(TransformError, match=r"the output of one batch is too large .* make batches smaller"):
        await transform.apply(batch("0", keyed("a" * 30)))


async def test_a_hung_function_dies_with_its_caller_python_workers_and_all(
    prepared: Prepare, batch: MakeBatch, function: Write, tmp_path: Path
) -> None:
    mark = tmp_path / "worker"
    body = f"open({str(mark)!r}, 'w').write(str(__import__('os').getpid()))\n            while True: pass"
    transform = await prepared(function=function(PER_KEY.format(body=body)))
    hung = asyncio.create_task(transform.apply(batch("0", keyed("a"))))
    await until_async(lambda: mark.exists() and bool(mark.read_text()))
    worker = psutil.Process(int(mark.read_text()))
    hung.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hung
    await until_async(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


async def test_a_job_of_two_goes_on_when_one_is_not_wanted_any_more(
    prepared: Prepare, batch: MakeBatch, function: Write, tmp_path: Path
) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    body = f"""import os, time
            open({str(started)!r}, 'w').close()
            while not os.path.exists({str(gate)!r}): time.sleep(0.01)"""
    transform = await prepared(function=function(PER_KEY.format(body=body)))
    leaves = asyncio.create_task(transform.apply(batch("0", keyed("a"))))
    stays = asyncio.create_task(transform.apply(batch("1", keyed("b"))))
    await until_async(started.exists)
    leaves.cancel()
    gate.touch()
    assert (await stays).column("key").to_pylist() == ["b"]
    assert leaves.cancelled()
