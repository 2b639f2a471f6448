"""A name of one's own, and the same one again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasehold.service.cli.host_name import host_name
from leasehold.service.config.cosmos import CosmosLeases
from leasehold.service.config.custom import CustomLeases
from leasehold.service.config.leases import LeaseSettings, MemoryLeases, SqliteLeases
from leasehold.service.config.settings import HostSettings
from leasehold.service.errors import StartFailed

LEASES = SqliteLeases(path=Path("/state/leases.db"))
HOLDER = """
import os, sys
from pathlib import Path
from leasehold.service.cli.host_name import host_name
from leasehold.service.config.settings import HostSettings
from leasehold.service.config.leases import SqliteLeases
folder, name, forks = sys.argv[1:]
leases = SqliteLeases(path=Path("/state/leases.db"))
with host_name(HostSettings(name=name or None), leases, machine="m", folder=Path(folder)) as name:
    if forks:
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, b"!")
            sys.stdin.read()
            os._exit(0)
        os.read(reader, 1)  # the child runs
    print(name, os.getpid(), flush=True)
    sys.stdin.read()
"""


@contextmanager
def process(folder: Path, name: str = "", *, forks: bool = False) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds a name, and the name. forks: with a child that outlives it."""
    command = [sys.executable, "-c", HOLDER, str(folder), name, "forks" if forks else ""]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        try:
            found, number = holder.stdout.readline().split()
            assert int(number) == holder.pid
            yield holder, found
        finally:
            holder.kill()


def named(folder: Path, name: str | None = None, leases: LeaseSettings = LEASES, *, machine: str = "m", role: str = ""):
    return host_name(HostSettings(name=name), leases, role=role, machine=machine, folder=folder)


def test_a_name_that_is_set_is_taken_as_it_is(tmp_path: Path) -> None:
    with named(tmp_path, "a") as name:
        assert name == "a"


def test_a_host_alone_has_its_machines_name(tmp_path: Path) -> None:
    with named(tmp_path, machine="bank-7f9c-x2x") as name:
        assert name == "bank-7f9c-x2x"


def test_hosts_of_one_machine_count_up_and_a_number_that_is_free_again_is_used_again(tmp_path: Path) -> None:
    with process(tmp_path) as (first, first_name), process(tmp_path) as (_, second_name):
        assert (first_name, second_name) == ("m", "m-2")
        first.kill()
        first.wait()
        with process(tmp_path) as (_, again):
            assert again == "m"


def test_a_name_that_is_set_is_counted_past(tmp_path: Path) -> None:
    with named(tmp_path, "m"), named(tmp_path, "m-2"), named(tmp_path) as name:
        assert name == "m-3"


def test_a_later_process_is_refused_a_name_that_is_set_and_in_use_and_learns_by_whom(tmp_path: Path) -> None:
    with process(tmp_path, "m") as (holder, _):
        with pytest.raises(StartFailed) as refused, named(tmp_path, "m"):
            pass
        assert str(refused.value) == (
            f"host.name is 'm', and process {holder.pid} on this machine runs under that name on the same leases: stop it,"
            " or set another host.name here (without host.name, a free name is chosen)"
        )
        holder.kill()
        holder.wait()
        with named(tmp_path, "m") as name:
            assert name == "m"


def test_a_name_that_was_counted_is_refused_to_a_later_process_as_well(tmp_path: Path) -> None:
    with process(tmp_path), process(tmp_path) as (_, second):
        assert second == "m-2"
        with pytest.raises(StartFailed, match=r"'m-2'"), named(tmp_path, "m-2"):
            pass


def test_two_hosts_in_one_process_do_not_share_a_name(tmp_path: Path) -> None:
    with named(tmp_path, "a"):
        with pytest.raises(StartFailed, match=r"'a'"), named(tmp_path, "a"):
            pass
        with pytest.raises(StartFailed, match=r"'a'"), named(tmp_path, "a"):
            pass  # the first refusal has not freed it


def test_a_child_that_outlives_a_killed_host_does_not_hold_its_name(tmp_path: Path) -> None:
    with process(tmp_path, "m", forks=True) as (holder, _):
        holder.kill()
        holder.wait()
        with named(tmp_path, "m") as name:
            assert name == "m"


@pytest.mark.parametrize(
    "other",
    [
        SqliteLeases(path=Path("/state/others.db")),
        CustomLeases.model_validate(
            {"type": "my.mod:Store", "path": "/state/leases.db", "token": "secret", "n": {1: 2}}
        ),
        CosmosLeases(type="cosmos", endpoint="https://a.documents.azure.com", database="bank"),
    ],
    ids=lambda leases: leases.type,
)
def test_hosts_on_other_leases_may_have_the_same_name(tmp_path: Path, other: LeaseSettings) -> None:
    with named(tmp_path, "a"), named(tmp_path), named(tmp_path, "a", other) as a, named(tmp_path, None, other) as m:
        assert (a, m) == ("a", "m")
        with pytest.raises(StartFailed), named(tmp_path, "a", other):
            pass


def test_intervals_and_credentials_do_not_make_other_leases(tmp_path: Path) -> None:
    place = {"type": "cosmos", "endpoint": "https://a.documents.azure.com", "database": "bank"}
    one = CosmosLeases.model_validate({**place, "key": "a2V5"})
    two = CosmosLeases.model_validate({**place, "identity": "default", "duration_s": 30})
    with named(tmp_path, "a", one), pytest.raises(StartFailed), named(tmp_path, "a", two):
        pass


def test_leases_in_memory_are_shared_with_no_other_process(tmp_path: Path) -> None:
    leases = MemoryLeases()
    with named(tmp_path, "a", leases), named(tmp_path, "a", leases) as name:
        assert name == "a"
    assert list(tmp_path.iterdir()) == []


def test_a_role_runs_beside_the_host_of_the_same_settings(tmp_path: Path) -> None:
    with named(tmp_path, "a"), named(tmp_path), named(tmp_path, "a", role="-replay") as a:
        assert a == "a-replay"
        with named(tmp_path, role="-replay") as one, named(tmp_path, role="-replay") as two:
            assert (one, two) == ("m-replay", "m-replay-2")


def test_nothing_is_left_of_a_name_that_is_given_back(tmp_path: Path) -> None:
    with named(tmp_path, "a"):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_other_machines_names_are_no_matter(tmp_path: Path) -> None:
    with named(tmp_path, machine="a"), named(tmp_path, machine="b") as name:
        assert name == "b"


@pytest.mark.parametrize(
    ("machine", "name"), [("büro", "b-ro"), ("a b", "a-b"), ("-x", "x"), ("...", "host"), ("a" * 300, "a" * 120)]
)
def test_a_machines_name_becomes_a_hosts_name(machine: str, name: str, tmp_path: Path) -> None:
    with named(tmp_path, machine=machine) as found:
        assert found == name
        assert HostSettings(name=f"{found}-1000")


@pytest.mark.parametrize("name", [None, "m"])
def test_where_nothing_can_be_locked_the_name_does(name: str | None, tmp_path: Path) -> None:
    with named(tmp_path / "missing", name) as one, named(tmp_path / "missing", name) as two:
        assert one == two == "m"
