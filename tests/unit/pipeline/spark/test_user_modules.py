"""What of a user's code is sent to workers on other machines."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.pipeline.errors import TransformError
from leasehold.pipeline.spark import user_modules
from leasehold.pipeline.spark.user_modules import pack


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An imported package."""
    folder = tmp_path / "code" / "bank_of_tests"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "views").mkdir()
    (folder / ".git").mkdir()
    for name in ("__init__.py", "views/__init__.py", "views/rates.json", "__pycache__/x.pyc", ".git/config"):
        (folder / name).write_text("")
    monkeypatch.syspath_prepend(folder.parent)
    importlib.import_module("bank_of_tests.views")
    yield folder
    for name in ("bank_of_tests", "bank_of_tests.views"):
        sys.modules.pop(name)


def test_a_package_is_packed_whole_without_what_tools_leave(bank: Path, tmp_path: Path) -> None:
    path = pack("bank_of_tests.views:balances", tmp_path)
    assert path is not None
    assert zipfile.ZipFile(path).namelist() == [
        "bank_of_tests/__init__.py",
        "bank_of_tests/views/__init__.py",
        "bank_of_tests/views/rates.json",
    ]


def test_the_name_depends_on_the_content_alone(bank: Path, tmp_path: Path) -> None:
    first = pack("bank_of_tests:a", tmp_path)
    (bank / "__init__.py").touch()
    assert pack("bank_of_tests:b", tmp_path) == first
    (bank / "__init__.py").write_text("changed = True")
    assert pack("bank_of_tests:a", tmp_path) != first


def test_a_file_that_executors_may_be_reading_is_left_alone(bank: Path, tmp_path: Path) -> None:
    first = pack("bank_of_tests:a", tmp_path)
    assert first is not None
    before = first.stat()
    pack("bank_of_tests:b", tmp_path)
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [each.name for each in tmp_path.glob("*.zip")] == [first.name]


def test_a_module_of_one_file_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lonely_of_tests.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("lonely_of_tests")
    path = pack("lonely_of_tests:f", tmp_path)
    assert path is not None
    assert zipfile.ZipFile(path).namelist() == ["lonely_of_tests.py"]


@pytest.mark.parametrize("function", ["json:dumps", "yaml:safe_load", "sys:exit", "pyarrow.compute:sum"])
def test_what_is_installed_is_not_sent(function: str, tmp_path: Path) -> None:
    importlib.import_module(function.partition(":")[0])
    assert pack(function, tmp_path) is None


def test_a_package_that_is_too_large_is_refused(bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_modules, "BYTES_MAX", 10)
    (bank / "data.csv").write_text("0123456789\n")
    with pytest.raises(TransformError, match="install it there, or move the function"):
        pack("bank_of_tests:a", tmp_path)
