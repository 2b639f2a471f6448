"""Spark's jars and Java are looked for before Spark starts, and the lack of either is one line."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest
from patience import PATIENCE_S

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.jre import LINES_MAX, java_version, read_output, require_jars, require_java


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "11.0.22"', 11),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.2"', 21),
        ('IMPLEMENTOR="Debian"\nJAVA_RUNTIME_VERSION="8"\nJAVA_VERSION="17.0.15"', 17),
        ("nonsense", None),
    ],
)
def test_the_version_is_read_from_what_java_says(text: str, version: int | None) -> None:
    assert java_version(text) == version


def java(directory: Path, says: str) -> None:
    command = directory / "java"
    command.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    command.chmod(0o755)


def test_a_missing_java_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        EngineUnavailable, match=r"^Spark needs Java 17 .*install.*, or set JAVA_HOME to an existing one$"
    ) as no:
        require_java()
    assert "\n" not in str(no.value)


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EngineUnavailable, match=f"JAVA_HOME is {tmp_path}, which has no bin/java"):
        require_java()


def test_an_old_java_is_refused_with_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path, 'openjdk version "11.0.22" 2024-01-16')
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    with pytest.raises(EngineUnavailable, match=r"is Java 11: .*install"):
        require_java()


def test_a_newer_java_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path, 'openjdk version "21.0.2"')
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    require_java()


def test_a_java_whose_makers_tell_its_version_is_not_started_to_be_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    java(tmp_path / "bin", 'openjdk version "21.0.2"')
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.22"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EngineUnavailable, match="is Java 11"):
        require_java()


def test_a_java_that_only_says_that_there_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path, "Unable to locate a Java Runtime.")
    with (tmp_path / "java").open("a") as command:
        command.write("exit 1\n")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    with pytest.raises(EngineUnavailable, match=r"does not run \(Unable to locate a Java Runtime\)"):
        require_java()


def test_without_jars_a_spark_of_its_own_is_refused_with_the_setting_that_helps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in the thin image, which has no Java either."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "__init__.py"))
    engine = SparkEngine(master="local[1]")
    with pytest.raises(EngineUnavailable, match=r"^there is no Spark here, .*: set `spark\.remote`") as no:
        engine.running()
    engine.stop()
    assert str(tmp_path) in str(no.value)
    assert "\n" not in str(no.value)


def test_jars_beside_pyspark_or_a_spark_home_will_do(tmp_path: Path) -> None:
    require_jars(tmp_path, {"SPARK_HOME": "/opt/spark"})
    with pytest.raises(EngineUnavailable, match=r"`spark\.remote`"):
        require_jars(tmp_path, {"SPARK_HOME": ""})
    (tmp_path / "jars").mkdir()
    require_jars(tmp_path, {})


def test_of_long_output_the_last_lines_are_kept() -> None:
    output, writing = read_output()
    with open(writing, "w", encoding="utf-8") as written:
        written.writelines(f"line {i}\n" for i in range(10_000))
    output.thread.join(PATIENCE_S)
    assert list(output.lines) == [f"line {i}" for i in range(10_000 - LINES_MAX, 10_000)]
