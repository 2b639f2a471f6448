"""How many files a host may open."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from leasehold.service.cli.run import OPEN_FILES, allow_open_files


@pytest.fixture
def most() -> Iterator[int]:
    """What the system permits; the test may change the present limit below it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_host_may_open_as_many_files_as_the_system_permits(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_000, most))
    allow_open_files()
    allowed, unchanged = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert allowed == (OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most))
    assert unchanged == most


def test_a_host_that_may_open_more_keeps_its_limit(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_000, most))
    monkeypatch.setattr("leasehold.service.cli.run.OPEN_FILES", 500)
    allow_open_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1_000, most)
