"""Checks that the names and arguments in tests exist, for `make types`: `.ci/run` leaves most of these tests out.

It ignores Mypy's other errors. There are hundreds, and few of them are mistakes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

TESTS = Path(__file__).parent
BENCH = "lab/bench"
"""Its modules are scripts, and import one another by name."""
OTHERS = ("connectors", "cluster", "examples", "image", "interop", "spark", "timing", "lab/scale", "lab/model")
KINDS = re.compile(r"\[(attr-defined|call-arg|name-defined|import-not-found)\]$")


def main() -> int:
    lab = [str(path) for path in sorted(TESTS.glob("lab/*.py"))]
    lines = [
        *checked(BENCH, found_in=(TESTS / BENCH, TESTS.parent / "docs")),
        *checked(*OTHERS, *lab, found_in=(TESTS,)),
    ]
    found = [line for line in lines if KINDS.search(line)]
    sys.stdout.write("\n".join([*found, f"{len(found)} names or arguments of tests do not exist"]) + "\n")
    return 1 if found else 0


def checked(*paths: str, found_in: Iterable[Path]) -> list[str]:
    """The lines of mypy. Raises SystemExit if it checks nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--explicit-package-bases", *(str(TESTS / path) for path in paths)],
        env={**os.environ, "MYPYPATH": os.pathsep.join(map(str, found_in))},
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
    )
    lines = done.stdout.splitlines()
    if done.returncode > 1 or not lines or "errors prevented" in lines[-1]:
        raise SystemExit("\n".join([*lines, done.stderr]))
    return lines


if __name__ == "__main__":
    sys.exit(main())
