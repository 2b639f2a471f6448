"""Jobs that fail, hang, are not wanted any more, or lose their Spark."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.batch import Batch
from pipeline.errors import EngineUnavailable, PoisonEvent, TransformError
from pipeline.spark import SparkEngine, SparkTransform

Prepare = Callable[..., Awaitable[SparkTransform]]
MakeBatch = Callable[..., Batch]
Write = Callable[[str], str]

PER_KEY = """
    def transform(events):
        def looked_at(key):
            {body}
            return key
        return events.select("partition", "sequence", F.udf(looked_at, "string")("key").alias("key"))
"""


def keyed(keys: str) -> list[dict[str, Any]]:
    return [{"key": key} for key in keys]


async def until(condition: Callable[[], bool], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - other processes have no events to wait on
            await asyncio.sleep(0.05)


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


async def test_events_that_fail_only_together_are_told_as_their_smallest_range(
    prepared: Prepare, batch: MakeBatch
) -> None:
    sql = "SELECT partition, sum(CAST(key AS BIGINT)) AS total FROM events GROUP BY partition"
    large = str(2**62)
    events = [{"key": key} for key in ("1", large, "2", "3", large, "4")]
    with pytest.raises(PoisonEvent, match="4 events that fail only together") as caught:
        await (await prepared(sql=sql)).apply(batch("0", events))
    assert (caught.value.before, caught.value.sequence, caught.value.events) == (1, 1, 4)


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
    ],
)
async def test_wrong_sql_is_told_in_a_line_before_any_event_is_read(sql: str, words: str, prepared: Prepare) -> None:
    with pytest.raises(TransformError, match=words) as caught:
        await prepared(sql=sql)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("pipeline 'pipeline-0': ")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def transform(events): raise ValueError('not\\ntoday')", "ValueError: not$"),
        ("def transform(events): raise SystemExit(3)", "SystemExit: 3"),
        ("def transform(events): return 5", "returns a int, and no DataFrame"),
        ("transform = 5", "is no function"),
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
    await until(lambda: mark.exists() and bool(mark.read_text()), within_s=60)
    worker = psutil.Process(int(mark.read_text()))
    hung.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hung
    await until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, within_s=20)


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
    await until(started.exists, within_s=60)
    leaves.cancel()
    gate.touch()
    assert (await stays).column("key").to_pylist() == ["b"]
    assert leaves.cancelled()


async def test_a_dead_jvm_blames_nobody_and_the_next_batch_starts_another(
    spark: SparkEngine, prepared: Prepare, batch: MakeBatch, function: Write, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    hangs = await prepared(
        function=function(PER_KEY.format(body=f"open({str(started)!r}, 'w').close(); __import__('time').sleep(60)"))
    )
    passes = await prepared(sql="SELECT partition, key FROM events")
    hung = asyncio.create_task(hangs.apply(batch("0", keyed("a"))))
    await until(started.exists, within_s=60)
    process = spark.running().process
    assert process is not None
    process.kill()
    with pytest.raises(EngineUnavailable, match="the next batch starts another"):
        await hung
    assert (await passes.apply(batch("0", keyed("ab")))).column("key").to_pylist() == ["a", "b"]


PROGRAM = """
    import asyncio, os, signal, sys
    from datetime import UTC, datetime
    import pyarrow as pa
    from pipeline.batch import Batch
    from pipeline.errors import TransformError
    from pipeline.event import EVENT_SCHEMA, Page
    from pipeline.spark import SparkEngine

    ROW = {"partition": "0", "sequence": 1, "offset": "1", "enqueued_time": datetime(2026, 1, 1, tzinfo=UTC), "key": "a"}

    async def main():
        interrupted = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
        engine = SparkEngine(master="local[1]", driver_memory="512m")
        try:
            await engine.transform("wrong", sql="SELECT nosuch FROM events").prepare()
        except TransformError:
            pass
        transform = engine.transform("right", sql="SELECT partition, key FROM events")
        await transform.prepare()
        print("ready", flush=True)
        await interrupted.wait()
        batch = Batch("0", None, (Page(pa.Table.from_pylist([ROW], schema=EVENT_SCHEMA), "1"),), 0.0)
        print((await transform.apply(batch)).column("key").to_pylist(), flush=True)
        await transform.close()
        engine.stop()

    asyncio.run(main())
"""


START = """
    import asyncio

    from pipeline import spark, spark_jvm

    async def main():
        spark_jvm._quieten = lambda context: print("a session was made")
        engine = spark.SparkEngine(master="local[1]", driver_memory="512m")
        launched, told = asyncio.Event(), engine._launched
        processes, loop = [], asyncio.get_running_loop()

        def on_launch(process):
            processes.append(process)
            told(process)
            loop.call_soon_threadsafe(launched.set)

        engine._launched = on_launch
        transform = engine.transform("cancelled", sql="SELECT * FROM events")
        preparing = asyncio.create_task(transform.prepare())
        await launched.wait()
        preparing.cancel()
        await transform.close()
        print("its JVM is", "there" if processes[0].poll() is None else "gone")
        print("nobody waits" if preparing.cancelled() else "somebody waits")

    asyncio.run(main())
"""


def test_a_start_that_nobody_waits_for_any_more_is_not_finished(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(START))
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("its JVM is gone\nnobody waits\n", "")


def test_spark_says_nothing_and_outlives_a_terminals_interrupt_until_it_is_stopped(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "TMPDIR": str(tmp_path)},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            children = psutil.Process(process.pid).children(recursive=True)
            assert children
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (output, errors, process.returncode) == ("['a']\n", "", 0)
    deadline = time.monotonic() + 10
    while any(child.is_running() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [child for child in children if child.is_running()]
