"""What users meet at the command line once Spark is at work: transforms that are wrong, events that do not fit, and mending."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psutil
from patience import until
from plugins_cli import Commands, events_in
from spark_pipelines import settings, write

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
