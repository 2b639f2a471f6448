"""How long `import leasehold` takes: a bound of every program's start."""

from __future__ import annotations

import subprocess
import sys

from patience import PATIENCE_S

IMPORT_S_MAX = 0.15
RUNS = 5
CODE = "import time; began = time.perf_counter(); import leasehold; print(time.perf_counter() - began)"


def test_the_package_is_imported_in_150_ms() -> None:
    def seconds() -> float:
        done = subprocess.run(
            [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        return float(done.stdout)

    assert min(seconds() for _ in range(RUNS)) < IMPORT_S_MAX
