"""Spark begins before all else of a host is imported, and only for whoever needs it."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from pipeline.errors import EngineUnavailable
from pipeline.spark.engine import SparkEngine
from service.config import parse
from service.engine import begun
from service.settings import Settings

PLAIN = {
    "name": "letters",
    "feed": {"type": "files", "path": "words-*.jsonl"},
    "sink": {"type": "files", "path": "out", "format": "jsonl"},
}


RUNNING = SparkEngine.running


class Started(Exception):
    """Instead of a JVM."""


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    started = threading.Event()

    def running(engine: SparkEngine) -> None:
        started.set()
        raise Started

    monkeypatch.setattr(SparkEngine, "running", running)
    return started


def settings_of(**transform: str) -> Settings:
    return parse(yaml.safe_dump({"pipelines": [{**PLAIN, **transform}]}), {}, folder=Path("/"))


@pytest.mark.parametrize(
    "transform", [{"sql": "SELECT partition FROM events"}, {"function": "a:b"}, {"schema": "a INT"}]
)
def test_spark_begins_at_once_where_a_transform_needs_it(starts: threading.Event, transform: dict[str, str]) -> None:
    with begun(settings_of(**transform)):
        assert starts.wait(10)


def test_without_a_transform_it_does_not_begin(starts: threading.Event) -> None:
    with begun(settings_of()):
        pass
    assert not starts.is_set()


def test_a_start_that_fails_behind_it_leaves_no_spark(starts: threading.Event) -> None:
    with pytest.raises(LookupError), begun(settings_of(schema="a INT")) as engine:
        raise LookupError
    with pytest.raises(EngineUnavailable, match="Spark is stopped"):
        RUNNING(engine)


EARLY = """
import sys
from service.commands import settings_of
import service.engine
print(*(name for name in ("fastapi", "psycopg", "aiohttp", "pandas") if name in sys.modules))
"""


def test_neither_the_api_nor_a_connector_is_imported_before_it() -> None:
    ran = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "\n", ran.stdout
