"""What a benchmark promises, says and writes: figures beside their targets, from one run.

A part measures something and ends with `finish`, which writes build/bench/PART.json. The runner (`bench.py`) makes one table of
all parts.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from math import nan
from pathlib import Path

ROOT = Path(os.environ.get("BENCH_ROOT") or Path(__file__).parents[3])
BUILD, DOCS = ROOT / "build", ROOT / "docs"
PARTS = BUILD / "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table.

    others: what others do in the same run, by their names. beside: the one of them that ours is divided by for `value`; None if
    ours is the value. cpu_us: CPU time an event in microseconds, by side, over all processes that belong to the measurement.
    bound: the least that `value` may be; the most if is_most; None where nothing is promised.
    """

    name: str
    unit: str
    ours: float
    others: Mapping[str, float] = field(default_factory=dict)
    beside: str | None = None
    cpu_us: Mapping[str, float] = field(default_factory=dict)
    bound: float | None = None
    is_most: bool = False

    @property
    def value(self) -> float:
        if self.beside is None:
            return self.ours
        other = self.others[self.beside]
        return self.ours / other if other else nan

    @property
    def is_missed(self) -> bool:
        if self.bound is None:
            return False
        return not (self.value <= self.bound if self.is_most else self.value >= self.bound)  # a NaN misses

    @property
    def target(self) -> str:
        if self.bound is None:
            return ""
        of = "" if self.beside is None else f" of {self.beside}"
        return f"{'<=' if self.is_most else '>='} {self.bound:g}{of}"


HEADER = ("figure", "unit", "Leasehold", "others", "ratio", "CPU us/event", "target", "")


def cells(figure: Figure) -> tuple[str, ...]:
    """A line of the table, as texts in the order of HEADER."""
    ratio = "" if figure.beside is None else f"{figure.value:.2f} of {figure.beside}"
    return (
        figure.name,
        figure.unit,
        number(figure.ours),
        ", ".join(f"{name} {number(value)}" for name, value in figure.others.items()),
        ratio,
        ", ".join(f"{name} {value:.1f}" for name, value in figure.cpu_us.items()),
        figure.target,
        "missed" if figure.is_missed else "",
    )


def number(value: float) -> str:
    """With as many digits as mean something."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(figures: Iterable[Figure]) -> str:
    """For a terminal."""
    rows = [HEADER, *map(cells, figures)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


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


def finish(part: str, figures: Sequence[Figure], **detail: object) -> int:
    """Print and write what a part has found. detail: whatever explains it. Returns the exit code: 1 where a target is missed."""
    PARTS.mkdir(parents=True, exist_ok=True)
    found = {"figures": [asdict(each) for each in figures], "machine": machine(), **detail}
    (PARTS / f"{part}.json").write_text(json.dumps(found, indent=2) + "\n")
    say(f"\n{table(figures)}\n")
    return 1 if any(each.is_missed for each in figures) else 0


def read(part: str) -> dict[str, object]:
    """What the part wrote last. Raises FileNotFoundError."""
    return dict(json.loads((PARTS / f"{part}.json").read_text()))


def figures_of(found: Mapping[str, object]) -> list[Figure]:
    listed = found["figures"]
    assert isinstance(listed, list)
    return [Figure(**each) for each in listed]
