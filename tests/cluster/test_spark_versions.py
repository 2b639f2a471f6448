"""Hosts whose Spark elsewhere has another version: real servers of that version, which `.ci/setup spark-other` installs.

`make cluster` installs it and runs these tests. Elsewhere they are skipped unless it is there.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from lab.servers.spark_cluster import SparkCluster
from patience import PATIENCE_S, until
from plugins_cli import Command, Commands, events_in
from plugins_cluster import settings_on
from plugins_node import free_port

pytestmark = pytest.mark.timeout(900)

FOLDER = Path(__file__).parents[2] / "build" / "spark-other"
OTHER = FOLDER / "pyspark"
SAID_S = 180
"""How soon after a batch arrives the log and REST name both versions. A driver has to start and wait for the master first."""
BACK_S = 240
"""A host pauses for up to a minute between attempts."""

MakeCluster = Callable[..., SparkCluster]


@pytest.fixture(scope="module")
def other() -> str:
    """Its version."""
    if not (FOLDER / ".setup").is_file():
        pytest.skip("needs a Spark of another version: run `.ci/setup spark-other`, or `make cluster`")
    return (FOLDER / ".setup").read_text().strip()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """Makes clusters, whose parts the test starts. They end with the test."""
    with ExitStack() as stack:

        def make(name: str, **options: Any) -> SparkCluster:
            directory = tmp_path / name
            directory.mkdir()
            made = SparkCluster(directory, **options)
            stack.callback(made.close)
            return made

        yield make


def settings(folder: Path, spark: dict[str, Any], port: int) -> str:
    folder.joinpath("leasehold.yaml").write_text(
        yaml.safe_dump(
            {
                "leases": {"path": "state/leases.db"},
                "spark": spark,
                "api": {"port": port},
                "log": {"format": "json"},
                "pipelines": [
                    {
                        "name": "words",
                        "feed": {"type": "files", "path": "words-*.jsonl"},
                        "schema": "word STRING NOT NULL",
                        "sql": "SELECT partition, sequence, to_json(struct(upper(word) AS word)) AS body FROM events",
                        "sink": {"type": "log", "path": "state/words"},
                        "dead_letters": {"type": "log", "path": "state/dead"},
                    }
                ],
            }
        )
    )
    return "leasehold.yaml"


def append(folder: Path, *words: str) -> None:
    with folder.joinpath("words-1.jsonl").open("a") as lines:
        lines.writelines(json.dumps({"word": word}) + "\n" for word in words)


def delivered(folder: Path) -> list[str]:
    return [body["word"] for bodies in events_in(folder / "state" / "words").values() for body in bodies]


def asked(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/pipelines", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def failures(host: Command) -> list[str]:
    lines = (json.loads(line) for line in host.err.splitlines() if line.startswith("{"))
    return [str(line["error"]) for line in lines if line["event"] == "partition failed, retrying"]


def refusal(kind: str, cluster: SparkCluster, version: str) -> str:
    """What a host says of a Spark of this version, as a pattern. The pip command is the next step beside the cluster's update."""
    own = re.escape(pyspark.__version__)
    said = {
        "cluster": rf"the Spark master at '{cluster.master_url}' has Spark {version}, and did not register this application"
        rf" of PySpark {own} within 10 s.*: install Spark {own} on the cluster, or here: pip install 'pyspark=={version}'",
        "connect": rf"the Spark Connect server at '{cluster.connect_url}' has Spark {version}, which is older than PySpark {own}"
        rf" here: install Spark {own} on the server, or here: pip install 'pyspark\[connect\]=={version}'",
    }
    return said[kind]


def start(cluster: SparkCluster, kind: str) -> None:
    for part in [cluster.connect] if kind == "connect" else [cluster.master, *cluster.workers]:
        part.start()


@pytest.mark.parametrize("kind", ["cluster", "connect"])
def test_a_spark_of_another_version_fails_the_start_with_both_versions(
    kind: str, other: str, tmp_path: Path, leasehold: Commands, cluster: MakeCluster
) -> None:
    theirs = cluster("theirs", home=OTHER, workers=0)
    start(theirs, kind)
    append(tmp_path, "a")
    host = leasehold("run", settings(tmp_path, settings_on(theirs, kind), free_port()))
    assert host.ended(PATIENCE_S) == 2, host.err
    assert len(re.findall(refusal(kind, theirs, other), host.err)) == 1, host.err
    assert "Traceback" not in host.err
    assert delivered(tmp_path) == []


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize("kind", ["cluster", "connect"])
def test_workers_of_another_version_are_named_and_cost_no_event(
    kind: str, tmp_path: Path, leasehold: Commands, cluster: MakeCluster
) -> None:
    """A master registers workers of any version. Its order to start an executor is one that they cannot read."""
    mixed = cluster("mixed", workers=1, of_workers=OTHER)
    mixed.open(connect=kind == "connect")
    append(tmp_path, "a")
    file = settings(tmp_path, settings_on(mixed, kind), free_port())
    host = leasehold("run", file)
    assert host.ended(SAID_S) == 2, host.err
    assert re.search(
        r"no executor .* look at the .* workers may run another version of Spark than the master", host.err
    )
    assert delivered(tmp_path) == []

    mixed.close()
    right = cluster("right", workers=1, ports=mixed.ports)
    right.open(connect=kind == "connect")
    host = leasehold("run", file)
    until(lambda: delivered(tmp_path) == ["A"], "the word is delivered")
    host.interrupt()
    assert host.ended() == 0, host.err


@pytest.mark.parametrize("kind", ["cluster", "connect"])
def test_a_spark_that_is_replaced_by_another_version_is_named_and_costs_no_event(
    kind: str, other: str, tmp_path: Path, leasehold: Commands, cluster: MakeCluster
) -> None:
    """It is replaced under a running host, and later by the right one."""
    workers = 1 if kind == "cluster" else 0
    ours = cluster("ours", workers=workers)
    start(ours, kind)
    append(tmp_path, "a", "b")
    port = free_port()
    host = leasehold("run", settings(tmp_path, settings_on(ours, kind), port))
    until(lambda: delivered(tmp_path) == ["A", "B"], "the first words are delivered")

    ours.close()
    theirs = cluster("theirs", home=OTHER, workers=workers, ports=ours.ports)
    start(theirs, kind)
    append(tmp_path, "c", "d")
    wanted = re.compile(refusal(kind, theirs, other))
    until(lambda: any(map(wanted.search, failures(host))), "the log names both versions")
    until(lambda: wanted.search(asked(port)), "and so does REST")
    assert delivered(tmp_path) == ["A", "B"]

    theirs.close()
    start(cluster("again", workers=workers, ports=ours.ports), kind)
    until(lambda: delivered(tmp_path) == ["A", "B", "C", "D"], "all words are delivered, once each")
    host.interrupt()
    assert host.ended() == 0, host.err
    assert not any(events_in(tmp_path / "state" / "dead").values())
