"""What pages and docstrings name exists: paths in the repository, modules, classes, functions and methods."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from prose import docstrings

import leasehold

ROOT = Path(__file__).parents[2]
PAGES = sorted({ROOT / "README.md", *ROOT.glob("docs/**/*.md")})
FOLDERS_OF_CODE = ("leases", "pipeline", "service", "leasehold", "emulators")
MODULES = sorted(path for name in FOLDERS_OF_CODE for path in (ROOT / name).rglob("*.py") if path == path.resolve())
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()}
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
INSTALLED = set(packages_distributions())
MADE = ("build/", ".venv/")
"""Folders that targets of the Makefile create."""
FOREIGN = {"StructType.jsonValue", "current_date", "from_json", "laptop", "pipefail"}
"""Names in docstrings that others define: Spark, the shell, users."""


def paths(page: str) -> Iterator[str]:
    """The paths of the repository that a page names in backticks."""
    page = re.sub(r"^( *)```.*?^\1```$", "", page, flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`([^`\n]+)`", page):
        if re.fullmatch(r"(?:[\w.-]+/)+[\w.-]*", span) and span.split("/")[0] in FOLDERS and not span.startswith(MADE):
            yield span


def missing_paths(page: str) -> list[str]:
    return [path for path in paths(page) if not (ROOT / path).exists()]


def test_every_path_that_a_page_names_exists() -> None:
    assert [(page.name, path) for page in PAGES for path in missing_paths(page.read_text())] == []


def test_a_path_that_does_not_exist_is_found() -> None:
    page = "`service/host.py`, `service/hosts.py`, `tests/unit/`, `orders/7`\n```\n`docs/none.md`\n```\n"
    assert missing_paths(page) == ["service/hosts.py"]


@dataclass(frozen=True, slots=True)
class Scope:
    """The names that a module or a class defines."""

    names: set[str] = field(default_factory=set)
    bases: list[str] = field(default_factory=list)


def _names_of(body: list[ast.stmt]) -> set[str]:
    found = set[str]()
    for node in (each for statement in body for each in ast.walk(statement)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Attribute(value=ast.Name(id="self")):
                found.add(node.attr)
            case ast.alias():
                found.add((node.asname or node.name).split(".")[0])
    return found


def dotted(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name if path.is_relative_to(ROOT / "leasehold") else f"leasehold.{name}"


@cache
def index() -> tuple[dict[str, set[str]], dict[str, list[Scope]], set[str]]:
    """The modules with their names, the classes with theirs, and all words that the code has."""
    modules, classes, words = dict[str, set[str]](), dict[str, list[Scope]](), set[str]()
    for path in MODULES:
        tree = ast.parse(path.read_text())
        modules[dotted(path)] = _names_of(tree.body)
        if (stub := path.with_suffix(".pyi")).exists():
            modules[dotted(path)] |= _names_of(ast.parse(stub.read_text()).body)
        words.update(path.relative_to(ROOT).with_suffix("").parts)
        apart = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef():
                    bases = [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
                    classes.setdefault(node.name, []).append(Scope(_names_of(node.body), bases))
                    words.add(node.name)
                case ast.Constant(value=str() as text) if id(node) not in apart:
                    words.update(IDENTIFIER.findall(text))
                case ast.Name() | ast.Attribute() | ast.arg() | ast.keyword() | ast.alias():
                    words.update(IDENTIFIER.findall(ast.unparse(node)))
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    words.add(node.name)
    modules["leasehold"].update(leasehold.__all__)
    for name in [*modules]:
        parent, _, last = name.rpartition(".")
        if parent:
            modules.setdefault(parent, set()).add(last)
    return modules, classes, words


def has_member(name: str, member: str) -> bool:
    """Whether one of our classes of that name has the member; unknown bases may have any."""
    classes = index()[1]
    return any(
        member in scope.names
        or any(
            has_member(base, member) if base in classes else base not in ("object", "Protocol", "ABC")
            for base in scope.bases
        )
        for scope in classes.get(name, [])
    )


def resolves(name: str, near: set[str]) -> bool:
    """Whether a dotted name leads somewhere. near: the words of the module that names it."""
    modules, classes, words = index()
    parts = name.split(".")
    first, rest = parts[0], parts[1:]
    if not rest:
        return name in words or name in near or hasattr(builtins, name) or name in sys.stdlib_module_names
    if first == "leasehold":
        for length in range(len(parts), 0, -1):
            module = ".".join(parts[:length])
            if module in modules:
                left = parts[length:]
                if not left:
                    return True
                return left[0] in modules[module] and (
                    len(left) == 1 or left[0] not in classes or has_member(left[0], left[1])
                )
        return False
    if first in classes:
        return has_member(first, rest[0])
    ours = [modules[module] for module in modules if module.rpartition(".")[2] == first]
    if any(rest[0] in names for names in ours):
        return True
    return first in near or first in sys.stdlib_module_names or first in INSTALLED


def raised_elsewhere(text: str) -> list[str]:
    """The functions to which a docstring refers for its errors."""
    return re.findall(r"[Rr]aises (?:as|what) `([\w.]+)` (?:does|do)\b", " ".join(text.split()))


def qualified(text: str) -> Iterator[str]:
    """Names that begin with one of our modules, without backticks, as in examples: `leasehold.service.group.view.View`, say."""
    for name in re.findall(r"(?<![\w.`/:@-])leasehold(?:\.[A-Za-z_]\w*)+", text):
        if ".".join(name.split(".")[:3]) in index()[0]:
            yield name


def unresolved(source: str) -> Iterator[str]:
    """The names in backticks in the docstrings of a module that lead nowhere, or, where it refers to a function, not to one."""
    tree = ast.parse(source)
    near = set(IDENTIFIER.findall(re.sub(r'""".*?"""', "", source, flags=re.DOTALL)))
    functions = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    functions |= {node.asname or node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
    for text in docstrings(source):
        for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text):
            name = span.removesuffix("()")
            if (
                re.fullmatch(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", name)
                and name not in FOREIGN
                and not resolves(name, near)
            ):
                yield span
        yield from (name for name in qualified(text) if not resolves(name, near))
        yield from (name for name in raised_elsewhere(text) if "." not in name and name not in functions)


def test_every_name_in_a_docstring_leads_somewhere() -> None:
    assert [(dotted(module), name) for module in MODULES for name in unresolved(module.read_text())] == []


@pytest.mark.parametrize(
    "text",
    [
        "See `leasehold.service.group.migration.moved`.",
        "See `leases.nowhere`.",
        "See `Bootstrap.opened`.",
        "As `exactly.read`.",
        "See `no_such_word_at_all()`.",
        "Raises as `opened` does.",
        "See leasehold.service.group.lag.until_idle.",
    ],
)
def test_a_stale_name_is_found(text: str) -> None:
    assert len(list(unresolved(f'"""{text}"""\n'))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "See `leasehold.leases.bootstrap`, `leasehold.service.host.Host`, `Bootstrap.open` and `bootstrap.Bootstrap`.",
        "See `Bootstrap`, `json.loads`, `len()` and `pyarrow.Table`.",
        "Raises as `f` does, `a b.c` and ``code.of.x``.",
    ],
)
def test_a_name_that_leads_somewhere_passes(text: str) -> None:
    assert list(unresolved(f'"""{text}"""\ndef f(): ...\n')) == []


def test_one_section_tells_how_to_install_our_package() -> None:
    """What a page names has to work today, and after a release. The chart's page names a release, and where to look."""
    named = {page.name for page in PAGES if re.search(r"pip install '(dist/)?leasehold[-_]processor", page.read_text())}
    assert named == {"configuration.md", "kubernetes.md"}
    chart = (ROOT / "docs/kubernetes.md").read_text()
    assert re.search(r"==[\d.]+'`, or \[a wheel\]\(configuration.md#install\)", chart)
