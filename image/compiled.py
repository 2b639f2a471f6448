"""Compiles a Python environment for whoever cannot write to it: python image/compiled.py SITE-PACKAGES

Of the packages that are large, what a host imports: what is compiled is as large as its source.
"""

from __future__ import annotations

import compileall
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from py_compile import PycInvalidationMode

OURS = ("leasehold", "leases", "pipeline", "service")
WORKERS = ("pandas", "pyspark.daemon", "pyspark.worker", "pyspark.sql.connect.session", "pyspark.sql.connect.client")
"""What Python workers, and clients of Spark Connect, import beside it."""
LARGE = ("azure", "numpy", "pandas", "pyarrow", "pygments", "pyspark")


def imported() -> set[Path]:
    for name in (*modules(), *WORKERS):
        with suppress(ImportError):  # suites for tests, which the image lacks the tools for
            importlib.import_module(name)
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {Path(file) for file in files if file}


def modules() -> Iterator[str]:
    for package in map(importlib.import_module, OURS):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda name: None):
            yield module.name


def compiled(site: Path, used: set[Path]) -> list[Path]:
    sources = site.rglob("*.py")
    return [file for file in sources if file in used or file.relative_to(site).parts[0] not in LARGE]


def compile_one(file: Path) -> None:
    compileall.compile_file(file, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)


def main(site: Path) -> None:
    with ProcessPoolExecutor() as processes:
        list(processes.map(compile_one, compiled(site, imported()), chunksize=50))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
