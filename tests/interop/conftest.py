"""Programs of others for `make interop`, built once: KEDA's scalers, processors of Azure's SDKs for Go and Java, Delta's Spark.

A test that needs a missing tool is skipped, and its report names the tool.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from interop.bench import Hub
from interop.sql import Sql
from plugins_eventhubs import EventHubs, running
from plugins_kafka import spark_jars
from uv import find_uv_bin

FOLDER = Path(__file__).parent
BUILD = FOLDER.parents[1] / "build" / "interop"
PORT = 5672
"""AMQP's own. The clients disagree on whether a port belongs to the name of a namespace, so there must be none."""
HOST = "127.0.0.72"
"""Another address of this machine, so that the port is free."""
NAMES = map("interop-{}".format, count())


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing: install {package}, and run `make interop` again")
    return found


def build(line: list[str], folder: Path) -> None:
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(line)} failed:\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="session")
def go() -> str:
    """The program in tests/interop/go, which `make interop` has built in sight: KEDA has a thousand dependencies."""
    line = [tool("go", "Go 1.26"), "build", "-o", str(BUILD / "go"), "."]
    build(line, FOLDER / "go")
    return str(BUILD / "go")


@pytest.fixture(scope="session")
def java() -> list[str]:
    """The command line of the program in tests/interop/java."""
    found, maven = tool("java", "Java 17"), tool("mvn", "Maven 3.8")
    tool("javac", "a JDK 17")
    build([maven, "-q", "-B", f"-DbuildDirectory={BUILD / 'java'}", "process-classes"], FOLDER / "java")
    return [found, "-cp", f"{BUILD / 'java' / 'classes'}{os.pathsep}{BUILD / 'java' / 'lib'}/*", "Consumer"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sql]:
    """Spark with the jars of Delta and of Kafka's source. Both come later than Spark's, so this one may be older than ours."""
    maven = tool("mvn", "Maven 3.8")
    tool("java", "Java 17")
    python = BUILD / "spark" / "venv" / "bin" / "python"
    build([find_uv_bin(), "venv", "--allow-existing", "--python", sys.executable, str(python.parents[1])], FOLDER)
    requirements = str(FOLDER / "spark" / "requirements.txt")
    build([find_uv_bin(), "pip", "sync", "--python", str(python), "--require-hashes", requirements], FOLDER)
    build([maven, "-q", "-B", f"-DbuildDirectory={BUILD / 'spark'}", "process-classes"], FOLDER / "spark")
    directory = tmp_path_factory.mktemp("spark")
    line = [
        str(python),
        str(FOLDER / "spark" / "statements.py"),
        f"{BUILD / 'spark' / 'lib'}/*:{spark_jars()}/*",
        str(directory),
    ]
    with Sql(line, directory) as statements:
        yield statements


@pytest.fixture(scope="session")
def namespace() -> Iterator[EventHubs]:
    with running("--host", HOST, "--port", str(PORT), "--groups", "bank") as server:
        yield server


@pytest.fixture
def hub(namespace: EventHubs, azurite: str, tmp_path: Path) -> Iterator[Hub]:
    """An empty hub of four partitions, and an empty account."""
    namespace.control.reset()
    hubs = re.sub(rf":{PORT}\b", "", namespace.connection_string)
    yield Hub(namespace.control, hubs=hubs, blobs=azurite, name=next(NAMES), folder=tmp_path)
    namespace.control.reset()
