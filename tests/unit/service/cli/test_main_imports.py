"""What a host imports before its Spark begins to start, and what it never does without need: both are a part of every start."""

from __future__ import annotations

import subprocess
import sys

import pytest
from patience import PATIENCE_S


@pytest.mark.parametrize(
    ("needed", "not_yet"),
    [
        ("leasehold.service.cli.main", {"pyspark", "pyarrow", "numpy", "structlog", "fastapi", "psycopg"}),
        ("leasehold.pipeline.spark.engine", {"pyarrow", "numpy", "structlog", "fastapi", "psycopg", "pandas"}),
        ("leasehold.service.wiring.build", {"psycopg", "azure", "aiohttp", "pandas"}),
    ],
    ids=["a command", "Spark begins", "a processor"],
)
def test_nobody_waits_for_what_he_does_not_use_yet(needed: str, not_yet: set[str]) -> None:
    command = [sys.executable, "-c", f"import sys, {needed}; print(*{not_yet!r} & sys.modules.keys())"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert said.stdout.split() == []
