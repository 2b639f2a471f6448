"""The user's own modules, packed for Python workers on other machines.

A function is sent to workers by its name, so they have to import its module. Installed packages are not sent: their versions are
the cluster's business, and many have compiled parts.
"""

from __future__ import annotations

import hashlib
import io
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

from leasehold.pipeline.errors import TransformError

BYTES_MAX = 32 * 1024 * 1024
_SKIPPED = frozenset(("__pycache__", "node_modules"))
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(function: str, directory: Path) -> Path | None:
    """A zip file with the top-level module or package of an imported `module:function`; None if it is installed, or built in.

    The file's name depends only on its content. An existing file stays, because executors may be reading it. Raises
    TransformError if the package is too large, and OSError.
    """
    name = function.partition(":")[0].partition(".")[0]
    root = _root_of(name)
    if root is None or _is_installed(root):
        return None
    content = _zipped(function, root)
    path = directory / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    if not path.exists():
        with NamedTemporaryFile(dir=directory, delete=False) as file:
            file.write(content)
        Path(file.name).rename(path)
    return path


def _root_of(name: str) -> Path | None:
    """The file of a module, or the directory of a package."""
    module = sys.modules.get(name)
    if (folders := getattr(module, "__path__", None)) is not None:
        return next((Path(folder) for folder in folders), None)
    file = getattr(module, "__file__", None)
    return Path(file) if file and file.endswith(".py") and name != "__main__" else None


def _is_installed(root: Path) -> bool:
    """Whether it is in Python's standard library, or among the installed packages."""
    paths = sysconfig.get_paths()
    places = [Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return any(root.resolve().is_relative_to(place) for place in places)


def _zipped(function: str, root: Path) -> bytes:
    """A zip file: the same bytes for the same files."""
    buffer = io.BytesIO()
    size = 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in _files(root):
            size += path.stat().st_size
            if size > BYTES_MAX:
                raise TransformError(
                    f"'{function}': its package {root} has more than {BYTES_MAX >> 20} MiB, which is too much to send to a"
                    " cluster: install it there, or move the function to a module of its own"
                )
            packed.writestr(zipfile.ZipInfo(str(path.relative_to(root.parent)), _EPOCH), path.read_bytes())
    return buffer.getvalue()


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not any(part in _SKIPPED or part.startswith(".") for part in parts):
            yield path
