"""What `make dist` requires of the wheel is what it is made of."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

import dist

ROOT = Path(__file__).parents[2]


def test_the_wheel_is_made_of_the_packages_that_it_may_install() -> None:
    made = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(made["packages"]) == dist.PACKAGES


def test_the_sdist_takes_folders_and_files_of_the_top_alone() -> None:
    """Without the slash, a name stands for whatever is called so at any depth."""
    made = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    assert [each for each in made["include"] if not each.startswith("/")] == []
    assert [each for each in made["include"] if not (ROOT / each[1:]).exists()] == []


def test_whatever_else_a_wheel_installs_at_the_top_is_found(tmp_path: Path) -> None:
    wheel = tmp_path / "leasehold-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        for name in ("leases/lease.py", "tests/dist.py", "stray.py", "leasehold-1.dist-info/METADATA"):
            opened.writestr(name, "")
    assert dist.top_level(wheel) == {"leases", "tests", "stray.py"}


def test_releases_take_the_place_of_those_in_the_lock() -> None:
    locked = (
        "py4j==0.10.9.9\npyspark==4.3.0\npyspark-client==1\nazure-eventhub==5.15.1 ; python_version > '3'\nclick==8"
    )
    assert dist.constraints(locked, ()).split() == locked.split()
    found = dist.constraints(locked, ("pyspark==4.0.*", "azure-eventhub==5.15.0"))
    assert found.split("\n") == ["pyspark-client==1", "click==8", "pyspark==4.0.*", "azure-eventhub==5.15.0", ""]


def test_an_image_that_is_not_made_of_the_wheel_is_found(tmp_path: Path) -> None:
    wheel, site = tmp_path / "leasehold-1-py3-none-any.whl", tmp_path / "site-packages"
    with zipfile.ZipFile(wheel, "w") as opened:
        for name in ("leasehold/a.py", "leasehold/b.py", "leasehold/c.py", "leasehold-1.dist-info/METADATA"):
            opened.writestr(name, name)
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(site)
    record = site / "leasehold-1.dist-info/RECORD"
    installed = "leasehold/a.py,,\nleasehold/b.py,,\nleasehold/c.py,,\n../../../bin/leasehold,,\nleasehold-1.dist-info/RECORD,,\n"
    record.write_text(installed)
    assert dist.unlike(wheel, site) == set()
    (site / "leasehold/a.py").write_text("changed")
    (site / "leasehold/b.py").unlink()
    record.write_text(installed + "leases/lease.py,,\n")
    assert dist.unlike(wheel, site) == {"leasehold/a.py", "leasehold/b.py", "leases/lease.py"}
