"""Compiles a Python environment for users who cannot write to it: python image/compiled.py [SITE-PACKAGES [bare]]

Of the packages that are large, what a host imports: what is compiled is as large as its source.
bare: of other people's packages only what is compiled stays, and without docstrings. That takes an eighth of the thin image and
a twentieth of its memory.
Without arguments, it only imports everything that a host imports.
"""

from __future__ import annotations

import ast
import compileall
import importlib
import importlib.util
import marshal
import pkgutil
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from py_compile import PycInvalidationMode

OURS = ("leasehold",)
WORKERS = ("pandas", "pyspark.daemon", "pyspark.worker", "pyspark.sql.connect.session", "pyspark.sql.connect.client")
"""What Python workers, and clients of Spark Connect, import beside it."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NEEDS_DOCSTRINGS = "numpy"
"""It makes masked arrays of them."""
UNCHECKED = 0b01
"""Of a compiled file (PEP 552): it has a hash of its source, which is not compared."""
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


def bare_one(file: Path) -> None:
    """Python imports a module that is compiled from the place of its source, if that is gone."""
    source = file.read_bytes()
    tree = ast.parse(source)
    if NEEDS_DOCSTRINGS not in file.parts:
        tree = without_docstrings(tree)
    code = compile(tree, str(file), "exec", dont_inherit=True)
    header = importlib.util.MAGIC_NUMBER + UNCHECKED.to_bytes(4, "little") + importlib.util.source_hash(source)
    file.with_suffix(".pyc").write_bytes(header + marshal.dumps(code))
    file.unlink()


def without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            line = node.body.pop(0)
            node.body = node.body or [ast.copy_location(ast.Pass(), line)]
    return tree


def main(site: Path | None = None, kind: str | None = None) -> None:
    used = imported()
    if site is None:
        return
    files = compiled(site, used)
    others = [file for file in files if kind == "bare" and file.relative_to(site).parts[0] not in OURS]
    with ProcessPoolExecutor() as processes:
        list(processes.map(compile_one, set(files).difference(others), chunksize=50))
        list(processes.map(bare_one, others, chunksize=50))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]), *sys.argv[2:])
