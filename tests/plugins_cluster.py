"""`--spark`: the Spark of hosts and transforms in tests: each process its own, a cluster, or a Connect server on a cluster.

A process of tests starts its cluster when it is first needed, and all its tests share it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from lab.servers.spark_cluster import HOST, SparkCluster, running

KINDS = ("local", "cluster", "connect")
_kind = "local"
_stack = ExitStack()
_cluster: SparkCluster | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--spark", choices=KINDS, default="local", help="the Spark of hosts and transforms (local)")


def pytest_configure(config: pytest.Config) -> None:
    global _kind
    _kind = config.getoption("--spark")


def pytest_unconfigure() -> None:
    _stack.close()


def shared_cluster() -> SparkCluster:
    """With a Connect server only if the tests use it."""
    global _cluster
    if _cluster is None:
        directory = _stack.enter_context(
            tempfile.TemporaryDirectory(prefix="leasehold-cluster-", ignore_cleanup_errors=True)
        )
        _cluster = _stack.enter_context(running(Path(directory), connect=is_over_connect()))
    return _cluster


def is_over_connect() -> bool:
    return _kind == "connect"


def spark_settings(local: dict[str, Any]) -> dict[str, Any]:
    """The section `spark` of a host. local: what it is without a cluster."""
    return local if _kind == "local" else settings_on(shared_cluster(), _kind)


def settings_on(cluster: SparkCluster, kind: str) -> dict[str, Any]:
    if kind == "connect":
        return {"remote": cluster.connect_url}
    conf = {
        "spark.driver.host": HOST,
        "spark.executor.memory": "512m",
        "spark.cores.max": "1",
        "spark.pyspark.python": sys.executable,
    }
    return {"master": cluster.master_url, "driver_memory": "512m", "conf": conf}


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """With a Connect server. For the tests of one module, which may break it and mend it."""
    with running(tmp_path_factory.mktemp("cluster"), connect=True) as cluster:
        yield cluster


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> str:
    """PySpark notes in the environment that it is a client. The tests behind this one have a Spark of their own again."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    return "connect"
