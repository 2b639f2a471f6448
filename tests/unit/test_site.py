"""The documentation site: every page is in its navigation, and links lead to pages of the site. `make docs` builds it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import leasehold
import leasehold.testing

ROOT = Path(__file__).parents[2]
HOOK = ROOT / ".ci/site.py"


class Tolerant(yaml.SafeLoader):
    """Reads `!!python/...`, which MkDocs evaluates, as nothing."""


Tolerant.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hook", HOOK)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages_of(nav: list[Any]) -> Iterator[str]:
    for each in nav:
        value = next(iter(each.values())) if isinstance(each, dict) else each
        if isinstance(value, str):
            yield value
        else:
            yield from pages_of(value)


def test_every_page_is_in_the_navigation_once_and_nothing_else_is(site: ModuleType) -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Tolerant)
    shown = sorted(pages_of(settings["nav"]))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} | set(site.PAGES.values()) | {site.API}
    assert [name for name in shown if shown.count(name) > 1] == []
    assert set(shown) == pages
    assert list(settings["nav"][-1]) == ["Contribute"]  # to which the hook adds the decisions


def test_addresses_of_the_site_are_those_of_its_newest_version() -> None:
    """Pages lie below the version or `latest`, as mike arranges them. Only the root has a page, which leads to `latest`."""
    base = yaml.load((ROOT / "mkdocs.yml").read_text(), Tolerant)["site_url"]
    files = [path for path in (ROOT / "helm").rglob("*") if path.is_file()]
    files += [
        ROOT / "pyproject.toml",
        *(ROOT / "emulators" / name for name in ("pyproject.toml", "README.md")),
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
    ]
    named = {(each.name, page) for each in files for page in re.findall(rf"{base}([\w./-]+\w)", each.read_text())}
    assert {name for name, _ in named} >= {"Chart.yaml", "README.md", "values.yaml", "pyproject.toml"}
    pages = {f"latest/{path.stem}.html" for path in (ROOT / "docs").glob("*.md")}
    assert [each for each in sorted(named) if each[1] not in pages] == []


def test_every_decision_is_listed_in_order(site: ModuleType) -> None:
    assert len(site.decisions()) == len(list((ROOT / "docs/decisions").iterdir())) > 10
    assert site.decisions()[0].startswith("decisions/0001-")


def test_the_api_has_every_name_that_others_may_import_once(site: ModuleType) -> None:
    public = [f"{package.__name__}.{name}" for package in (leasehold, leasehold.testing) for name in package.__all__]
    assert sorted(re.findall(r"^::: (\S+)$", site.api_page(), re.MULTILINE)) == sorted(public)


def test_the_api_has_the_settings_of_every_section(site: ModuleType) -> None:
    found = site.settings()
    sections = {name: getattr(leasehold, name) for name in site.SECTIONS if name in leasehold.__all__}
    assert len(sections) > 20
    for name, section in sections.items():
        told = {re.findall(r"`([\w.]+)`", row)[0].partition(".")[0] for row in found[name]}
        written = {field.alias or key for key, field in section.model_fields.items() if not field.exclude} - {"type"}
        assert told == written, name


@pytest.mark.parametrize(
    ("page", "text", "rewritten"),
    [
        ("index.md", "[a](docs/rest.md#bounds)", "[a](rest.md#bounds)"),
        ("index.md", "![a](docs/dashboard.png)", "![a](dashboard.png)"),
        ("index.md", "[a](LICENSE)", "[a](source/LICENSE.md)"),
        ("rest.md", "[a](../README.md#status)", "[a](index.md#status)"),
        ("rest.md", "[a](../service/host.py)", "[a](source/service/host.py.md)"),
        ("plugins.md", "[a](../tests/plugins/tables)", "[a](source/tests/plugins/tables/index.md)"),
        ("decisions/x.md", "[a](../../service/host.py)", "[a](../source/service/host.py.md)"),
        ("decisions/x.md", "[a](../protocol.md)", "[a](../protocol.md)"),
        ("handlers.md", "[a](examples/programs)", "[a](source/docs/examples/programs/index.md)"),
        ("rest.md", "[a](#bounds)", "[a](#bounds)"),
        ("rest.md", "[a](https://example.org/x)", "[a](https://example.org/x)"),
        ("rest.md", "[a](../missing.py)", "[a](../missing.py)"),
        ("rest.md", "[a](../../outside)", "[a](../../outside)"),
        ("index.md", "```md\n[a](LICENSE)\n```\n[a](LICENSE)", "```md\n[a](LICENSE)\n```\n[a](source/LICENSE.md)"),
    ],
)
def test_links_lead_to_pages_of_the_site(site: ModuleType, page: str, text: str, rewritten: str) -> None:
    assert site.rewrite(text, page) == rewritten


def test_a_source_has_a_page_and_a_directory_one_for_each_of_its_files(site: ModuleType) -> None:
    pages = site.generated()
    folder = ROOT / "tests/plugins/tables"
    assert (ROOT / "service/host.py").read_text() in pages["source/service/host.py.md"]
    assert {f"source/tests/plugins/tables/{path.name}.md" for path in folder.glob("*.py")} <= pages.keys()
    listed = re.findall(r"\((\S+)\.md\)", pages["source/tests/plugins/tables/index.md"])
    assert listed == sorted(path.name for path in folder.iterdir() if path.is_file())


def test_headings_of_the_same_text_are_numbered_as_on_github(site: ModuleType) -> None:
    taken: set[str] = set()
    assert [site.unique_anchor("type", taken) for _ in range(3)] == ["type", "type-1", "type-2"]
