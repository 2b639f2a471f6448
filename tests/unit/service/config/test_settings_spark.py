"""Spark begins before all else of a host is imported, and only for whoever needs it."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from patience import PATIENCE_S

from leasehold import ConfigurationError, FilesSink, LogFeed, Pipeline
from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark import jvm
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.service.config.load import parse
from leasehold.service.config.settings import Settings

PLAIN = {
    "name": "letters",
    "feed": {"type": "files", "path": "words-*.jsonl"},
    "sink": {"type": "files", "path": "out", "format": "jsonl"},
}


RUNNING = SparkEngine._run


class Started(Exception):
    """Instead of a JVM."""


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    started = threading.Event()

    def running(engine: SparkEngine) -> None:
        started.set()
        raise Started

    monkeypatch.setattr(SparkEngine, "_run", running)
    return started


def settings_of(**transform: str) -> Settings:
    return parse(yaml.safe_dump({"pipelines": [{**PLAIN, **transform}]}), {}, folder=Path("/"))


@pytest.mark.parametrize(
    "transform", [{"sql": "SELECT partition FROM events"}, {"function": "a:b"}, {"schema": "a INT"}]
)
def test_spark_begins_at_once_where_a_transform_needs_it(starts: threading.Event, transform: dict[str, str]) -> None:
    with settings_of(**transform).starting_spark():
        assert starts.wait(PATIENCE_S)


def test_without_a_transform_it_does_not_begin(starts: threading.Event) -> None:
    with settings_of().starting_spark():
        pass
    assert not starts.is_set()


def test_a_start_that_fails_behind_it_leaves_no_spark(starts: threading.Event) -> None:
    with pytest.raises(LookupError), settings_of(schema="a INT").starting_spark() as engine:
        raise LookupError
    with pytest.raises(EngineUnavailable, match="Spark is stopped"):
        RUNNING(engine)


EARLY = """
import sys
from leasehold.service.cli.common import settings_of
import leasehold.pipeline.spark.connect, leasehold.pipeline.spark.engine, leasehold.pipeline.spark.jvm
print(*(name for name in ("fastapi", "psycopg", "aiohttp", "pandas") if name in sys.modules))
"""


def test_neither_the_api_nor_a_connector_is_imported_before_it() -> None:
    ran = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert ran.stdout == "\n", ran.stdout


class Refusing:
    """Instead of starting JVMs: each start waits until it may fail, with its number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_fail = threading.Event()
        self.count = 0
        monkeypatch.setattr(jvm, "start_jvm", self._start)

    def _start(self, *_: object) -> None:
        self.count += 1
        assert self.may_fail.wait(PATIENCE_S)
        raise EngineUnavailable(f"no master (start {self.count})")


class Door:
    """A lock that says when a thread has come to it."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.arrived.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def failure(engine: SparkEngine) -> str:
    with pytest.raises(EngineUnavailable) as failed:
        engine.running()
    return str(failed.value)


def test_a_start_in_the_background_that_fails_is_not_tried_by_each_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, engine = Refusing(monkeypatch), SparkEngine()
    starts.may_fail.set()
    engine.begin()
    assert [failure(engine) for _ in range(3)] == ["no master (start 1)"] * 3
    engine.stop()


def test_who_waits_for_a_start_shares_its_failure_and_who_comes_later_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts, engine, door = Refusing(monkeypatch), SparkEngine(), Door()
    monkeypatch.setattr(engine, "_lock", door)
    with ThreadPoolExecutor(3) as threads:
        failures = [threads.submit(failure, engine) for _ in range(3)]
        for _ in failures:
            assert door.arrived.acquire(timeout=PATIENCE_S)
        starts.may_fail.set()
        assert {each.result() for each in failures} == {"no master (start 1)"}
    assert failure(engine) == "no master (start 2)"
    engine.stop()


def test_executors_that_read_need_the_extra_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.service.config.pipeline.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"needs pandas, which is not installed, .*: pip install 'pandas"):
        Pipeline(
            "letters",
            feed=LogFeed(path="log"),
            schema="a INT",
            sink=FilesSink(path="out", format="jsonl"),
            executors_read=True,
        )
