"""Garbage while modules are imported, and after."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from leasehold.service.cli.common import importing


@pytest.fixture(autouse=True)
def _looking() -> Iterator[None]:
    gc.enable()
    yield
    gc.unfreeze()
    gc.enable()


def _fails() -> None:
    with importing():
        assert not gc.isenabled()
        raise ImportError


def test_garbage_is_looked_for_again_once_all_is_imported_though_an_import_fails() -> None:
    with pytest.raises(ImportError):
        _fails()
    assert gc.isenabled()


def test_what_was_imported_is_not_looked_at_again() -> None:
    with importing():
        imported = [object()]
        assert any(each is imported for each in gc.get_objects())
    assert not any(each is imported for each in gc.get_objects())


def test_who_has_turned_the_search_off_keeps_it_off() -> None:
    gc.disable()
    with importing():
        pass
    assert not gc.isenabled()
