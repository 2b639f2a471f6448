"""Engines on a cluster or a Connect server, and what is asked of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from jobs import PER_KEY
from lab.scenarios.chaos_wire import Wire
from lab.servers.spark_cluster import HOST, SparkCluster, free_port
from patience import until_async
from plugins_cluster import settings_on

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform

SQL = "SELECT partition, key FROM events"
AWAY_S = float(os.environ.get("EXECUTORS_AWAY_S", "0"))
"""How long executors stay away beyond the moment in which a job is seen to wait for them."""


def engine_on(cluster: SparkCluster, kind: str, **conf: str) -> SparkEngine:
    settings: dict[str, Any] = settings_on(cluster, kind)
    if conf:
        settings["conf"] = settings.get("conf", {}) | {name.replace("_", "."): value for name, value in conf.items()}
    return SparkEngine(**settings)


@asynccontextmanager
async def prepared(engine: SparkEngine, **spec: Any) -> AsyncIterator[SparkTransform]:
    transform = SparkTransform(engine, "tried", **spec)
    try:
        await transform.prepare()
        yield transform
    finally:
        await transform.close()


def waiting(marker: Path, seconds: int) -> str:
    """A function whose worker creates the marker for the key `w`, and takes so long for it then."""
    return PER_KEY.format(
        body=f"key == 'w' and (open({str(marker)!r}, 'w').close(), __import__('time').sleep({seconds}))"
    )


def waiting_once(marker: Path) -> str:
    """As `waiting`, but only the first worker waits, for longer than any test. The next one finds the marker."""
    path = repr(str(marker))
    waits = f"(open({path}, 'w').close(), __import__('time').sleep(600))"
    return PER_KEY.format(body=f"key == 'w' and not __import__('os').path.exists({path}) and {waits}")


async def until_it_waits(transform: SparkTransform, work: asyncio.Task[object]) -> str:
    """Why, according to what is shown. work: what waits; raises its error if it does not, AWAY_S later too."""
    await until_async(lambda: transform.executors_wait is not None or work.done())
    await asyncio.wait({work}, timeout=AWAY_S)
    if work.done():
        work.result()
    wait = transform.executors_wait
    assert wait is not None
    return wait.why


async def applied_again(apply: Apply) -> pa.Table:
    """As a host does: what Spark's absence has failed is tried again."""
    outputs: list[pa.Table] = []

    async def is_applied() -> bool:
        with suppress(EngineUnavailable):
            outputs.append(await apply())
        return bool(outputs)

    await until_async(is_applied)
    return outputs[0]


@asynccontextmanager
async def far_driver() -> AsyncIterator[tuple[dict[str, str], Wire, Wire]]:
    """Settings of a driver that executors and masters reach through two wires: to its own port, and to its block manager."""
    ports = {"spark_driver_port": free_port(), "spark_driver_blockManager_port": free_port()}
    wires = [Wire((HOST, port)) for port in ports.values()]
    conf = {
        "spark_driver_host": FAR,
        "spark_driver_bindAddress": HOST,
        **{name: str(port) for name, port in ports.items()},
    }
    try:
        for wire, port in zip(wires, ports.values(), strict=True):
            await wire.listen((FAR, port))
        yield conf, wires[0], wires[1]
    finally:
        for wire in wires:
            wire.close()


FAR = "127.0.0.2"
"""Where executors look for the driver, if the way there can be cut."""


Apply = Callable[[], Awaitable[pa.Table]]
