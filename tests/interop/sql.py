"""SQL statements for spark/statements.py: a process with a Spark session."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Sql:
    """A statement at a time: `sql("SELECT 1 AS a")` is `[{"a": 1}]`. Raises RuntimeError if it fails."""

    def __init__(self, line: list[str], directory: Path) -> None:
        self._log = directory / "spark.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                line, cwd=directory, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """At the end of its input it ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def __call__(self, statement: str) -> list[dict[str, Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(statement), file=self._process.stdin, flush=True)
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"Spark ended: {self._log.read_text()[-4000:]}")
        answer = json.loads(line)
        if isinstance(answer, dict):
            raise RuntimeError(f"{statement}: {answer['error']}")
        return list(answer)
