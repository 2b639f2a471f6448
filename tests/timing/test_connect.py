"""A host whose Spark Connect server is killed and started again: it reports what it waits for, and recovers."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.servers.spark_cluster import SparkCluster, running
from patience import PATIENCE_S, until
from plugins_cli import Command, Commands, events_in
from plugins_node import free_port

pytestmark = pytest.mark.timeout(600)

BACK_S = 60
ENDED_S = 15
"""How long a process may take to end after its host has stopped."""
FUNCTIONS = """
from pyspark.sql.functions import udf

@udf("binary")
def shouted(body):
    return bytes(body).upper()

def shouts(events):
    return events.select("partition", "sequence", shouted("body").alias("body"))
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    with running(directory, connect=True) as cluster:
        yield cluster


def settings(folder: Path, remote: str, port: int) -> str:
    """A query and a function, over the same files."""
    (folder / "shouting.py").write_text(FUNCTIONS)
    (folder / "leasehold.yaml").write_text(
        yaml.safe_dump(
            {
                "leases": {"path": "state/leases.db"},
                "spark": {"remote": remote},
                "api": {"port": port},
                "log": {"format": "json"},
                "pipelines": [
                    {
                        "name": "query",
                        "feed": {"type": "files", "path": "words-*.jsonl"},
                        "sql": "SELECT partition, sequence, body FROM events",
                        "sink": {"type": "log", "path": "state/query"},
                    },
                    {
                        "name": "function",
                        "feed": {"type": "files", "path": "words-*.jsonl"},
                        "function": "shouting:shouts",
                        "sink": {"type": "log", "path": "state/function"},
                    },
                ],
            }
        )
    )
    return "leasehold.yaml"


def asked(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
        return json.load(answer)


def append(file: Path, *words: str) -> None:
    with file.open("a") as lines:
        lines.writelines(json.dumps({"word": word}) + "\n" for word in words)


def delivered(folder: Path, pipeline: str) -> list[str]:
    found = events_in(folder / "state" / pipeline)
    return [str(next(iter(body.values()))) for bodies in found.values() for body in bodies]


def failures(host: Command) -> list[str]:
    """What it has logged of attempts that failed."""
    lines = (json.loads(line) for line in host.err.splitlines() if line.startswith("{"))
    return [str(line["error"]) for line in lines if line["event"] == "partition failed, retrying"]


def test_a_host_finds_a_connect_server_again_that_was_killed(
    tmp_path: Path, leasehold: Commands, cluster: SparkCluster
) -> None:
    words, port = tmp_path / "words-1.jsonl", free_port()
    append(words, "a", "b")
    host = leasehold("run", settings(tmp_path, cluster.connect_url, port))
    until(lambda: delivered(tmp_path, "query") == ["a", "b"], "the first words are delivered")
    until(lambda: delivered(tmp_path, "function") == ["A", "B"], "and shouted")

    cluster.connect.kill()
    append(words, "c")
    away = f"the Spark Connect server at '{cluster.connect_url}' cannot be used: "
    until(lambda: any(error.startswith(away) for error in failures(host)), "the log says what the host waits for")
    until(lambda: away in json.dumps(asked(port, "/api/pipelines")), "and so does REST")

    cluster.connect.start()
    until(
        lambda: (delivered(tmp_path, "query"), delivered(tmp_path, "function")) == (["a", "b", "c"], ["A", "B", "C"]),
        "the query and the function recover",
    )
    host.interrupt()
    assert host.ended() == 0, host.err


def test_a_host_ends_while_its_connect_server_stands_still(
    tmp_path: Path, leasehold: Commands, cluster: SparkCluster
) -> None:
    append(tmp_path / "words-1.jsonl", "a", "b")
    host = leasehold("run", settings(tmp_path, cluster.connect_url, free_port()))
    until(lambda: delivered(tmp_path, "query") == ["a", "b"], "the words are delivered")
    until(lambda: delivered(tmp_path, "function") == ["A", "B"], "and shouted")

    cluster.connect.send(signal.SIGSTOP)
    host.interrupt()
    until(lambda: '"host stopped"' in host.err, "the host stops")
    assert host.ended(ENDED_S) == 0, host.err


def test_a_host_that_starts_waits_for_a_connect_server_that_starts_later(
    tmp_path: Path, leasehold: Commands, cluster: SparkCluster
) -> None:
    cluster.connect.kill()
    port = free_port()
    append(tmp_path / "words-1.jsonl", "a", "b")
    host = leasehold("run", settings(tmp_path, cluster.connect_url, port))

    def waits() -> list[str]:
        lines = (json.loads(line) for line in host.err.splitlines() if line.startswith("{"))
        return [line["error"] for line in lines if line["event"] == "waiting for Spark"]

    until(lambda: len(waits()) >= 2, "the log names the server twice, 10 s apart")
    assert all(f"the Spark Connect server at '{cluster.connect_url}'" in error for error in waits())
    with pytest.raises(urllib.error.HTTPError, match="503"):
        asked(port, "/health/ready")

    cluster.connect.start()
    until(lambda: delivered(tmp_path, "query") == ["a", "b"], "the words are delivered")
    until(lambda: delivered(tmp_path, "function") == ["A", "B"], "and shouted")
    host.interrupt()
    assert host.ended() == 0, host.err
