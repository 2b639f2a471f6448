"""The Spark of chaos' hosts, and how its parts break: each host its own, a cluster, or a Connect server on a cluster."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from plugins_cluster import settings_on
from servers.spark_cluster import Part, SparkCluster, running

from scenarios.grounds import Breakage


class OwnSpark:
    """Each host's own."""

    breakages: Mapping[str, Breakage] = {}

    def settings(self, directory: Path) -> dict[str, Any]:
        return {"driver_memory": "512m", "conf": {"spark.local.dir": str(directory / "spark")}}


class ClusterSpark:
    """All hosts' one. kind: cluster or connect."""

    def __init__(self, cluster: SparkCluster, kind: str) -> None:
        self._cluster = cluster
        self._kind = kind
        self._random = random.Random(1)
        self.breakages: Mapping[str, Breakage] = {
            "executor killed": self._without_executors,
            "worker killed": lambda: _killed(self._random.choice(cluster.workers)),
            "master killed": partial(_killed, cluster.master),
            "Connect server killed": partial(_killed, cluster.connect),
            "Connect server frozen": partial(_frozen, cluster.connect),
        }

    def settings(self, directory: Path) -> dict[str, Any]:
        return settings_on(self._cluster, self._kind)

    @contextmanager
    def _without_executors(self) -> Iterator[None]:
        """One that is there at this moment."""
        executors = [each for worker in self._cluster.workers for each in worker.executors()]
        if executors:
            self._random.choice(executors).kill()
        yield


@contextmanager
def _killed(part: Part) -> Iterator[None]:
    part.kill()
    yield
    part.start()


@contextmanager
def _frozen(part: Part) -> Iterator[None]:
    part.send(signal.SIGSTOP)
    try:
        yield
    finally:
        part.send(signal.SIGCONT)


Spark = OwnSpark | ClusterSpark


@contextmanager
def spark_of(kind: str, directory: Path) -> Iterator[Spark]:
    """kind: local, cluster or connect."""
    if kind == "local":
        yield OwnSpark()
        return
    directory.mkdir()
    with running(directory, connect=kind == "connect") as cluster:
        yield ClusterSpark(cluster, kind)
