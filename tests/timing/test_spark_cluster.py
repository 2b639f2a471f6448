"""How soon hosts work again, or end, when parts of a standalone cluster and of its Connect server are gone or stand still."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest
from cluster.engines import SQL, applied_again, engine_on, far_driver, prepared, waiting
from jobs import PER_KEY, MakeBatch, Write, keyed
from lab.servers.spark_cluster import SparkCluster
from patience import until_async

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark import watch

pytestmark = pytest.mark.timeout(300)

BACK_S = 60
"""docs: a host works again within a minute after the part is back."""
RESTARTS_MAX = 5
CLOSED_S = 15.0
"""Well below the 33 s after which a call to a server that stands still fails by itself."""


async def test_a_connect_server_that_was_restarted_has_new_sessions(
    connect: str, own_cluster: SparkCluster, batch: MakeBatch, function: Write
) -> None:
    """It knows none of the sessions of before, nor their modules."""
    engine = engine_on(own_cluster, connect)
    async with prepared(engine, function=function(PER_KEY.format(body="pass"))) as transform:
        await transform.apply(batch("0", keyed("a")))
        own_cluster.connect.kill()
        began = time.monotonic()
        with pytest.raises(EngineUnavailable, match=r"'sc://127.0.0.1:\d+' cannot be used: .*onnect"):
            await transform.apply(batch("0", keyed("b")))
        assert time.monotonic() - began < 20
        own_cluster.connect.start()
        output = await applied_again(lambda: transform.apply(batch("0", keyed("c"))))
        assert output.column("key").to_pylist() == ["c"]


async def test_a_connect_server_that_was_restarted_between_batches_is_used_again(
    connect: str, own_cluster: SparkCluster, batch: MakeBatch
) -> None:
    """The first call finds a server that does not know the session, if no call has met its absence.

    Spark's client releases a job a little after its end. If that meets the absence, the channel pauses, and refuses the next one.
    """
    lost = "has lost this host's session"
    async with prepared(engine_on(own_cluster, connect), sql=SQL) as transform:
        for _ in range(RESTARTS_MAX):
            await transform.apply(batch("0", keyed("a")))
            own_cluster.connect.kill()
            own_cluster.connect.start()
            began = time.monotonic()
            with pytest.raises(EngineUnavailable, match=f"{lost}|Connection refused") as refused:
                await transform.apply(batch("0", keyed("b")))
            assert (await applied_again(lambda: transform.apply(batch("0", keyed("c"))))).num_rows == 1
            assert time.monotonic() - began < BACK_S
            if lost in str(refused.value):
                break
    assert lost in str(refused.value)


async def test_a_transform_is_closed_while_its_connect_server_stands_still_under_a_job(
    connect: str, own_cluster: SparkCluster, batch: MakeBatch, function: Write, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    try:
        async with prepared(engine_on(own_cluster, connect), function=function(waiting(started, 20))) as transform:
            hung = asyncio.create_task(transform.apply(batch("0", keyed("w"))))
            await until_async(started.exists)
            own_cluster.connect.send(signal.SIGSTOP)
            began = time.monotonic()
        assert time.monotonic() - began < CLOSED_S
        with pytest.raises(EngineUnavailable, match="closed"):
            await hung
    finally:
        own_cluster.connect.send(signal.SIGCONT)


async def test_a_driver_that_the_master_has_forgotten_starts_again_soon(
    own_cluster: SparkCluster, batch: MakeBatch
) -> None:
    """A master that was restarted connects to the driver. If that connection ends, it removes the application."""
    async with (
        far_driver() as (conf, commands, _),
        prepared(engine_on(own_cluster, "cluster", **conf), sql=SQL) as transform,
    ):
        await transform.apply(batch("0", keyed("a")))
        own_cluster.master.kill()
        own_cluster.master.start()
        await until_async(lambda: "re-registered" in own_cluster.master.said)
        commands.cut()
        await until_async(lambda: "Removing app" in own_cluster.master.said)
        commands.mend()
        began = time.monotonic()
        with pytest.raises(EngineUnavailable, match=r"no longer knows this host's application.*: the next batch"):
            await transform.apply(batch("0", keyed("b")))
        assert time.monotonic() - began < watch.SILENT_S - watch.ASK_S
        output = await applied_again(lambda: transform.apply(batch("0", keyed("c"))))
        assert output.column("key").to_pylist() == ["c"]
