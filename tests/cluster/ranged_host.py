"""A host whose Spark reads ranges: a process of its own, because Spark's environment is that of its start."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
from patience import PATIENCE_S, until_async
from pyspark import cloudpickle

from leasehold.common.azure import cosmos_account_of
from leasehold.pipeline.connectors.cosmos import CosmosChangeFeed
from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.ranges import RangedBatch
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform

VARIABLE = "LEASEHOLD_TEST_EXECUTORS_SECRET"


async def main(kind: str, account: dict[str, str], sql: str, events_max: int, range_events: int) -> None:
    """Plan, wait for a line, let executors read; then print their rows, and all that Spark got from this process."""
    engine = SparkEngine(driver_memory="512m")
    transform = SparkTransform(engine, "ranges", sql=sql)
    await transform.prepare()
    feed = feed_of(kind, os.environ.pop(VARIABLE), **account)  # from here on, only Spark's environment has it
    batch = RangedBatch("0", 1, tuple(await feed.plan_ranges("0", None, events_max, range_events)), 0.0)
    reader = feed.range_reader()
    assert reader is not None
    await feed.close()
    print("planned", flush=True)  # noqa: T201  # for the test
    await asyncio.to_thread(sys.stdin.readline)
    table, _ = await transform.apply_ranges(batch, reader, None)
    own = transform._job._runs.own
    assert own is not None
    conf = {**dict(own.session.sparkContext.getConf().getAll()), **own.session.conf.getAll}
    sent = {"conf": conf, "task": cloudpickle.dumps(reader).decode("latin-1")}
    print(json.dumps({"rows": table.to_pylist(), "ranges": len(batch.ranges), "sent": sent}))  # noqa: T201
    await transform.close()


def feed_of(kind: str, secret: str, **account: str) -> EventHubsChangeFeed | CosmosChangeFeed:
    if kind == "eventhubs":
        hub = account_of(connection_string=secret, **account)
        return EventHubsChangeFeed(hub, executors_group="sinks", executors_env=VARIABLE)
    container = account.pop("container")
    return CosmosChangeFeed(cosmos_account_of(key=secret, **account), "bank", container, executors_env=VARIABLE)


async def read_in_spark(
    *arguments: Any, secret: str, key: str, port: int, hold: Callable[[], Any]
) -> tuple[list[dict[str, Any]], int]:
    """The rows and the number of ranges. Verifies that only Python workers read, and that the key stays in the environment.

    arguments: of `main`. secret: what the variable holds. port: of the feed's server. hold: slows that down, to watch who reads.
    """
    host = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cluster.ranged_host", json.dumps(arguments)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), VARIABLE: secret},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    commands: dict[int, str] = {}
    readers: set[int] = set()
    try:
        assert host.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await host.stdout.readline() == b"planned\n"
        hold()
        ended = asyncio.create_task(host.communicate(b"\n"))

        async def has_ended() -> bool:
            await asyncio.to_thread(look, host.pid, port, commands, readers)
            return ended.done()

        await until_async(has_ended)
        found = json.loads((await ended)[0])
    finally:
        if host.returncode is None:
            host.kill()
    assert {"pyspark.daemon" in commands[pid] for pid in readers} == {True}, "read by none, or by another process"
    assert any("org.apache.spark.deploy.SparkSubmit" in command for command in commands.values())
    assert not [command for command in commands.values() if key in command]
    assert found["sent"]["conf"]["spark.master"] == "local[2]"
    assert not [name for name, value in found["sent"]["conf"].items() if key in value]
    assert key not in found["sent"]["task"]
    return found["rows"], found["ranges"]


def look(host: int, port: int, commands: dict[int, str], readers: set[int]) -> None:
    """Note the command lines of a host and of all processes below it, and which of them are connected to a port."""
    with suppress(psutil.NoSuchProcess):
        for process in (psutil.Process(host), *psutil.Process(host).children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                commands[process.pid] = " ".join(process.cmdline()) or commands.get(process.pid, "")
                if any(each.raddr and each.raddr.port == port for each in process.net_connections("tcp")):
                    readers.add(process.pid)


if __name__ == "__main__":
    asyncio.run(main(*json.loads(sys.argv[1])))
