"""A name of one's own, and the same one again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.host_name import host_name
from service.settings import HostSettings

HOLDER = """
import sys
from pathlib import Path
from service.host_name import host_name
from service.settings import HostSettings
with host_name(HostSettings(), machine="m", folder=Path(sys.argv[1])) as name:
    print(name, flush=True)
    sys.stdin.read()
"""


@contextmanager
def process(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        try:
            yield holder, holder.stdout.readline().strip()
        finally:
            holder.kill()


def test_a_name_that_is_set_is_taken_as_it_is(tmp_path: Path) -> None:
    with (
        host_name(HostSettings(name="a"), folder=tmp_path) as one,
        host_name(HostSettings(name="a"), folder=tmp_path) as two,
    ):
        assert one == two == "a"


def test_a_host_alone_has_its_machines_name(tmp_path: Path) -> None:
    with host_name(HostSettings(), machine="bank-7f9c-x2x", folder=tmp_path) as name:
        assert name == "bank-7f9c-x2x"


def test_hosts_of_one_machine_count_up_and_a_number_that_is_free_again_is_used_again(tmp_path: Path) -> None:
    with process(tmp_path) as (first, first_name), process(tmp_path) as (_, second_name):
        assert (first_name, second_name) == ("m", "m-2")
        first.kill()
        first.wait()
        with process(tmp_path) as (_, again):
            assert again == "m"


def test_other_machines_names_are_no_matter(tmp_path: Path) -> None:
    with (
        host_name(HostSettings(), machine="a", folder=tmp_path),
        host_name(HostSettings(), machine="b", folder=tmp_path) as name,
    ):
        assert name == "b"


@pytest.mark.parametrize(
    ("machine", "name"), [("büro", "b-ro"), ("a b", "a-b"), ("-x", "x"), ("...", "host"), ("a" * 300, "a" * 120)]
)
def test_a_machines_name_becomes_a_hosts_name(machine: str, name: str, tmp_path: Path) -> None:
    with host_name(HostSettings(), machine=machine, folder=tmp_path) as found:
        assert found == name
        assert HostSettings(name=f"{found}-1000")


def test_where_nothing_can_be_locked_the_machines_name_does(tmp_path: Path) -> None:
    with host_name(HostSettings(), machine="m", folder=tmp_path / "missing") as name:
        assert name == "m"
