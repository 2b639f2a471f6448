"""A directory of its own, and a PostgreSQL in it."""

from __future__ import annotations

import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def place(name: str, *, is_kept: bool = False) -> Iterator[tuple[Path, Any]]:
    """is_kept: what is in the directory is left to whoever is told of it."""
    directory = Path(tempfile.mkdtemp(prefix=f"leasehold-{name}-"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR")
        from new_postgres import new_postgres
    server = new_postgres(directory / "postgres")
    try:
        yield directory, server
    finally:
        server.cleanup()
        if not is_kept:
            shutil.rmtree(directory, ignore_errors=True)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
