"""How to install what an extra needs: Leasehold itself is on no package index, and its requirements are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires


def install_command(extra: str) -> str:
    try:
        return command_of(extra, requires("leasehold") or ())
    except PackageNotFoundError:  # run from its sources
        return command_of(extra, ())


def command_of(extra: str, requirements: Iterable[str]) -> str:
    """requirements: as a distribution's metadata has them (PEP 508)."""
    found = [each.partition(";") for each in requirements]
    wanted = [
        name.strip() for name, _, marker in found if re.search(rf"""extra == ['"]{re.escape(extra)}['"]""", marker)
    ]
    return "pip install " + " ".join(f"'{name}'" for name in sorted(wanted) or [f"leasehold[{extra}]"])
