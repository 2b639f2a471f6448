"""Other distributions that install a package `pyspark`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

from leasehold.pipeline.errors import PySparkReplaced
from leasehold.pipeline.spark import require_pyspark


@pytest.mark.parametrize("other", ["pyspark_client-4.2.0", "databricks_connect-17.1.2"])
def test_a_package_that_replaces_pyspark_is_reported(tmp_path: Path, other: str) -> None:
    package = tmp_path / "pyspark"
    (tmp_path / "pyspark-4.3.0.dist-info").mkdir()
    require_pyspark(package)
    (tmp_path / f"{other}.dist-info").mkdir()
    with pytest.raises(PySparkReplaced) as refused:
        require_pyspark(package)
    name = other.partition("-")[0].replace("_", "-")
    assert str(refused.value).startswith(f"{name} has replaced modules of PySpark in {package}: ")


def test_commands_end_with_that_error_before_pyspark_is_imported(tmp_path: Path) -> None:
    for folder in ("pyspark", "pyspark_client-4.2.0.dist-info"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pyspark/__init__.py").write_text("raise ImportError('no SparkContext here')")
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        f"pipelines: [{{name: a, feed: {{type: log, path: {tmp_path}}}, sink: {{type: log, path: {tmp_path}/o}}}}]"
    )
    done = subprocess.run(
        [sys.executable, "-m", "leasehold", "run", str(settings)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("leasehold: pyspark-client has replaced modules of PySpark in ")
    assert len(done.stderr.splitlines()) == 1
