"""`make everything`: every tier and program but the hours-long ones, one after the other, and one table of how they ended.

    python tests/everything.py [TARGET ...]

All others run even if one fails. The output of each is in build/everything/TARGET.txt. Exit code 1 if one failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build/everything"
TARGETS = (
    ("check",),
    ("test",),
    ("spark",),
    ("examples",),
    ("connectors",),
    ("lab",),
    ("timing",),
    ("matrix",),
    ("sim", "SEEDS=500"),
    ("mutants",),
    ("scenarios",),
    ("letters",),
    ("repetition",),
    ("chaos", "MINUTES=10"),
    ("cluster", "FAULTS=12"),
    ("docs",),
    ("dist",),
    ("audit",),
)
"""What `make image`, `make interop`, `make bench` and longer runs show is left to their own targets."""
COUNTS = re.compile(r"^\d+ passed, \d+ failed(?:, \d+ skipped)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    target: str
    code: int
    seconds: float
    last: str

    def __str__(self) -> str:
        return f"{self.target:16} {'passed' if self.code == 0 else 'FAILED':7} {self.seconds:7.0f} s  {self.last}"


def last_words(output: str) -> str:
    """All totals of tests that a target printed, or its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return "; ".join(COUNTS.findall(output)) or (lines[-1][:100] if lines else "")


def run(target: Sequence[str]) -> Row:
    log, began = LOGS / f"{target[0]}.txt", time.monotonic()
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    with log.open("wb") as out:
        done = subprocess.run(["make", *target], cwd=ROOT, env=environment, stdout=out, stderr=out, check=False)
    last = last_words(log.read_text(errors="replace"))
    return Row(target=target[0], code=done.returncode, seconds=time.monotonic() - began, last=last)


def chosen(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Raises SystemExit for a name that is none of the targets."""
    known = {target[0]: target for target in TARGETS}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"{', '.join(unknown)}: choose from {', '.join(known)}")
    return [known[name] for name in names] or list(TARGETS)


def main() -> int:
    LOGS.mkdir(parents=True, exist_ok=True)
    rows = []
    for target in chosen(sys.argv[1:]):
        sys.stdout.write(f"make {' '.join(target)} ...\n")
        sys.stdout.flush()
        rows.append(run(target))
        sys.stdout.write(f"{rows[-1]}\n")
    sys.stdout.write("\n" + "\n".join(map(str, rows)) + "\n")
    return int(any(row.code for row in rows))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
