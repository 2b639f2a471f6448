"""Every decision has one template: a numbered title, status, context, decision and consequences; one sentence a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs/decisions").iterdir())
PARTS = ["Status", "Context", "Decision", "Consequences"]
STATUS = r"(?:accepted|superseded by \[decision \d{4}\]\(\d{4}-[^)]*\.md\))"


def parts(page: str) -> list[str]:
    """The template's parts in the order in which a page has them."""
    return [part for part in re.findall(r"^\*\*(\w+)(?:\.\*\*|:\*\*)", page, re.MULTILINE) if part in PARTS]


def crowded(page: str) -> Iterator[str]:
    """The lines of prose that hold more than one sentence, or end within one."""
    page = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    for line in page.splitlines():
        if not line or line.startswith(("#", "|")) or re.match(r"\*\*\w+:\*\*", line):
            continue
        text = re.sub(r"`[^`]*`|\([^()]*\)|<http[^>]*>", "Code", line)
        is_item = re.match(r" *(?:-|\d+\.) ", line) is not None
        text = re.sub(r"^ *(?:-|\d+\.) ", "", text)
        if re.search(r"[.?!][*\"]* (?=[A-Z*\"(\[])", text) or not (is_item or re.search(r"[.:?!][*\"]*$", text)):
            yield line


@pytest.mark.parametrize("page", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_follows_the_template(page: Path) -> None:
    text = page.read_text()
    number = page.name[:4]
    assert re.match(rf"# {number}: .+\n\n\*\*Status:\*\* {STATUS}\.\n\n\*\*Context\.\*\*\n", text)
    assert parts(text) == PARTS
    assert list(crowded(text)) == [], "one sentence a line"


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [path.name[:4] for path in DECISIONS] == [f"{number:04}" for number in range(1, len(DECISIONS) + 1)]


@pytest.mark.parametrize(
    "page",
    ["One sentence. Another one.", "A sentence\nthat is cut.", "- An item. Another sentence.", "It is *so.* And so."],
)
def test_a_crowded_line_is_found(page: str) -> None:
    assert list(crowded(page))


@pytest.mark.parametrize(
    "page",
    [
        "One sentence.\nAnother one (here).",
        "- an item\n- Another one.\n  It has two sentences.",
        "| a. B | c |",
        "See `a. B`.",
    ],
)
def test_one_sentence_a_line_passes(page: str) -> None:
    assert not list(crowded(page))
