"""Executors that come late: the job waits for them, shows that, and runs with the driver that asked for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from cluster.engines import AWAY_S, SQL, engine_on, prepared, until_it_waits, waiting_once
from jobs import MakeBatch, Write, keyed
from lab.servers.spark_cluster import SparkCluster, running
from patience import PATIENCE_S, until, until_async
from plugins_cli import Command, Commands
from plugins_cluster import settings_on

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform

pytestmark = pytest.mark.timeout(400 + 2 * AWAY_S)

ALLOCATION = {
    "spark_dynamicAllocation_enabled": "true",
    "spark_dynamicAllocation_minExecutors": "0",
    "spark_dynamicAllocation_shuffleTracking_enabled": "true",
    "spark_dynamicAllocation_executorIdleTimeout": "2s",
}


TIMEOUT_S = 30
"""`batch_timeout_s` of a host. Each of its waits is longer."""


class Waiting:
    """A host over files, whose transform needs executors, and how to ask it."""

    def __init__(self, cluster: SparkCluster, folder: Path, leasehold: Commands) -> None:
        self._words = folder / "words.jsonl"
        self._written = 0
        settings = {
            "leases": {"type": "sqlite", "path": "state/leases.db"},
            "api": {"port": 0},
            "log": {"format": "json"},
            "spark": settings_on(cluster, "cluster"),
            "pipelines": [
                {
                    "name": "copy",
                    "feed": {"type": "files", "path": "words.jsonl"},
                    "sql": "SELECT partition, body FROM events",
                    "sink": {"type": "log", "path": "state/copied"},
                    "batch_timeout_s": TIMEOUT_S,
                }
            ],
        }
        (folder / "host.yaml").write_text(yaml.safe_dump(settings))
        self.write()
        self._command: Command = leasehold("run", "host.yaml")
        until(lambda: self._url or self._command.process.poll() is not None, "the API listens")
        assert self._url, self._command.err

    def write(self) -> None:
        self._written += 1
        with self._words.open("a") as file:
            file.write(f'{{"word": {self._written}}}\n')

    @property
    def _url(self) -> str | None:
        return self._command.found(r'"url": "(http://[^"]+)"')

    def ask(self, path: str) -> httpx.Response:
        return httpx.get(f"{self._url}{path}", timeout=PATIENCE_S, trust_env=False)

    @property
    def problems(self) -> str:
        return " ".join(self.ask("/api/pipelines").json()["problems"])

    def metric(self, name: str) -> float:
        lines = self.ask("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"leasehold_{name}{{"))

    @property
    def waits(self) -> list[dict[str, Any]]:
        found = (host["executors_wait"] for host in self.ask("/api/hosts").json()["items"])
        return [wait for wait in found if wait is not None]

    def waits_longer_than_a_batch_may_take(self) -> bool:
        now = datetime.now(UTC)
        return any((now - datetime.fromisoformat(wait["since"])).total_seconds() > 2 * TIMEOUT_S for wait in self.waits)

    def has_delivered_all(self) -> bool:
        return self.metric("events_delivered_total") == self._written

    @property
    def failures(self) -> list[str]:
        return [line for line in self._command.err.splitlines() if '"level": "error"' in line]


@pytest.fixture
def empty_cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    """A master whose workers are not there yet."""
    cluster = SparkCluster(tmp_path)
    try:
        cluster.master.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with running(tmp_path, connect=False) as cluster:
        yield cluster


def driver_of(engine: SparkEngine) -> tuple[int, str]:
    """Its process, and what its cluster calls the application."""
    running = engine.running()
    assert running.process is not None
    return running.process.pid, running.session.sparkContext.applicationId


@pytest.mark.parametrize("conf", [{}, ALLOCATION], ids=["as always", "dynamic allocation"])
async def test_a_job_runs_when_executors_come_with_the_same_driver(
    empty_cluster: SparkCluster,
    batch: MakeBatch,
    conf: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leasehold.pipeline.spark.waiting.REPORTED_S", 1.0)
    caplog.set_level(logging.INFO, "leasehold")
    engine = engine_on(empty_cluster, "cluster", **conf)
    transform = SparkTransform(engine, "tried", sql=SQL)
    preparing = asyncio.create_task(transform.prepare())
    try:
        assert "(its master has no workers)" in await until_it_waits(transform, preparing)
        driver = driver_of(engine)
        for worker in empty_cluster.workers:
            worker.start()
        await preparing
        output = await transform.apply(batch("0", keyed("a")))
        assert output.column("key").to_pylist() == ["a"]
        assert driver_of(engine) == driver
        assert transform.executors_wait is None
        shown = [record.message for record in caplog.records if record.name.startswith("leasehold")]
        assert shown[:1] == ["waiting for executors"]
        assert shown[-1:] == ["no longer waiting for executors"]
    finally:
        preparing.cancel()
        await asyncio.wait({preparing})
        await transform.close()


async def test_workers_that_are_lost_and_come_back_keep_the_driver(cluster: SparkCluster, batch: MakeBatch) -> None:
    engine = engine_on(cluster, "cluster")
    async with prepared(engine, sql=SQL) as transform:
        await transform.apply(batch("0", keyed("a")))
        driver = driver_of(engine)
        for worker in cluster.workers:
            worker.kill()
        working = asyncio.create_task(transform.apply(batch("0", keyed("b"))))
        await until_it_waits(transform, working)
        for worker in cluster.workers:
            worker.start()
        assert (await working).column("key").to_pylist() == ["b"]
        assert driver_of(engine) == driver


@pytest.mark.parametrize("kind", ["cluster", "connect"])
async def test_a_job_whose_workers_are_lost_while_its_task_runs_waits_for_others(
    kind: str, request: pytest.FixtureRequest, batch: MakeBatch, function: Write, tmp_path: Path
) -> None:
    """A Connect server counts the lost task as completed."""
    if kind == "connect":
        request.getfixturevalue("connect")
    runs = tmp_path / "runs"
    with running(tmp_path, connect=kind == "connect") as cluster:
        engine = engine_on(cluster, kind)
        async with prepared(engine, function=function(waiting_once(runs))) as transform:
            driver = engine.running()
            working = asyncio.create_task(transform.apply(batch("0", keyed("w"))))
            await until_async(lambda: runs.exists() or working.done())
            for worker in cluster.workers:
                worker.kill()
            await until_it_waits(transform, working)
            for worker in cluster.workers:
                worker.start()
            assert (await working).column("key").to_pylist() == ["w"]
            assert engine.running() is driver
            assert transform.executors_wait is None


async def test_a_master_that_is_away_while_a_job_waits_is_noticed(
    cluster: SparkCluster, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.pipeline.spark.watch.SILENT_S", 12.0)
    engine = engine_on(cluster, "cluster")
    async with prepared(engine, sql=SQL) as transform:
        await transform.apply(batch("0", keyed("a")))
        for part in (*cluster.workers, cluster.master):
            part.kill()
        try:
            with pytest.raises(EngineUnavailable, match="has not answered for 12 s: the next batch starts another"):
                await transform.apply(batch("0", keyed("b")))
        finally:
            for part in (cluster.master, *cluster.workers):
                part.start()


def test_a_host_shows_its_wait_from_its_start_and_counts_no_failure(
    empty_cluster: SparkCluster, tmp_path: Path, leasehold: Commands
) -> None:
    host = Waiting(empty_cluster, tmp_path, leasehold)
    until(lambda: "executors" in host.problems, "the host shows while it starts that it waits")
    assert "Spark" in host.ask("/health/ready").text
    for waited_s in (0, AWAY_S / 3, AWAY_S * 2 / 3, AWAY_S):
        until(
            lambda waited_s=waited_s: host.metric("executors_wait_seconds") > waited_s, f"it has waited {waited_s:g} s"
        )
    for worker in empty_cluster.workers:
        worker.start()
    until(host.has_delivered_all, "the host has delivered what waited")
    for worker in empty_cluster.workers:
        worker.kill()
    host.write()
    until(host.waits_longer_than_a_batch_may_take, "a batch waits for longer than it may take")
    assert "executors" in host.problems
    assert host.failures == []
    for worker in empty_cluster.workers:
        worker.start()
    until(host.has_delivered_all, "the host has delivered what waited in the middle of its work")
    until(lambda: not host.waits, "the wait is over")
    assert host.failures == []
