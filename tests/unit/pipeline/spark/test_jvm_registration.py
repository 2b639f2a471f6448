"""A standalone master that does not register a host in time, and how the error names its version."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pyspark
import pytest
from patience import PATIENCE_S

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark import jvm
from leasehold.pipeline.spark.jvm import _not_registered, _registration

CONF = {"spark.master": "spark://m:7077"}


class Process:
    def __init__(self) -> None:
        self.killed = threading.Event()

    def kill(self) -> None:
        self.killed.set()


def starting() -> tuple[Process, Any, Any]:
    """A JVM that connects to its master: its process, its gateway and its output."""
    process = Process()
    log4j = SimpleNamespace(
        core=SimpleNamespace(config=SimpleNamespace(Configurator=SimpleNamespace(setLevel=lambda name, level: None))),
        Level=SimpleNamespace(INFO=None),
    )
    jvm_of = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(logging=SimpleNamespace(log4j=log4j))))
    lines = [f"INFO {jvm._CONNECTING} {CONF['spark.master']}"]
    output = SimpleNamespace(lines=lines, wait=lambda: None)
    return process, SimpleNamespace(proc=process, jvm=jvm_of), cast(Any, output)


@pytest.mark.parametrize("version", ["4.0.5", None])
def test_a_jvm_that_is_not_registered_in_time_is_killed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    process, gateway, output = starting()
    monkeypatch.setattr(jvm, "REGISTRATION_S", 0.0)
    monkeypatch.setattr(jvm, "_version_of", lambda conf, gateway, done: version)

    def start() -> None:
        with _registration(CONF, gateway, output):
            assert process.killed.wait(PATIENCE_S)
            raise OSError("the JVM is gone")

    with pytest.raises(EngineUnavailable, match="has Spark 4.0.5" if version else "make sure that a Spark master of"):
        start()


def test_a_jvm_that_is_registered_while_the_version_is_looked_up_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    process, gateway, output = starting()
    asked = threading.Event()

    def look_up(conf: object, gateway: object, done: threading.Event) -> None:
        asked.set()
        assert done.wait(PATIENCE_S), "a start waits for what it no longer needs"

    monkeypatch.setattr(jvm, "REGISTRATION_S", 0.0)
    monkeypatch.setattr(jvm, "_version_of", look_up)
    with _registration(CONF, gateway, output):
        assert asked.wait(PATIENCE_S)
    assert not process.killed.is_set()


def test_a_master_that_shows_no_version_is_not_waited_for_after_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "VERSION_S", PATIENCE_S)
    asked, answer, done = threading.Event(), threading.Event(), threading.Event()

    def web_port(*arguments: object) -> None:
        asked.set()
        answer.wait(PATIENCE_S)

    monkeypatch.setattr(jvm, "web_port", web_port)
    found: list[str | None] = []
    looking = threading.Thread(target=lambda: found.append(jvm._version_of(CONF, None, done)))
    looking.start()
    assert asked.wait(PATIENCE_S)
    done.set()
    looking.join(PATIENCE_S / 2)
    assert found == [None]
    answer.set()


def test_both_versions_are_named_if_they_differ() -> None:
    error = str(_not_registered(CONF["spark.master"], "4.0.5", "it closed the connection"))
    assert "has Spark 4.0.5" in error
    assert f"PySpark {pyspark.__version__}" in error
    assert "(it closed the connection)" in error


def test_another_patch_is_not_the_reason() -> None:
    major, minor = pyspark.__version__.split(".")[:2]
    error = str(_not_registered(CONF["spark.master"], f"{major}.{minor}.99", ""))
    assert "make sure that a Spark master of version" in error
    assert ".99" not in error
