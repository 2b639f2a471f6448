"""Transforms on a standalone cluster and on a Connect server: parts that die, stand still and come back, and what is missing."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from cluster.engines import SQL, applied_again, engine_on, far_driver, prepared, waiting
from jobs import PER_KEY, MakeBatch, Write, keyed
from lab.servers.spark_cluster import SparkCluster
from patience import CHANCE_S, PATIENCE_S, until_async
from pyspark.sql.connect.dataframe import DataFrame

from leasehold.pipeline.errors import EngineUnavailable, PipelineError, TransformError
from leasehold.pipeline.spark.engine import SparkEngine

pytestmark = pytest.mark.timeout(300)

STILL_S = 12.0


@pytest.fixture(params=["cluster", "connect"])
def kind(request: pytest.FixtureRequest) -> str:
    """`make test` asks over Connect, and `make cluster` on both."""
    return str(request.getfixturevalue("connect") if request.param == "connect" else request.param)


@pytest.fixture(params=["cluster", "connect"])
def every_kind(request: pytest.FixtureRequest) -> str:
    """Both, in `make test` too."""
    return str(request.getfixturevalue("connect") if request.param == "connect" else request.param)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standing still is noticed sooner."""
    monkeypatch.setattr("leasehold.pipeline.spark.runs.ANSWER_S", STILL_S)


async def test_events_go_through_a_query_and_back(own_cluster: SparkCluster, every_kind: str, batch: MakeBatch) -> None:
    async with prepared(
        engine_on(own_cluster, every_kind), sql="SELECT partition, upper(key) AS key FROM events"
    ) as transform:
        assert (await transform.apply(batch("0", keyed("ab")))).column("key").to_pylist() == ["A", "B"]


async def test_jobs_at_one_time_see_their_own_events(
    own_cluster: SparkCluster, connect: str, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share a session and the name of its view, which a Connect server looks up when a query runs."""
    views: list[str] = []
    has_second = threading.Event()
    create, collect = DataFrame.createOrReplaceTempView, DataFrame.toArrow

    def note_view(frame: DataFrame, name: str) -> None:
        create(frame, name)
        views.append(name)
        if len(views) == 2:
            has_second.set()

    def collect_late(frame: DataFrame) -> pa.Table:
        has_second.wait(CHANCE_S)  # for the view of the other job, if it does not wait for this one
        return collect(frame)

    async with prepared(engine_on(own_cluster, connect), sql="SELECT partition, key FROM events ORDER BY key") as own:
        assert own.checked is not None
        assert not own.checked.shares_jobs
        monkeypatch.setattr(DataFrame, "createOrReplaceTempView", note_view)
        monkeypatch.setattr(DataFrame, "toArrow", collect_late)
        outputs = await asyncio.gather(*(own.apply(batch(each, keyed("ab"))) for each in "12"))
    assert views == ["events", "events"]
    assert [output.column("partition").to_pylist() for output in outputs] == [["1", "1"], ["2", "2"]]


async def test_a_function_has_its_module_in_the_workers(
    own_cluster: SparkCluster, kind: str, batch: MakeBatch, function: Write
) -> None:
    async with prepared(
        engine_on(own_cluster, kind), function=function(PER_KEY.format(body="key = key + __name__[:10]"))
    ) as transform:
        assert (await transform.apply(batch("0", keyed("a")))).column("key").to_pylist() == ["atransforms"]


async def test_a_function_that_failed_does_not_fail_the_jobs_of_others(
    own_cluster: SparkCluster, kind: str, batch: MakeBatch, function: Write
) -> None:
    """Executors fetch the modules of all pipelines before their next task, those of pipelines that have ended too."""
    engine = engine_on(own_cluster, kind)
    async with prepared(engine, sql=SQL) as transform:
        with pytest.raises(TransformError, match="no such column"):
            async with prepared(
                engine, function=function("def transform(events):\n    raise ValueError('no such column')")
            ):
                pass
        gc.collect()
        assert (await transform.apply(batch("0", keyed("ab")))).column("key").to_pylist() == ["a", "b"]


async def test_a_module_that_workers_lack_is_not_the_events_fault(
    own_cluster: SparkCluster, kind: str, batch: MakeBatch, function: Write
) -> None:
    async with prepared(
        engine_on(own_cluster, kind), function=function(PER_KEY.format(body="import nowhere_at_all"))
    ) as transform:
        with pytest.raises(TransformError, match="No module named 'nowhere_at_all': install it where Spark's Python"):
            await transform.apply(batch("0", keyed("a")))


async def test_a_query_that_cannot_work_says_why(own_cluster: SparkCluster, kind: str) -> None:
    with pytest.raises(TransformError, match="`bdoy` cannot be resolved"):
        async with prepared(engine_on(own_cluster, kind), sql="SELECT partition, bdoy FROM events"):
            pass


async def test_a_job_that_nobody_wants_ends_on_the_cluster(
    own_cluster: SparkCluster, kind: str, batch: MakeBatch, function: Write, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    async with prepared(engine_on(own_cluster, kind), function=function(waiting(started, 600))) as transform:
        hung = asyncio.create_task(transform.apply(batch("0", keyed("w"))))
        await until_async(started.exists)
        hung.cancel()
        async with asyncio.timeout(PATIENCE_S):  # and not the 600 s of the function
            with pytest.raises(asyncio.CancelledError):
                await hung
            assert (await transform.apply(batch("0", keyed("a")))).column("key").to_pylist() == ["a"]


# A Connect server


async def test_a_connect_server_that_answers_no_call_is_given_up(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections, unlike one that stands still."""
    monkeypatch.setattr("leasehold.pipeline.spark.connect.FIRST_ANSWER_S", 2.0)
    with (
        silent_server() as port,
        pytest.raises(EngineUnavailable, match=rf"'sc://127.0.0.1:{port}' cannot be used: it has not answered for 2 s"),
    ):
        async with prepared(SparkEngine(remote=f"sc://127.0.0.1:{port}"), sql=SQL):
            pass


@contextmanager
def silent_server() -> Iterator[int]:
    """A server of gRPC whose calls have no answer; its port."""
    ends = threading.Event()

    class Silence(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: ends.wait())

    server = grpc.server(ThreadPoolExecutor(2), handlers=[Silence()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        ends.set()
        server.stop(0).wait()


async def test_a_connect_server_killed_under_a_job_blames_nobody(
    connect: str, own_cluster: SparkCluster, batch: MakeBatch, function: Write, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    async with prepared(engine_on(own_cluster, connect), function=function(waiting(started, 600))) as transform:
        hung = asyncio.create_task(transform.apply(batch("0", keyed("w"))))
        await until_async(started.exists)
        own_cluster.connect.kill()
        with pytest.raises(EngineUnavailable, match="cannot be used"):
            await hung
        own_cluster.connect.start()
        assert (await applied_again(lambda: transform.apply(batch("0", keyed("c"))))).num_rows == 1


@pytest.mark.usefixtures("impatient")
async def test_a_connect_server_that_stands_still_is_given_up(
    connect: str, own_cluster: SparkCluster, batch: MakeBatch
) -> None:
    engine = engine_on(own_cluster, connect)
    async with prepared(engine, sql=SQL) as transform:
        await transform.apply(batch("0", keyed("a")))
        own_cluster.connect.send(signal.SIGSTOP)
        try:
            with pytest.raises(EngineUnavailable, match="has not answered for 12 s"):
                await transform.apply(batch("0", keyed("b")))
        finally:
            own_cluster.connect.send(signal.SIGCONT)
        assert (await applied_again(lambda: transform.apply(batch("0", keyed("c"))))).num_rows == 1


@pytest.mark.usefixtures("connect")
async def test_a_connect_server_that_is_not_there_is_named_with_the_setting() -> None:
    engine = SparkEngine(remote="sc://127.0.0.1:1/;token=secret")
    with pytest.raises(
        EngineUnavailable, match=r"'sc://127.0.0.1:1' cannot be used: .*: start it, or correct"
    ) as caught:
        async with prepared(engine, sql=SQL):
            pass
    assert "secret" not in str(caught.value)


# Executors


async def test_an_executor_that_dies_under_a_job_costs_nothing(
    own_cluster: SparkCluster, kind: str, batch: MakeBatch, function: Write, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    async with prepared(engine_on(own_cluster, kind), function=function(waiting(started, 3))) as transform:
        working = asyncio.create_task(applied_again(lambda: transform.apply(batch("0", keyed("w")))))
        await until_async(started.exists)
        for worker in own_cluster.workers:
            for executor in worker.executors():
                executor.kill()
        assert (await working).column("key").to_pylist() == ["w"]


async def test_a_cluster_without_workers_is_given_up_in_the_end_and_used_again(
    own_cluster: SparkCluster, kind: str, batch: MakeBatch
) -> None:
    engine = engine_on(own_cluster, kind)
    engine.cluster.wait_s = STILL_S
    async with prepared(engine, sql=SQL) as transform:
        await transform.apply(batch("0", keyed("a")))
        for worker in own_cluster.workers:
            worker.kill()
        with pytest.raises(
            EngineUnavailable, match=r"^after 12 s .*no executor of the Spark cluster at .* look at the pages"
        ):
            await transform.apply(batch("0", keyed("b")))
        for worker in own_cluster.workers:
            worker.start()
        output = await applied_again(lambda: transform.apply(batch("0", keyed("c"))))
        assert output.column("key").to_pylist() == ["c"]


async def test_a_master_that_dies_and_comes_back_is_used_again(
    own_cluster: SparkCluster, every_kind: str, batch: MakeBatch
) -> None:
    engine = engine_on(own_cluster, every_kind)
    async with prepared(engine, sql=SQL) as transform:
        await transform.apply(batch("0", keyed("a")))
        own_cluster.master.kill()
        outcome: list[pa.Table | PipelineError] = []
        try:
            outcome.append(await transform.apply(batch("0", keyed("b"))))  # executors work on without it
        except EngineUnavailable as error:
            outcome.append(error)
        own_cluster.master.start()
        assert outcome
        output = await applied_again(lambda: transform.apply(batch("0", keyed("c"))))
        assert output.column("key").to_pylist() == ["c"]


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        (
            {"spark_driver_host": "192.0.2.1", "spark_driver_bindAddress": "127.0.0.1"},
            r"executors cannot reach the driver \(`spark.driver.host`",
        ),
        ({"spark_executor_memory": "64g"}, "Cores or memory may be short there"),
    ],
    ids=["the driver is out of reach", "the cluster is full"],
)
async def test_a_job_without_an_executor_says_what_may_be_wrong(
    own_cluster: SparkCluster, conf: dict[str, str], words: str
) -> None:
    engine = engine_on(own_cluster, "cluster", **conf)
    engine.cluster.wait_s = STILL_S
    with pytest.raises(EngineUnavailable, match=words):
        async with prepared(engine, sql=SQL):
            pass


async def test_blocks_out_of_reach_are_no_fault_of_events_and_cost_no_start(
    own_cluster: SparkCluster, batch: MakeBatch
) -> None:
    """Executors get tasks through the driver's port, and fetch their code from its block manager."""
    patience = {
        "spark_task_maxFailures": "1",
        "spark_shuffle_io_maxRetries": "1",
        "spark_shuffle_io_retryWait": "100ms",
    }
    async with far_driver() as (conf, _, blocks):
        engine = engine_on(own_cluster, "cluster", **conf, **patience)
        async with prepared(engine, sql=SQL) as transform:
            await transform.apply(batch("0", keyed("a")))
            driver = engine.running()
            blocks.cut()
            with pytest.raises(
                EngineUnavailable,
                match=rf"'{own_cluster.master_url}' could not run the job: .*`spark.blockManager.port`",
            ):
                await transform.apply(batch("0", keyed("b")))
            blocks.mend()
            output = await applied_again(lambda: transform.apply(batch("0", keyed("c"))))
            assert output.column("key").to_pylist() == ["c"]
            assert engine.running() is driver
