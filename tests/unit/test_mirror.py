"""Unit tests lie where the code lies: tests/unit/<package path>/test_<module>.py, or test_<module>_<aspect>.py."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests" / "unit"
HOMES = {
    **dict.fromkeys(("leasehold", "leases", "pipeline", "service"), ROOT),
    **dict.fromkeys(("scenarios", "servers"), ROOT / "tests"),
}
"""Where the packages lie that are mirrored."""
ABOUT_THE_WHOLE = (
    "test_advisories.py",
    "test_architecture.py",
    "test_contributing.py",
    "test_decisions.py",
    "test_deprecated.py",
    "test_dist.py",
    "test_guarantees.py",
    "test_language.py",
    "test_leasehold.py",
    "test_matrix.py",
    "test_mirror.py",
    "test_names.py",
    "test_plugins_page.py",
    "test_references.py",
    "test_simulation.py",
    "test_site.py",
    "test_total.py",
    "test_workflows.py",
)
"""At the top of tests/unit. Everything else is about a module or a package."""
NOT_PYTHON = {"chart": "helm/"}


def module_of(test: Path) -> str | None:
    """What a test file is about: the longest beginning of its name that is a module or a package of its folder's package."""
    folder = test.parent.relative_to(UNIT)
    package = HOMES.get(folder.parts[0], ROOT) / folder
    words = test.stem.removeprefix("test_").split("_")
    for length in range(len(words), 0, -1):
        name = "_".join(words[:length])
        if (package / f"{name}.py").is_file() or (package / name / "__init__.py").is_file():
            return ".".join((*folder.parts, name))
    return None


def test_files_about_one_module_lie_where_it_lies() -> None:
    tests = [path for path in UNIT.rglob("test_*.py") if path.parent != UNIT and path.parent.name not in NOT_PYTHON]
    assert len(tests) > 100
    strays = [str(path.relative_to(ROOT)) for path in tests if module_of(path) is None]
    assert not strays, "name the module in the file's name, or move the file to the folder of its package"


def test_few_files_are_about_the_whole() -> None:
    assert sorted(path.name for path in UNIT.glob("test_*.py")) == sorted(ABOUT_THE_WHOLE)


@pytest.mark.parametrize(
    ("test", "module"),
    [
        ("service/cli/test_host_name.py", "service.cli.host_name"),
        ("service/test_host_faults.py", "service.host"),
        ("service/test_nothing.py", None),
        ("leases/stores/test_memory.py", "leases.stores.memory"),
        ("leases/test_memory.py", None),
    ],
)
def test_the_longest_name_of_a_module_counts(test: str, module: str | None) -> None:
    assert module_of(UNIT / test) == module
