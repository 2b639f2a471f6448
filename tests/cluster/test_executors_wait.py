"""Executors that come late: the job waits for them, shows that, and runs with the driver that asked for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.engines import SQL, engine_on, prepared, until_it_waits, waiting_once
from jobs import MakeBatch, Write, keyed
from lab.servers.spark_cluster import SparkCluster, running
from patience import until_async

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform

pytestmark = pytest.mark.timeout(400)

ALLOCATION = {
    "spark_dynamicAllocation_enabled": "true",
    "spark_dynamicAllocation_minExecutors": "0",
    "spark_dynamicAllocation_shuffleTracking_enabled": "true",
    "spark_dynamicAllocation_executorIdleTimeout": "2s",
}


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
