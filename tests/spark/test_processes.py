"""Spark's processes: how they start, what a signal does to them, and what remains when one of them dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from jobs import PER_KEY, SECRET, SECRET_VALUE, MakeBatch, Prepare, Write, keyed
from patience import PATIENCE_S, until, until_async

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark.connect import connect
from leasehold.pipeline.spark.engine import SparkEngine


async def test_a_dead_jvm_blames_nobody_and_the_next_batch_starts_another(
    spark: SparkEngine, prepared: Prepare, batch: MakeBatch, function: Write, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    hangs = await prepared(
        function=function(PER_KEY.format(body=f"open({str(started)!r}, 'w').close(); __import__('time').sleep(60)"))
    )
    passes = await prepared(sql="SELECT partition, key FROM events")
    hung = asyncio.create_task(hangs.apply(batch("0", keyed("a"))))
    await until_async(started.exists)
    process = spark.running().process
    assert process is not None
    process.kill()
    with pytest.raises(EngineUnavailable, match="the next batch starts another"):
        await hung
    assert (await passes.apply(batch("0", keyed("ab")))).column("key").to_pylist() == ["a", "b"]


def test_a_connect_server_without_its_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)  # as where it is not installed
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # which PySpark sets, and processes of other tests inherit
    monkeypatch.setattr(sys, "ps1", "", raising=False)  # or pyspark takes a worker of tests for its own doctests
    with pytest.raises(
        EngineUnavailable, match=r"'sc://spark' cannot be used: .*: pip install 'pyspark\[connect\]==[\d.]+'$"
    ):
        connect("sc://spark")


def test_a_setting_reaches_spark_and_no_process_list(spark: SparkEngine) -> None:
    running = spark.running()
    assert running.process is not None
    assert running.session.sparkContext._jsc.hadoopConfiguration().get(SECRET) == SECRET_VALUE
    arguments = " ".join(psutil.Process(running.process.pid).cmdline())
    assert "spark.driver.maxResultSize" in arguments
    assert SECRET_VALUE not in arguments


PROGRAM = """
    import asyncio, os, signal, sys
    from datetime import UTC, datetime
    import pyarrow as pa
    from leasehold.pipeline.batch import Batch
    from leasehold.pipeline.errors import TransformError
    from leasehold.pipeline.event import EVENT_SCHEMA, Page
    from leasehold.pipeline.spark.engine import SparkEngine
    from leasehold.pipeline.spark.transform import SparkTransform

    ROW = {"partition": "0", "sequence": 1, "offset": "1", "enqueued_time": datetime(2026, 1, 1, tzinfo=UTC), "key": "a"}

    async def main():
        interrupted = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
        engine = SparkEngine(master="local[1]", driver_memory="512m")
        try:
            await SparkTransform(engine, "wrong", sql="SELECT nosuch FROM events").prepare()
        except TransformError:
            pass
        transform = SparkTransform(engine, "right", sql="SELECT partition, key FROM events")
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

    from leasehold.pipeline.spark import engine as spark
    from leasehold.pipeline.spark import jvm as spark_jvm
    from leasehold.pipeline.spark.transform import SparkTransform

    async def main():
        spark_jvm.quieten = lambda context: print("a session was made")
        engine = spark.SparkEngine(master="local[1]", driver_memory="512m")
        launched, told = asyncio.Event(), engine._launched
        processes, loop = [], asyncio.get_running_loop()

        def on_launch(process):
            processes.append(process)
            told(process)
            loop.call_soon_threadsafe(launched.set)

        engine._launched = on_launch
        transform = SparkTransform(engine, "cancelled", sql="SELECT * FROM events")
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
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True
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
            output, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (output, errors, process.returncode) == ("['a']\n", "", 0)
    until(lambda: not any(child.is_running() for child in children), "its children are gone")
