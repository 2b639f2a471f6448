"""What settings name as `module:attribute`."""

from pathlib import Path

import pytest

from leasehold.pipeline.errors import NotImportable
from leasehold.pipeline.imports import imported, require_module


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "good_views.py").write_text("class Views:\n    @staticmethod\n    def balances(): ...\n")
    (tmp_path / "broken_views.py").write_text("raise ValueError('no configuration')\n")
    (tmp_path / "exiting_views.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "needy_views.py").write_text("import no_such_library\n")


def test_an_attribute_is_found_in_its_module_and_below() -> None:
    assert imported("os:path") is __import__("os").path
    assert getattr(imported("good_views:Views.balances"), "__name__") == "balances"  # noqa: B009  # an object, to mypy


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("good_views", "write it as 'module:attribute'"),
        ("good_views:", "write it as 'module:attribute'"),
        (":balances", "write it as 'module:attribute'"),
        ("a b:c", "write it as 'module:attribute'"),
        ("../good_views:Views", "write it as 'module:attribute'"),
        ("good_views:Views:balances", "write it as 'module:attribute'"),
        (
            "no_such_views:balances",
            "there is no module 'no_such_views': put it next to the YAML file, install it, or add its directory to PYTHONPATH",
        ),
        ("no_such_package.views:balances", "there is no module 'no_such_package'"),
        ("good_views.inner:balances", "there is no module 'good_views.inner'"),
        ("good_views:balances", "module 'good_views' has no 'balances'"),
        ("good_views:Views.sums", "module 'good_views' has no 'Views.sums'"),
        ("broken_views:balances", "module 'broken_views' fails with ValueError: no configuration"),
        ("exiting_views:balances", "module 'exiting_views' fails with SystemExit: 3"),
        (
            "needy_views:balances",
            "module 'needy_views' fails with ModuleNotFoundError: No module named 'no_such_library'",
        ),
    ],
)
def test_what_is_wrong_with_a_path_is_said(path: str, message: str) -> None:
    with pytest.raises(NotImportable) as refused:
        imported(path)
    assert path in str(refused.value)
    assert message in str(refused.value)


def test_the_error_of_a_failing_module_is_kept_as_the_cause() -> None:
    with pytest.raises(NotImportable) as refused:
        imported("broken_views:balances")
    assert isinstance(refused.value.__cause__, ValueError)


@pytest.mark.parametrize("path", ["good_views:balances", "broken_views:balances", "needy_views:any", "__main__:any"])
def test_a_module_that_is_there_is_not_run_to_see_that_it_is(path: str) -> None:
    require_module(path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("good_views", "write it as 'module:attribute'"),
        ("no_such_views:balances", "there is no module 'no_such_views': put it next to the YAML file"),
        ("no_such_package.views:balances", "there is no module 'no_such_package'"),
        ("good_views.inner:balances", "there is no module 'good_views.inner'"),
        ("broken_views.inner:balances", "fails with ValueError: no configuration"),
        ("needy_views.inner:balances", "fails with ModuleNotFoundError: No module named 'no_such_library'"),
    ],
)
def test_a_module_that_is_not_there_is_said_without_running_it(path: str, message: str) -> None:
    with pytest.raises(NotImportable) as refused:
        require_module(path)
    assert path in str(refused.value)
    assert message in str(refused.value)
