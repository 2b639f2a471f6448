"""How long `import leasehold` takes, which most programs never use all of."""

from __future__ import annotations

import subprocess
import sys

IMPORT_S_MAX = 0.15
MEASURE = "import time; began = time.perf_counter(); import leasehold; print(time.perf_counter() - began)"


def test_importing_it_takes_a_fraction_of_a_second() -> None:
    runs = [
        subprocess.run([sys.executable, "-c", MEASURE], stdout=subprocess.PIPE, text=True, check=True) for _ in range(3)
    ]
    assert min(float(run.stdout) for run in runs) < IMPORT_S_MAX
