"""What users meet at the command line once Spark is at work: transforms that are wrong, events that do not fit, and mending."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from patience import until
from plugins_cli import Commands, events_in
from plugins_cluster import spark_settings

HUNG_S = 8
"""It may be less than the first batch of a cold Spark takes on a busy machine: what was given up is tried again."""
FUNCTIONS = """
import os
import time
from pathlib import Path
from pyspark.sql.functions import struct, to_json, udf

HERE = Path(__file__).parent

@udf("string")
def shouted(word):
    if word == "hang" and not (HERE / "mended").exists():
        (HERE / "worker").write_text(str(os.getpid()))
        time.sleep(3600)
    return word.upper()

def shouts(events):
    return events.select("partition", "sequence", to_json(struct(shouted("word").alias("word"))).alias("body"))
"""
AMOUNTS = {
    "schema": "amount DECIMAL(18,2) NOT NULL",
    "sql": "SELECT partition, to_json(struct(amount)) AS body FROM events",
}


def settings(folder: Path, name: str, pipelines: dict[str, dict[str, Any]]) -> str:
    """Every pipeline reads the files that begin with its name, and writes the log of its name."""
    (folder / name).write_text(
        yaml.safe_dump(
            {
                "leases": {"path": "state/leases.db", "balance_s": 1, "duration_s": 15},
                "spark": spark_settings({"master": "local[2]", "driver_memory": "512m"}),
                "api": {"enabled": False},
                "log": {"format": "json"},
                "pipelines": [
                    {
                        "name": pipeline,
                        "feed": {"type": "files", "path": f"{pipeline}-*.jsonl"},
                        "sink": {"type": "log", "path": f"state/{pipeline}"},
                    }
                    | transform
                    for pipeline, transform in pipelines.items()
                ],
            }
        )
    )
    return name


def write(file: Path, *records: Any) -> None:
    file.write_text("".join(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records))


def test_transforms_that_cannot_work_are_told_before_anything_is_processed(tmp_path: Path, leasehold: Commands) -> None:
    (tmp_path / "half_done.py").write_text("def transform(events): return evnets\nraise_on = 1 / 0\n")
    wrong = {
        "drops": {"sql": "SELECT key, body FROM events"},
        "garbled": {"sql": "SELEKT partition, body FROM events"},
        "column": {"sql": "SELECT partition, bdoy AS body FROM events"},
        "crashes": {"function": "half_done:transform"},
        "schema": {"schema": "amount NUMBRE"},
        "fine": {"sql": "SELECT partition, body FROM events"},
    }
    file = settings(tmp_path, "wrong.yaml", wrong | {"absent": {"function": "no_such_module:transform"}})
    write(tmp_path / "fine-1.jsonl", {"word": "a"})
    said = {
        "drops": "`partition`",
        "garbled": "SELEKT",
        "column": "bdoy",
        "absent": "there is no module 'no_such_module'",
        "crashes": "module 'half_done' fails with ZeroDivisionError",
        "schema": "NUMBRE",
    }
    probe = leasehold("check", "--probe", file)
    assert probe.ended() == 2, probe.err
    lines = {line.split(": transform: ")[0]: line for line in probe.out.splitlines() if ": transform: " in line}
    for name, text in said.items():
        assert lines[name].startswith(f"{name}: transform: FAILED: pipeline '{name}': "), lines[name]
        assert text in lines[name]
    assert lines["fine"] == "fine: transform: fine, yields partition, body; batches share jobs"
    needs_no_spark = leasehold("run", file)
    assert needs_no_spark.ended() == 2, needs_no_spark.err
    assert said.pop("absent") in needs_no_spark.err
    run = leasehold("run", settings(tmp_path, "wrong.yaml", wrong))
    assert run.ended() == 2, run.err
    assert f"leasehold: {len(said)} problems\n" in run.err
    for name, text in said.items():
        assert re.search(rf"^  pipeline '{name}': .*{re.escape(text)}", run.err, re.MULTILINE), run.err
    assert "Traceback" not in probe.out + probe.err + run.out + run.err
    assert events_in(tmp_path / "state" / "fine") == {}


def test_events_that_do_not_fit_stop_their_partitions_and_once_mended_nothing_is_lost_or_repeated(
    tmp_path: Path, leasehold: Commands
) -> None:
    (tmp_path / "my_functions.py").write_text(FUNCTIONS)  # beside the settings, and Spark's workers find it too
    pipelines: dict[str, dict[str, Any]] = {
        "scale": AMOUNTS,
        "lacks": AMOUNTS,
        "shape": AMOUNTS,
        "raises": {"sql": "SELECT partition, assert_true(body != '{\"n\": 3}', 'no threes') AS key, body FROM events"},
        "hang": {"schema": "word STRING NOT NULL", "function": "my_functions:shouts", "batch_timeout_s": HUNG_S},
    }
    file = settings(tmp_path, "events.yaml", pipelines)
    bad = {"scale": {"amount": 1.239}, "lacks": {"amuont": 2}, "shape": {"amount": "much"}}
    for name, record in bad.items():
        write(tmp_path / f"{name}-1.jsonl", {"amount": 1}, {"amount": 2.5}, record, {"amount": 4})
        write(tmp_path / f"{name}-2.jsonl", {"amount": 7})
    write(tmp_path / "raises-1.jsonl", *({"n": n} for n in range(5)))
    write(tmp_path / "hang-1.jsonl", {"word": "hang"}, {"word": "on"})
    write(tmp_path / "hang-2.jsonl", {"word": "go"})

    run = leasehold("run", "--until-idle", file)
    worker = tmp_path / "worker"
    until(lambda: worker.exists() and worker.read_text(), "a transform that hangs")
    hung = int(worker.read_text())
    until(lambda: run.found("(made no progress)"), "it is given up")
    until(lambda: not psutil.pid_exists(hung), "its Python worker is gone")
    assert run.ended() == 1, run.err
    assert "Traceback" not in run.err
    told = {
        line.split("'")[1]: line
        for line in run.err.splitlines()
        if line.startswith("leasehold: ") and "-1.jsonl" in line
    }
    for name, reason in (("scale", "amount"), ("lacks", "amount"), ("shape", "amount"), ("raises", "no threes")):
        assert f"(file {name}-1.jsonl, line {3 if name in bad else 4})" in told[name], told[name]
        assert reason in told[name]
    assert f"transform made no progress for {HUNG_S} s; its batch was cancelled and the lease released." in told["hang"]

    for name in bad:
        assert amounts(tmp_path, name) == {f"{name}-1.jsonl": [1, 2.5], f"{name}-2.jsonl": [7]}
    assert events_in(tmp_path / "state/raises")["raises-1.jsonl"] == [{"n": 0}, {"n": 1}, {"n": 2}]

    for name in bad:
        write(tmp_path / f"{name}-1.jsonl", {"amount": 1}, {"amount": 2.5}, {"amount": 3}, {"amount": 4})
    pipelines["raises"]["sql"] = "SELECT partition, body FROM events"
    del pipelines["hang"]["batch_timeout_s"]
    settings(tmp_path, "events.yaml", pipelines)
    (tmp_path / "mended").touch()
    mended = leasehold("run", "--until-idle", file)
    assert mended.ended() == 0, mended.err
    for name in bad:
        assert amounts(tmp_path, name) == {f"{name}-1.jsonl": [1, 2.5, 3, 4], f"{name}-2.jsonl": [7]}
    assert events_in(tmp_path / "state/raises") == {"raises-1.jsonl": [{"n": n} for n in range(5)]}
    shouted = {"hang-1.jsonl": [{"word": "HANG"}, {"word": "ON"}], "hang-2.jsonl": [{"word": "GO"}]}
    assert events_in(tmp_path / "state/hang") == shouted


def amounts(folder: Path, pipeline: str) -> dict[str, list[Any]]:
    return {
        name: [event["amount"] for event in events] for name, events in events_in(folder / "state" / pipeline).items()
    }


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
        assert "there is no module 'no_such_module': put it beside the YAML file" in ran.err
