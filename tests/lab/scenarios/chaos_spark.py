"""The Spark of chaos' hosts, and how its parts break: each host its own, a cluster, or a Connect server on a cluster."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from lab.scenarios.chaos_wire import Address, Wire
from lab.scenarios.grounds import Breakage
from lab.servers.spark_cluster import HOST, NotReady, Part, SparkCluster, free_port, running
from plugins_cluster import settings_on

FAR = "127.0.0.2"
EXECUTOR_S = 120
APART = ("master killed", "Connect server killed", "driver cut off", "driver's line stalled")
"""With a Connect server, these do not overlap, and end with a server that its master knows."""


class OwnSpark:
    """Each host's own."""

    breakages: Mapping[str, Breakage] = {}
    apart: Collection[str] = ()
    restarts = 0

    async def settings(self, directory: Path, host: str) -> dict[str, Any]:
        """Of a host that is about to start."""
        return {"driver_memory": "512m", "conf": {"spark.local.dir": str(directory / "spark")}}

    def close(self) -> None:
        """Nothing is held."""


class ClusterSpark:
    """All hosts' one. kind: cluster or connect.

    Executors reach the driver of a host, or hosts the Connect server, by wires: those of the drivers listen at FAR.
    restarts: of a Connect server that its master had forgotten.
    """

    def __init__(self, cluster: SparkCluster, kind: str) -> None:
        self._cluster = cluster
        self._kind = kind
        self.restarts = 0
        self.apart: Collection[str] = APART if kind == "connect" else ()
        self._random = random.Random(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wires: dict[str, tuple[Wire, ...]] = {}
        self.breakages: Mapping[str, Breakage] = {
            "executor killed": self._without_executors,
            "worker killed": lambda: _killed(self._random.choice(cluster.workers)),
            "master killed": partial(self._known, partial(_killed, cluster.master)),
            "Connect server killed": partial(self._known, partial(_killed, cluster.connect)),
            "Connect server frozen": partial(_frozen, cluster.connect),
            "driver cut off": partial(self._known, partial(self._broken_wire, Wire.cut)),
            "driver's line stalled": partial(self._known, partial(self._broken_wire, Wire.stall)),
        }

    async def settings(self, directory: Path, host: str) -> dict[str, Any]:
        """Of a host that is about to start. It keeps its wires, since it may start again."""
        self._loop = asyncio.get_running_loop()
        settings = settings_on(self._cluster, self._kind)
        if self._kind == "connect":
            (wire,) = await self._opened("server", [(HOST, self._cluster.connect_port)])
            await self._opened("driver", [(HOST, port) for port in self._cluster.driver_ports], at=FAR)
            return {**settings, "remote": f"sc://{HOST}:{wire.port}"}
        driver, blocks = await self._opened(host, [(HOST, free_port()), (HOST, free_port())], at=FAR)
        addresses = {
            "spark.driver.host": FAR,
            "spark.driver.bindAddress": HOST,
            "spark.driver.port": str(driver.port),
            "spark.driver.blockManager.port": str(blocks.port),
        }
        return {**settings, "conf": {**settings["conf"], **addresses}}

    async def _opened(self, name: str, addresses: Sequence[Address], at: str | None = None) -> tuple[Wire, ...]:
        """at: where they listen under the ports of their servers; by default here, anywhere."""
        if name not in self._wires:
            self._wires[name] = tuple(Wire(address) for address in addresses)
            for wire, (_, port) in zip(self._wires[name], addresses, strict=True):
                await wire.listen((HOST, 0) if at is None else (at, port))
        return self._wires[name]

    def close(self) -> None:
        for wires in self._wires.values():
            for wire in wires:
                wire.close()

    @contextmanager
    def _known(self, breakage: Breakage) -> Iterator[None]:
        """Restarts the Connect server in the end if the master has forgotten it, as its supervisor has to (docs/clusters.md).

        A master removes an application as soon as it cannot reach its driver, and one that recovers ignores an application at the
        address of another. The server does not notice, and never gets executors again. Hosts restart a driver of their own.
        """
        with breakage():
            yield
        if self._kind == "connect" and not self._cluster.knows_connect:
            self._cluster.connect.kill()
            self._cluster.connect.start()
            self.restarts += 1

    @contextmanager
    def _broken_wire(self, breaks: Callable[[Wire], None]) -> Iterator[None]:
        """Those of one host, of hosts to the server, or of executors to the server.

        Wires belong to the loop, and this runs on a thread.
        """
        assert self._loop is not None, "a host has started"
        wires = self._wires[self._random.choice(sorted(self._wires))]
        for wire in wires:
            self._loop.call_soon_threadsafe(breaks, wire)
        try:
            yield
        finally:
            for wire in wires:
                self._loop.call_soon_threadsafe(wire.mend)

    @contextmanager
    def _without_executors(self) -> Iterator[None]:
        """One, as soon as there is one: other faults may have ended them all. Raises NotReady."""
        until = time.monotonic() + EXECUTOR_S
        while not (executors := [each for worker in self._cluster.workers for each in worker.executors()]):
            if time.monotonic() > until:
                raise NotReady(f"there was no executor for {EXECUTOR_S} s")
            time.sleep(0.2)
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
def spark_of(kind: str, directory: Path, environment: Mapping[str, str]) -> Iterator[Spark]:
    """kind: local, cluster or connect. environment: of executors on a cluster."""
    if kind == "local":
        yield OwnSpark()
        return
    directory.mkdir()
    driver_at = FAR if kind == "connect" else HOST
    with running(directory, connect=kind == "connect", driver_at=driver_at, environment=environment) as cluster:
        yield ClusterSpark(cluster, kind)
