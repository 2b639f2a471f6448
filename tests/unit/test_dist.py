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
