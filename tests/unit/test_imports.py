"""Every module can be imported on this Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORTS = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        print(module.name)
"""

OTHER_NAMES = {
    "leases": "leasehold.leases",
    "pipeline": "leasehold.pipeline",
    "service": "leasehold.service",
    "emulators.leasehold_emulators": "leasehold_emulators",
}
"""What the folders of a checkout are not called -> what they are called."""
TWICE = """
import importlib, pkgutil, sys
sys.path.append(sys.argv[1])
for module in pkgutil.iter_modules([sys.argv[2]], sys.argv[3] + "."):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        print(error)
    else:
        print(module.name, "can be imported")
"""


@pytest.mark.parametrize("package", ["leasehold", "leasehold_emulators"])
def test_every_module_of_the_package_can_be_imported(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, package], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 5


@pytest.mark.parametrize("other", OTHER_NAMES)
@pytest.mark.parametrize("place", ["the checkout", "another folder"])
def test_no_module_of_a_checkout_can_be_imported_under_a_second_name(other: str, place: str, tmp_path: Path) -> None:
    folder = ROOT.joinpath(*other.split("."))
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(ROOT), str(folder), other],
        cwd=ROOT if place == "the checkout" else tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.splitlines()) == {f"{other} has another name: import {OTHER_NAMES[other]}"}


def test_the_folders_of_a_checkout_are_all_known_by_their_other_names() -> None:
    packages = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for file in (*ROOT.glob("*/__init__.py"), *ROOT.glob("emulators/*/__init__.py"))
    }
    assert packages - {"leasehold"} == {*OTHER_NAMES}
