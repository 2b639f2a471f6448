"""The allocator of a host."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from leasehold.service.cli.run import use_thrifty_allocator


@pytest.fixture(autouse=True)
def _default_pool() -> Iterator[None]:
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    yield
    pa.set_memory_pool(before)


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="Arrow has no jemalloc here")
def test_a_host_uses_the_allocator_that_gives_back() -> None:
    use_thrifty_allocator({})
    assert pa.default_memory_pool().backend_name == "jemalloc"


def test_who_names_an_allocator_gets_it() -> None:
    use_thrifty_allocator({"ARROW_DEFAULT_MEMORY_POOL": "system"})
    assert pa.default_memory_pool().backend_name == "system"


def test_where_arrow_has_no_other_all_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pa, "supported_memory_backends", lambda: ["system"])
    use_thrifty_allocator({})
    assert pa.default_memory_pool().backend_name == "system"
