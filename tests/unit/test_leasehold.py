"""The package `leasehold`: lazy, typed, documented, and a way to run the command."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S
from unit.test_architecture import imported_names, is_within

import leasehold
import leasehold.testing

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs/handlers.md", ROOT / "docs/plugins.md"]
PUBLIC_PAGES = [*PAGES, ROOT / "README.md", ROOT / "docs/producer.md", ROOT / "docs/sinks.md"]
INTERNAL = ("leasehold.leases", "leasehold.pipeline", "leasehold.service")


def output_of(*arguments: str, returncode: int = 0) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == returncode, done.stderr
    return done.stdout


def test_each_name_is_the_one_that_its_module_defines() -> None:
    for name in leasehold.__all__:
        module, defined = leasehold._HOMES[name]
        assert getattr(leasehold, name) is getattr(importlib.import_module(module), defined)


def test_importing_it_loads_no_other_package() -> None:
    code = (
        "import sys; before = set(sys.modules); import leasehold; import json;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    modules = set(json.loads(output_of("-c", code)))
    assert "leasehold" in modules
    assert {name for name in modules if name.partition(".")[0] not in {"leasehold"} | sys.stdlib_module_names} == set()


def test_its_version_is_that_of_the_distribution() -> None:
    assert leasehold.__version__ == importlib.metadata.version("leasehold-processor")


def test_an_unknown_name_is_reported_with_the_most_similar_one() -> None:
    with pytest.raises(AttributeError) as refused:
        getattr(leasehold, "Procesor")  # noqa: B009  # a name that mypy would refuse
    assert str(refused.value) == "module 'leasehold' has no attribute 'Procesor', did you mean 'Processor'?"
    with pytest.raises(AttributeError, match=r"^module 'leasehold' has no attribute 'xyzzy'$"):
        getattr(leasehold, "xyzzy")  # noqa: B009


def test_a_traceback_gives_that_advice_once() -> None:
    command = [sys.executable, "-c", "import leasehold; leasehold.Procesor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert done.stderr.lower().count("did you mean") == 1


def test_its_directory_lists_every_name_before_it_is_imported() -> None:
    listed = set(output_of("-c", "import leasehold; print(*dir(leasehold))").split())
    assert {*leasehold.__all__, "__version__"} <= listed


def test_it_runs_as_the_command_does() -> None:
    as_module = output_of("-m", "leasehold", "--help")
    assert as_module.startswith("Usage: python -m leasehold [OPTIONS] COMMAND")
    as_command = output_of(str(Path(sys.executable).with_name("leasehold")), "--help")
    assert as_module.partition("\n")[2] == as_command.partition("\n")[2]
    output_of("-m", "leasehold", "no-such-command", returncode=2)


def test_each_name_is_documented() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    assert [name for name in (*leasehold.__all__, "__version__") if f"`{name}`" not in pages] == []
    plugins = PAGES[1].read_text()
    assert [name for name in leasehold.testing.__all__ if f"`{name}`" not in plugins] == []


@pytest.mark.parametrize("page", PUBLIC_PAGES, ids=lambda page: page.name)
def test_examples_import_from_leasehold_only(page: Path) -> None:
    blocks = [block for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "import " in block]
    imported = {name for block in blocks for name in imported_names(ast.parse(block)).values()}
    assert {name for name in imported if is_within(name, INTERNAL)} == set()
    if page.name != "plugins.md":
        assert {name for name in imported if is_within(name, ("leasehold",))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_no_internal_module(page: Path) -> None:
    spans = re.findall(r"`([a-z_]+(?:\.\w+)+)`", page.read_text())
    assert {span for span in spans if is_within(span, INTERNAL)} == set()
