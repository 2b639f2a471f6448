"""What a benchmark promises, says and writes: figures beside their targets, from one run."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

RESULT = Path(__file__).parents[2] / "build" / "bench.json"


@dataclass(frozen=True, slots=True)
class Target:
    """What is promised of a figure: of the ratio of ours to theirs, or of the figure itself."""

    figure: str
    unit: str
    bound: float
    is_at_least: bool

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.is_at_least else value <= self.bound

    @property
    def words(self) -> str:
        return f"{'>=' if self.is_at_least else '<='} {self.bound:g}"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def machine() -> dict[str, object]:
    return {
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "spark": version("pyspark"),
    }


def write(result: Mapping[str, object]) -> None:
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


def add(name: str, result: Mapping[str, object]) -> None:
    """Beside what is written there."""
    present = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    write({**present, name: result})
