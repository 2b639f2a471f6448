"""Spark that cannot start says why, and what a killed process leaves behind is removed by the next start."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from patience import PATIENCE_S, until_async
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark import jvm
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.jvm import text_of


@pytest.fixture(autouse=True)
def no_other_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one context. Other tests in this process may keep theirs, and get it back."""
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, None)
    for name in ("_instantiatedSession", "_activeSession"):
        monkeypatch.setattr(SparkSession, name, None)


@pytest.fixture
def closing_once() -> Iterator[int]:
    """The port of a listener that closes its first connection, as a master with TLS may, and never answers on others."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        closing = threading.Thread(target=lambda: listener.accept()[0].close())
        closing.start()
        yield listener.getsockname()[1]
        closing.join(PATIENCE_S)


def refusal(engine: SparkEngine) -> str:
    with pytest.raises(EngineUnavailable) as refused:
        engine.running()
    engine.stop()
    assert "\n" not in str(refused.value)
    return str(refused.value)


MEMORY = "`spark.driver_memory` (or `spark.driver.memory` in `spark.conf`) is"


@pytest.mark.parametrize(
    ("conf", "reason"),
    [
        ({"spark.driver.memory": "10m"}, f"Java heap space: {MEMORY} '10m': Spark needs at least 450m"),
        ({"spark.driver.memory": "10"}, f"Too small maximum heap: {MEMORY} '10'"),
        (
            {"spark.driver.extraJavaOptions": "garbage"},
            "Could not find or load main class garbage: look at `spark.conf`",
        ),
        (
            {"spark.driver.extraJavaOptions": "-XX:+UseZGC -XX:+UseSerialGC"},
            "Multiple garbage collectors selected: look at",
        ),
        ({"spark.driver.extraJavaOptions": "-Xmx1g"}, "Not allowed to specify max heap(Xmx) memory settings"),
        ({"spark.driver.extraJavaOptions": "-version"}, "openjdk version"),
        ({"spark.serializer": "nonsense.Class"}, "ClassNotFoundException: nonsense.Class: look at `spark.conf`"),
        ({"spark.local.dir": "/proc/nope"}, "Failed to create local dir in /proc/nope. "),
    ],
)
def test_a_jvm_that_cannot_start_gives_its_own_reason(conf: dict[str, str], reason: str) -> None:
    assert refusal(SparkEngine(master="local[1]", conf=conf)).startswith(f"Spark did not start: {reason}")


def test_too_little_memory_for_spark_itself_is_said_as_well() -> None:
    said = refusal(SparkEngine(master="local[1]", driver_memory="150m"))
    assert said.startswith("Spark did not start: Insufficient driver memory")
    assert f"{MEMORY} '150m'" in said


def test_a_master_that_does_not_register_us_is_given_up_with_its_address(
    closing_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm, "REGISTRATION_S", 2.0)
    said = refusal(SparkEngine(master=f"spark://127.0.0.1:{closing_once}", driver_memory="512m"))
    assert said.startswith(
        f"the Spark master at 'spark://127.0.0.1:{closing_once}' answers, but did not register this application"
        " within 2 s"
    )


@pytest.mark.parametrize("master", ["garbage", "local[x]"])
def test_a_master_of_no_kind_is_refused_with_its_setting(master: str) -> None:
    said = refusal(SparkEngine(master=master, driver_memory="512m"))
    assert said.endswith(
        f": `spark.master` is '{master}': write local[2], spark://HOST:PORT, k8s://ADDRESS or yarn, for example"
    )


def test_a_start_is_ended_before_its_jvm_has_answered() -> None:
    engine, launched = SparkEngine(master="local[1]", driver_memory="512m"), threading.Event()
    note = engine._launched

    def on_launch(process: subprocess.Popen[bytes]) -> None:
        note(process)
        launched.set()

    engine._launched = on_launch  # type: ignore[method-assign]
    engine.begin()
    assert launched.wait(PATIENCE_S)
    process = engine._starting
    assert process is not None
    engine.stop()
    assert process.poll() is not None
    with pytest.raises(EngineUnavailable, match="Spark is stopped"):
        engine.running()


async def test_the_text_of_a_java_error_never_raises_though_its_jvm_is_gone() -> None:
    engine = SparkEngine(master="local[1]", driver_memory="512m")
    try:
        running = await asyncio.to_thread(engine.running)
        with pytest.raises(PySparkException, match="nonsense") as raised:
            cast(Any, running.session.sparkContext)._jvm.java.lang.Integer.parseInt("nonsense")
        error = Py4JJavaError("An error occurred", cast(Any, raised.value)._origin)  # as before there is a session
        assert "nonsense" in (text_of(error) or "")
        process = running.process
        assert process is not None
        process.kill()
        await until_async(lambda: process.poll() is not None)
        assert text_of(error) is None
    finally:
        engine.stop()


HOST = """
    import sys, time
    from leasehold.pipeline.spark.engine import SparkEngine

    engine = SparkEngine(master="local[1]", driver_memory="512m")
    print(engine.running().scratch.path, flush=True)
    if sys.argv[1] == "waits":
        time.sleep(600)
    engine.stop()
"""


def test_what_a_killed_host_leaves_is_removed_by_the_next_start_and_nothing_in_use_is(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(HOST))

    def start(how: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(program), how],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )

    def scratch_of(process: subprocess.Popen[str]) -> Path:
        assert process.stdout is not None
        return Path(process.stdout.readline().strip())

    with start("waits") as killed, start("waits") as working:
        left, used = scratch_of(killed), scratch_of(working)
        assert left.is_dir()
        children = psutil.Process(killed.pid).children(recursive=True)
        killed.send_signal(signal.SIGKILL)
        killed.wait(PATIENCE_S)
        psutil.wait_procs(children, timeout=PATIENCE_S)
        with start("ends") as following:
            own = scratch_of(following)
            following.wait(PATIENCE_S)
        assert not left.exists()
        assert not own.exists()
        assert used.is_dir()
        working.kill()
        psutil.wait_procs(psutil.Process(working.pid).children(recursive=True), timeout=PATIENCE_S)
