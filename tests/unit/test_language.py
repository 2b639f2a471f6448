"""The English of all pages: no phrases of the old dialect, and no sentence above 35 words."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.md")})
WORDS_MAX = 35

DIALECT = [
    r"\btold\b(?! (?:\w+ )?to\b| otherwise\b)",
    r"\btells?\b(?! (?:\w+ ){0,4}(?:to|apart|from)\b)",
    r"(?<!error )(?<!message )(?<!log )\bsays\b",
    r"\b(?:is|are|be|was|were) said\b|\bsaid of\b",
    r"\b(?:is|are|be|was|were|been) asked\b(?! to\b)|\basked for\b",
    r"\bas whom\b",
    r"\b(?:comes?|came|coming) (?:to|again|twice|once more)\b",
    r"\banew\b",
    r"\b(?:go|goes|going|went|gone) on\b",
    r"\bmend(?:s|ed|ing)?\b",
    r"\b(?:stands?|stood) (?:in|at|on|beside|behind|before|under|there|for itself)\b",
    r"\b(?:lies|lay) (?:in|at|on|beside|behind|before|under|there)\b",
    r"(?<!there )\b(?:is|are) no (?!(?:longer|more|less|fewer|later|earlier)\b)\w",
    r"^Of ",
    r"\blets? go\b|\bletting go\b",
    r"\ba part of\b",
    r"\bwhat (?:it|they|he|she) (?:has|have)\b",
    r"^Where (?!(?:is|are|do|does|did|to|can|should)\b)[^?]*, ",
    r", for (?:it|they|there|this|these|those|nothing) ",
    r"\bfresh eyes\b|\bin plain words\b|\b(?:none|one|some|those) of ours\b",
    r"\b(?:whoever|somebody|nobody)\b",
]
"""Patterns of phrases that nobody would say at a whiteboard, for one sentence each. Literal uses pass ("told to stop")."""


def sentences(page: str) -> Iterator[str]:
    """The prose of a page, sentence by sentence: without code blocks and comments; a code span is one word.

    A list item, a heading and a cell of a table begin sentences of their own.
    """
    page = re.sub(r"^( *)```.*?^\1```$", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    page = re.sub(r"(`+).+?\1", "CODE", page, flags=re.DOTALL)
    page = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", page)
    page = re.sub(r"^ {4}.*", "", page, flags=re.MULTILINE) if "\n\n    " in page else page
    page = page.replace("|", "\n\n").replace("*", "")
    page = re.sub(r"^(#+ .*)$", r"\1\n", page, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:-|\d+\.) ", f"\n{page}"):
        text = re.sub(r"^\s*(?:#+|-|\d+\.) ", "", " ".join(paragraph.split()))
        yield from (each for each in re.split(r"(?<=[.?!])\)? (?=[A-Z\"(])", text) if each)


def dialect(sentence: str) -> Iterator[re.Match[str]]:
    for pattern in DIALECT:
        if found := re.search(pattern, sentence, re.IGNORECASE):
            yield found


def problems(page: str) -> Iterator[str]:
    for sentence in sentences(page):
        for found in dialect(sentence):
            yield f"{found.group()!r} in: {sentence}"
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > WORDS_MAX:
            yield f"{len(words)} words in: {sentence}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_in_plain_english(page: Path) -> None:
    found = list(problems(page.read_text()))
    assert not found, "rewrite these sentences (split them, name the actor):\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "A missing column is told.",
        "The row says so.",
        "The sink is asked for its position.",
        "It is as whom an account is used.",
        "What was sent comes again.",
        "The lease begins anew.",
        "The others go on.",
        "Mend the\ntransform.",
        "The position stands in the lease.",
        "This is no conflict.",
        "Sort them. Of all columns Spark reads two.",
        "The lease is let go.",
        "Where it is missing, it is created.",
        "It waits, for it is early.",
        "Nobody leads, and nobody waits.",
        "| metric | what the host was asked for |",
        "- a list\n- somebody\n",
        "word " * 36 + ".",
    ],
)
def test_dialect_is_found(text: str) -> None:
    assert len(list(problems(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "A pod that is told to stop releases its leases. There is no default. It is no longer valid.",
        "The error says which key is missing. Where is it? Owner and epoch tell the two apart.",
        "Run `is told anew` first.\n\n```\nmend it\n```\n\n1. One\n\n   ```yaml\n   anew: 1\n   ```\n",
        "<!-- anew -->\n" + "word " * 30 + ".\n" + "Word " * 30,
        "- " + "word " * 30 + "\n- " + "word " * 30 + "\n\n| " + "word " * 30 + "| " + "word " * 30 + "|",
    ],
)
def test_plain_english_passes(text: str) -> None:
    assert list(problems(text)) == []


MODULES = sorted(
    path for name in ("leases", "pipeline", "service", "leasehold") for path in (ROOT / name).rglob("*.py")
)


def docstrings(source: str) -> Iterator[str]:
    """Of a module, its classes and functions, and of attributes; and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield inspect.cleandoc(node.value.value)
    yield from (comment[2:] for comment in re.findall(r"^\s*(# .*)$", source, flags=re.MULTILINE))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_are_in_plain_english(module: Path) -> None:
    found = [
        f"{each}: {match.group()!r}"
        for text in docstrings(module.read_text())
        for each in sentences(text)
        for match in dialect(each)
    ]
    assert not found, "rewrite these sentences:\n" + "\n".join(found)


def messages(source: str) -> Iterator[str]:
    """The texts of at least four words in a module, docstrings apart: errors, log events, help, descriptions of the API."""
    tree = ast.parse(source)
    apart = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            apart.update(map(id, node.values))
            yield "".join(part.value if isinstance(part, ast.Constant) else "CODE" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in apart:
            yield node.value


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_messages_are_in_plain_english(module: Path) -> None:
    texts = [text for text in messages(module.read_text()) if len(text.split()) >= 4]
    found = [f"{text!r}: {match.group()!r}" for text in texts for each in sentences(text) for match in dialect(each)]
    assert not found, "rewrite these messages:\n" + "\n".join(found)


def test_a_message_is_found_in_errors_and_templates_and_not_in_docstrings() -> None:
    source = '"""It comes again."""\nraise ValueError(f"{x} comes again")\nlog.info("nobody knows", x=1)\n'
    assert sorted(messages(source)) == ["CODE comes again", "nobody knows"]
