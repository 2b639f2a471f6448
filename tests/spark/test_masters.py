"""What users meet at the command line if Spark's master is away, or Spark cannot start."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
import yaml
from patience import until
from plugins_cli import Commands
from spark_pipelines import settings, write

COPY = {"sql": "SELECT partition, body FROM events"}


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a listener that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def with_master(folder: Path, master: str) -> str:
    settings(folder, "remote.yaml", {"one": COPY, "two": COPY})
    file = folder / "remote.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"spark": {"master": master}}))
    write(folder / "one-1.jsonl", {"word": "a"})
    write(folder / "two-1.jsonl", {"word": "a"})
    return file.name


@pytest.mark.parametrize(
    ("command", "master", "reason"),
    [
        (("run",), "spark://nohost.invalid:7077", r"nohost\.invalid:7077: "),
        (("check", "--probe"), "spark://nohost.invalid:7077", r"nohost\.invalid:7077: "),
        (("check", "--probe"), "spark://127.0.0.1:1", r"127\.0\.0\.1:1: connection refused"),
        (
            ("check", "--probe"),
            "spark://127.0.0.1:1,127.0.0.1:2",
            r"127\.0\.0\.1:1: connection refused; 127\.0\.0\.1:2: connection refused",
        ),
    ],
    ids=["run: no such name", "probe: no such name", "probe: refused", "probe: several"],
)
def test_a_master_that_is_not_there_is_one_error_with_its_address(
    tmp_path: Path,
    leasehold: Commands,
    endless_java: Mapping[str, str],
    command: tuple[str, ...],
    master: str,
    reason: str,
) -> None:
    """No JVM is waited for, as this one is never there."""
    ran = leasehold(*command, with_master(tmp_path, master), env=endless_java)
    assert ran.ended() == 2, ran.err
    assert "Traceback" not in ran.out + ran.err
    refused = [line for line in (ran.out + ran.err).splitlines() if "cannot be reached" in line]
    assert len(refused) == (1 if command == ("run",) else 2)  # a probe has a line for each pipeline
    for line in refused:
        assert re.search(rf"the Spark master at '{re.escape(master)}' cannot be reached \({reason}", line), line


def test_a_listener_that_answers_nothing_is_given_up_by_a_probe(
    tmp_path: Path, leasehold: Commands, silent: str, endless_java: Mapping[str, str]
) -> None:
    """No JVM is waited for, as this one is never there."""
    ran = leasehold("check", "--probe", with_master(tmp_path, f"spark://{silent}"), env=endless_java)
    assert ran.ended() == 2, ran.err
    assert "Traceback" not in ran.out + ran.err
    told = f"the Spark master at 'spark://{silent}' cannot be reached ({silent}: it accepts connections, but answers nothing"
    assert told in ran.out + ran.err


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_a_host_waits_for_a_master_that_is_away_and_names_it(
    tmp_path: Path, leasehold: Commands, silent: str, kind: str
) -> None:
    master = f"spark://{silent}" if kind == "silent" else "spark://127.0.0.1:1"
    ran = leasehold("run", with_master(tmp_path, master))
    until(lambda: ran.err.count("waiting for Spark") >= 2, "the log names the master again and again")
    assert f"Spark ({master})" in ran.err.splitlines()[0]
    for line in ran.err.splitlines():
        assert "waiting for Spark" not in line or f"the Spark master at '{master}' cannot be reached" in line
    ran.process.send_signal(signal.SIGTERM)
    ran.ended()
    assert "Traceback" not in ran.err
    assert "stopped before it was ready" in ran.err


@pytest.fixture
def endless_java(tmp_path: Path) -> Mapping[str, str]:
    """The environment of a machine whose Java never gets anything done."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexec sleep 3600\n")
    java.chmod(0o755)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="21.0.2"\n')
    return {"JAVA_HOME": str(tmp_path / "jdk")}


def processes_of(environment: Mapping[str, str]) -> list[int]:
    home = environment["JAVA_HOME"]
    return [
        each.pid for each in psutil.process_iter(["environ"]) if (each.info["environ"] or {}).get("JAVA_HOME") == home
    ]


def test_what_needs_no_spark_is_refused_while_spark_cannot_start_and_ends_its_start(
    tmp_path: Path, leasehold: Commands, endless_java: Mapping[str, str]
) -> None:
    write(tmp_path / "letters-1.jsonl", {"word": "a"})
    plain = settings(tmp_path, "plain.yaml", {"letters": {}})
    assert leasehold("run", "--until-idle", plain).ended() == 0
    moved = settings(tmp_path, "moved.yaml", {"letters": {**COPY, "sink": {"type": "log", "path": "state/elsewhere"}}})
    broken = settings(tmp_path, "broken.yaml", {"letters": COPY})
    (tmp_path / "state" / "broken.db").write_text("this is no database " * 100)
    text = (tmp_path / broken).read_text()
    (tmp_path / broken).write_text(text.replace("leases.db", "broken.db"))
    taken = settings(tmp_path, "taken.yaml", {"letters": COPY})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        file = tmp_path / taken
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"api": {"port": port}}))
        for name, said in (
            (moved, "the leases of pipeline 'letters' belong to sink"),
            (broken, "broken.db"),
            (taken, str(port)),
        ):
            ran = leasehold("run", name, env=endless_java)
            assert ran.ended() == 2, ran.err
            assert said in ran.err
            assert "Traceback" not in ran.err
            until(lambda: not processes_of(endless_java), "the Java that was starting is gone")


def test_a_function_without_a_module_is_refused_while_spark_cannot_start(
    tmp_path: Path, leasehold: Commands, endless_java: Mapping[str, str]
) -> None:
    file = settings(tmp_path, "absent.yaml", {"letters": {"function": "no_such_module:f"}})
    for command in (("check",), ("run",)):
        ran = leasehold(*command, file, env=endless_java)
        assert ran.ended() == 2, ran.err
        assert "there is no module 'no_such_module': put it next to the YAML file" in ran.err
