"""A Spark cluster of processes, from the PySpark that is installed: a standalone master, its workers, and a Connect server.

Any of them can be killed, frozen and started again at its address, as a cluster's own supervisor does.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pyspark

HOST = "127.0.0.1"
HOME = Path(pyspark.__file__).parent
"""The Spark of the PySpark that is installed."""
READY_S = 120
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
DEPLOY = "org.apache.spark.deploy"
MEMORY = "512m"
"""Of each executor. Spark refuses less than 450 MiB."""


class NotReady(Exception):
    """A part of the cluster ended, or was not ready in time. The message has what it wrote last."""


class Part:
    """One process and its descendants, as it is started again and again. ready: pattern of what it writes once it works."""

    def __init__(self, name: str, command: list[str], ready: str, log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._command = command
        self._ready = ready
        self._log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._family: set[psutil.Process] = set()
        self._from = 0

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        """Since its last start."""
        return self._log.read_bytes()[self._from :].decode(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Returns when it works. Raises NotReady."""
        self._from = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **self._environment}
            )
        until = time.monotonic() + READY_S
        while not re.search(self._ready, self.said):
            if not self.is_up or time.monotonic() > until:
                raise NotReady(f"{self.name}: {self.said[-2000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """With its descendants, as a machine that is gone."""
        self._note()
        for each in self._family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(self._family, 10)
        if self._process is not None:
            self._process.wait(10)
        self._family.clear()

    def send(self, number: signal.Signals) -> None:
        self._note()
        for each in self._family:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def executors(self) -> list[psutil.Process]:
        """Of a worker."""
        self._note()
        return [each for each in self._family if _is_executor(each)]

    def _note(self) -> None:
        if self._process is not None:
            with suppress(psutil.NoSuchProcess):
                own = psutil.Process(self._process.pid)
                self._family |= {own, *own.children(recursive=True)}
        self._family = {each for each in self._family if each.is_running()}


def _is_executor(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    return False


class SparkCluster:
    """recovers: whether the master keeps its applications and workers in files, so that one that is started again knows them.

    driver_at: the address at which executors look for the driver of the Connect server, at `driver_ports`.
    home: the Spark of the master and the Connect server. of_workers: that of the workers, and so of executors; `home` if None.
    workers: without any, the Connect server runs its tasks itself, and needs no master.
    ports: of the master and the Connect server; free ones if None. environment: of all processes, and so of executors.
    """

    def __init__(
        self,
        directory: Path,
        *,
        workers: int = 2,
        recovers: bool = True,
        driver_at: str = HOST,
        home: Path = HOME,
        of_workers: Path | None = None,
        ports: tuple[int, int] | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._directory = directory
        self._home, self._of_workers = home, of_workers or home
        self._environment = environment
        self.ports = ports or (free_port(), free_port())
        self._master_port, self.connect_port = self.ports
        self._driver_at, self.driver_ports = driver_at, (free_port(), free_port())
        kept = directory / "master"
        kept.mkdir()
        recovery = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={kept}" if recovers else ""
        self.master = self._part(
            "master",
            [*_class(home, "master.Master"), "--port", str(self._master_port), "--webui-port", str(free_port())],
            "New state: ALIVE|resuming operations",
            {"SPARK_MASTER_OPTS": f"-Dspark.master.rest.enabled=false {recovery}"},
            home,
        )
        self.workers = [self._worker(number) for number in range(workers)]
        self.connect = self._part(
            "connect",
            self._connect_command(self.master_url if workers else "local[2]"),
            "Spark Connect server started at",
            {},
            home,
        )

    @property
    def master_url(self) -> str:
        return f"spark://{HOST}:{self._master_port}"

    @property
    def connect_url(self) -> str:
        return f"sc://{HOST}:{self.connect_port}"

    @property
    def knows_connect(self) -> bool:
        """Whether the master still has the application that the Connect server registered last."""
        written = self._directory.joinpath("master.log").read_text(errors="replace")
        applications = re.findall(r"Registered app \S+SparkConnectServer with ID (\S+)", written)
        ignored = written.rfind("Attempted to re-register") > written.rfind("Launching executor")
        return bool(applications) and f"Removing app {applications[-1]}" not in written and not ignored

    @property
    def parts(self) -> list[Part]:
        return [self.master, *self.workers, self.connect]

    def open(self, *, connect: bool) -> None:
        self.master.start()
        for worker in self.workers:
            worker.start()
        if connect:
            self.connect.start()

    def close(self) -> None:
        for part in self.parts:
            part.kill()

    def _worker(self, number: int) -> Part:
        scratch = self._directory / f"worker-{number}"
        scratch.mkdir()
        # A port of its own for each start, as a pod has an address of its own: what a recovering master sends to the address of a
        # worker that died would reach the next one, and stop it from registering (MasterChanged).
        options = ["--port", "0", "--webui-port", "0", "--work-dir", str(scratch)]
        return self._part(
            f"worker-{number}",
            [*_class(self._of_workers, "worker.Worker"), *options, "--cores", "4", "--memory", "4g", self.master_url],
            "Successfully registered with master",
            {},
            self._of_workers,
        )

    def _connect_command(self, master: str) -> list[str]:
        conf = {
            "spark.connect.grpc.binding.port": str(self.connect_port),
            "spark.connect.grpc.binding.address": HOST,
            "spark.driver.host": self._driver_at,
            "spark.driver.bindAddress": HOST,
            "spark.driver.port": str(self.driver_ports[0]),
            "spark.driver.blockManager.port": str(self.driver_ports[1]),
            "spark.executor.memory": MEMORY,
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }
        settings = [text for name, value in conf.items() for text in ("--conf", f"{name}={value}")]
        submit = str(self._home / "bin" / "spark-submit")
        return [submit, "--master", master, "--class", CONNECT, *settings, "spark-internal"]

    def _part(self, name: str, command: list[str], ready: str, environment: Mapping[str, str], home: Path) -> Part:
        usual = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "768m" if name == "connect" else "256m",  # Connect's, too, whatever its settings say
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_NO_DAEMONIZE": "1",
            # Executors inherit it. More than half of the CPU time of such a cluster's start is saved by it.
            "JDK_JAVA_OPTIONS": os.environ.get("SPARK_SUBMIT_OPTS", ""),
        }
        log = self._directory / f"{name}.log"
        return Part(name, command, ready, log, {**usual, **self._environment, **environment})


def _class(home: Path, name: str) -> list[str]:
    return [str(home / "bin" / "spark-class"), f"{DEPLOY}.{name}", "--host", HOST]


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def running(directory: Path, *, connect: bool, **options: Any) -> Iterator[SparkCluster]:
    """options: of SparkCluster."""
    cluster = SparkCluster(directory, **options)
    try:
        cluster.open(connect=connect)
        yield cluster
    finally:
        cluster.close()
