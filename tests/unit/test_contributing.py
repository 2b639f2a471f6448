"""What contributors and maintainers are told agrees with the Makefile, the files and the lock file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
PAGES = [
    ROOT / name
    for name in ("CONTRIBUTING.md", "SECURITY.md", "docs/maintainers.md", ".github/pull_request_template.md")
]
HOOKS = ROOT / ".pre-commit-config.yaml"
LISTED_MAX = 15


def listed() -> set[str]:
    """By `make help`, which shows targets with `##`."""
    return set(re.findall(r"^([a-z]+):.*## ", MAKEFILE, re.MULTILINE))


def named(text: str) -> set[str]:
    """The targets of each `make ...` in backticks."""
    calls = re.findall(r"`make ([^`]+)`", text)
    return {word for call in calls for word in call.split() if re.fullmatch(r"[a-z-]+", word)}


def test_the_list_of_targets_is_short() -> None:
    assert {"help", "demo", "test", "check", "docs"} <= listed() <= TARGETS
    assert len(listed()) <= LISTED_MAX


def test_the_page_for_maintainers_has_every_target_that_the_list_leaves_out() -> None:
    assert TARGETS - listed() - named((ROOT / "docs/maintainers.md").read_text()) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_target_that_a_page_names_is_there(page: Path) -> None:
    assert named(page.read_text()) - TARGETS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    tops = r"(?:docs|helm|leasehold|leases|pipeline|service|tests|\.ci|\.github)"
    paths = {f"./{path}" for path in re.findall(rf"`({tops}/[\w./-]+)`", text)}
    paths |= {f"{page.relative_to(ROOT).parent}/{path}" for path in re.findall(r"\]\(([^)#:]+)\)", text)}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_hooks_before_a_commit_are_those_of_make_check() -> None:
    locked = {each["name"]: each["version"] for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    ruff, local = yaml.safe_load(HOOKS.read_text())["repos"]
    assert ruff["rev"] == f"v{locked['ruff']}"
    assert [hook["id"] for hook in ruff["hooks"]] == ["ruff-check", "ruff-format"]
    assert {hook["entry"] for hook in local["hooks"]} == {
        command
        for target in ("types", "arrows")
        for command in re.findall(rf"^{target}:.*\n\t(.*)", MAKEFILE, re.MULTILINE)
    }
