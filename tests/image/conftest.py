"""For tests of the built images."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import containers
import pytest


@pytest.fixture(scope="session")
def image() -> Iterator[containers.Image]:
    yield from _opened()


@pytest.fixture(scope="session")
def thin() -> Iterator[containers.Image]:
    yield from _opened(containers.THIN)


@pytest.fixture(scope="session")
def emulators() -> Iterator[containers.Image]:
    yield from _opened(containers.EMULATORS)


@pytest.fixture
def throw_away() -> Iterator[containers.Image]:
    """A copy of its files that a test may change."""
    yield from _opened()


def _opened(name: str = containers.NAME) -> Iterator[containers.Image]:
    if os.geteuid() != 0 or shutil.which("buildah") is None:
        pytest.skip("needs buildah, and root")
    with containers.opened(name) as opened:
        yield opened
