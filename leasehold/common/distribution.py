"""Leasehold as pip knows it. PyPI's `leasehold` is another project."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

NAME = "leasehold-processor"


@cache
def own_version() -> str:
    """Raises PackageNotFoundError if the distribution is not installed, as in a folder of sources."""
    return version(NAME)
