"""docs/plugins.md: what it shows is what there is, and what it tells of is all that a third party needs."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest
from unit.test_architecture import imported_names, is_within

from leasehold.leases import errors as lease_errors
from leasehold.leases import store
from leasehold.pipeline import errors, feed, sink
from leasehold.service.config.load import parse
from leasehold.service.wiring.problems import find_problems

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plugins.md").read_text()
PLUGIN = sorted((ROOT / "tests" / "plugins" / "tables").glob("*.py"))
INTERFACES = (feed.ChangeFeed, sink.Sink, sink.SinkWriter, store.LeaseStore)
BASES = (errors.FeedError, errors.SinkError, lease_errors.StoreError)
OUT_OF_THE_SKY = {"SinkError", "StoreError", "OutputSuspected"}
"""Bases alone, and what the pump says to the host."""


async def test_its_settings_load_and_make_parts_that_lack_nothing(tmp_path: Path) -> None:
    (example,) = re.findall(r"<!-- settings -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    settings = parse(example, {}, folder=tmp_path)
    assert await find_problems(settings) == []


@pytest.mark.parametrize(("path", "block"), re.findall(r"<!-- of: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
def test_what_it_shows_of_a_file_stands_there(path: str, block: str) -> None:
    assert block in (ROOT / path).read_text()


def test_every_member_of_every_base_class_is_told() -> None:
    members = {name for base in INTERFACES for name in (*vars(base), *base.__annotations__) if not name.startswith("_")}
    assert {"compare", "claimed", "holds_position", "replace"} <= members
    assert [name for name in sorted(members) if not re.search(rf"`{name}[`(]", PAGE)] == []


def test_every_error_that_a_part_may_raise_is_told() -> None:
    raised = {
        name
        for module in (errors, feed, lease_errors)
        for name, found in vars(module).items()
        if isinstance(found, type) and issubclass(found, BASES)
    }
    assert len(raised) > 10
    assert [name for name in sorted(raised - OUT_OF_THE_SKY) if f"| `{name}` |" not in PAGE] == []


def test_the_plugin_uses_what_the_page_tells_of_and_nothing_else() -> None:
    used = {name for path in PLUGIN for name in imported_names(ast.parse(path.read_text())).values()}
    ours = {name for name in used if is_within(name, ("leasehold",))}
    assert len(ours) > 10
    tables = re.findall(r"^\| from `(leasehold[.\w]*)` \|.*\n\| --- .*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    listed = {f"{package}.{name}" for package, rows in tables for name in re.findall(r"`(\w+)`", rows)}
    assert ours - listed == set()


def test_the_versions_are_those_of_the_code() -> None:
    assert "All are 1." in PAGE
    assert [module.INTERFACE for module in (feed, sink, store)] == [1, 1, 1]


def test_what_is_shown_is_python() -> None:
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        ast.parse(textwrap.dedent(block) + ("    ...\n" if block.rstrip().endswith("-> None:") else ""))
