"""Our wire servers as processes of their own, and the client of their control ports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from patience import PATIENCE_S

TESTS = Path(__file__).parent


class Orders:
    """Orders to a server; tests/lab/servers/README.md says what they do. Raises ValueError for what it refuses."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False)

    def order(self, name: str, **what: Any) -> Any:
        response = self._http.post(name, json={name: value for name, value in what.items() if value is not None})
        if response.status_code != 200:
            raise ValueError(response.json()["error"])
        return response.json()

    def fault(self, do: str, of: str, **more: Any) -> int:
        return int(self.order("fault", do=do, of=of, **more)["number"])

    def heal(self, number: int | None = None) -> None:
        self.order("heal", number=number)

    def faults(self) -> list[dict[str, Any]]:
        return list(self.order("faults"))

    def move_clock(self, seconds: float) -> None:
        self.order("clock", move_s=seconds)

    def reset(self) -> None:
        self.order("reset")


@contextmanager
def served(module: str, *arguments: str) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """What a server says of itself once it serves, and its process, which ends with this one at the latest."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", module, "--with-parent", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline()), process
    finally:
        process.terminate()
        try:
            process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:  # on a machine that is busy with other things
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()
