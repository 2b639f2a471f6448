"""The sides as processes: started once, so that JVM and session are there before anything is measured, then told what to do.

A side says "ready" once its Spark runs. Then it reads commands from standard input, one JSON array a line: `["run", source, dsn,
state, way]` starts the pipeline, `["stop"]` stops it and is answered with another "ready". It ends with its input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Self

import psutil

HERE = Path(__file__).parent
ENDING_S = 30


@dataclass(frozen=True, slots=True)
class Job:
    """source: the directory of a log, or a hub's connection string. dsn: of a database with an empty table of balances. state: of
    a directory, empty as well. way: how it is done, for a side that has several ways.
    """

    source: str
    dsn: str
    state: str
    way: str = ""


class Side:
    """One of them, as the benchmark sees it."""

    def __init__(self, program: str, stderr: Path, *arguments: str) -> None:
        self._stderr = stderr.open("ab")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[2])])}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / program), *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )

    def __enter__(self) -> Self:
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, job: Job) -> None:
        self._tell(["run", *astuple(job)])

    def stop(self) -> None:
        self._tell(["stop"])
        self._answer()

    def check(self) -> None:
        """Raises RuntimeError where it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self._process.args} ended: see {self._stderr.name}")

    def _tell(self, command: list[str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()) != "ready\n":
            if not line:
                raise RuntimeError(f"{self._process.args} ended: see {self._stderr.name}")


def cpu_s(pid: int) -> float:
    """What a process and all below it have used, those that have ended included."""
    root = psutil.Process(pid)
    while True:
        below = root.children(recursive=True)
        try:  # the parent first: one that ends meanwhile would be in neither, so all is read again
            used = [process.cpu_times() for process in (root, *below)]
        except psutil.NoSuchProcess:
            continue
        return sum(each.user + each.system + each.children_user + each.children_system for each in used)


def commands() -> Iterator[Job | None]:
    """The side's end: a job to start, or None to stop the one under way, which is answered when the next is asked for."""
    answer()
    for line in sys.stdin:
        command: list[Any] = json.loads(line)
        if command[0] == "run":
            yield Job(*command[1:])
        else:
            yield None
            answer()


def answer() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
