"""Transforms in Spark: the session, plans, and one job for all batches that wait. The only home of PySpark."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

from leasehold.pipeline.errors import PySparkReplaced

REPLACEMENTS = ("pyspark_client", "databricks_connect")
"""Distributions that install a package `pyspark` of their own over that of PySpark, without its JVM."""


def require_pyspark(package: Path) -> None:
    """Raise PySparkReplaced unless this folder is PySpark's own: modules and jars of two releases do not fit each other."""
    for name in REPLACEMENTS:
        if any(package.parent.glob(f"{name}-*.dist-info")):
            other = name.replace("_", "-")
            raise PySparkReplaced(
                f"{other} has replaced modules of PySpark in {package}: install Leasehold in an environment without {other}"
                " (docs/configuration.md, Beside other Spark packages)"
            )


warnings.filterwarnings("ignore", r"PySpark does not yet fully support pandas >= 3", FutureWarning)
"""Every start would print it, although Leasehold uses no pandas. docs/configuration.md covers functions that do."""

if (_spec := find_spec("pyspark")) is not None:
    for _package in _spec.submodule_search_locations or ():
        require_pyspark(Path(_package))
