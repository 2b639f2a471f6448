"""The English of all texts: no phrases of the old dialect, and no sentence above 35 words.

It reads pages, docstrings, comments, messages of any length, the chart, and the dashboard.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from prose import chart_texts, comments, docstrings, messages, page_texts, script_texts, sentences

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.md")})
MODULES = sorted(
    path for name in ("leases", "pipeline", "service", "leasehold", "emulators") for path in (ROOT / name).rglob("*.py")
)
CHART = sorted(path for path in (ROOT / "helm").rglob("*") if path.is_file())
DASHBOARD = sorted(path for path in (ROOT / "service/dashboard").iterdir() if path.suffix in (".js", ".html"))
WORDS_MAX = 35

DIALECT = [
    r"\btold\b(?! (?:\w+ )?to\b| otherwise\b)",
    r"\btells?\b(?! (?:\w+ ){0,4}(?:to|apart|from)\b)",
    r"(?<!error )(?<!message )(?<!log )\bsays\b",
    r"\b(?:is|are|be|was|were) said\b|\bsaid of\b",
    r"\b(?:is|are|be|was|were|been) asked\b(?! to\b)|\basked for\b",
    r"\bas whom\b",
    r"\b(?:comes?|came|coming) (?:to|again|twice|once more)\b",
    r"\bcomes? (?:as(?! (?:far|soon))|by (?:itself|themselves))\b",
    r"\banew\b",
    r"\b(?:go|goes|going|went|gone) on\b",
    r"\bgo(?:es)? with\b",
    r"\bmend(?:s|ed|ing)?\b",
    r"\b(?:stands?|stood) (?:in|at|on|beside|behind|before|under|there|for itself)\b",
    r"\b(?:lies|lay) (?:in|at|on|beside|behind|before|under|there)\b",
    r"(?<!there )\b(?:is|are) no (?!(?:longer|more|less|fewer|later|earlier)\b)\w",
    r"(?-i:^Of )",
    r"(?<!each )(?<!one )(?<!none )(?<!some )(?<!all )(?<!most )(?<!both )\bof which\b",
    r"\bwhich (?:makes?|has|have|is|are|needs?) none\b",
    r"\blets? (?:go|in)\b|\bletting go\b",
    r"\b(?:is|are|was|were) (?:not )?taken back\b",
    r"\b(?:is|are|was|were) to be\b|\bto be (?:found|had)\b",
    r"\b(?:that|those) (?:are|is) there\b|\b(?:is|are) there$|\bthere are$",
    r"\blooked (?:at|for)\b",
    r"\bof no (?:use|effect)\b|\bno (?:use|more)$|\bany ?more$",
    r"\ba part of\b",
    r"\bwhat (?:it|they|he|she) (?:has|have)\b|\bwhat is done\b",
    r"(?-i:^Where )(?!(?:is|are|do|does|did|to|can|should)\b)[^?]*, ",
    r"\bwhere it is missing\b|\band we may\b",
    r", for (?:it|they|there|this|these|those|nothing) ",
    r"\bfresh eyes\b|\bin plain words\b|\b(?:none|one|some|those) of ours\b",
    r"\b(?:whoever|somebody|nobody|everybody|those who)\b",
    r"^Who (?:asks|has|holds|waits|still|takes|does|reads there)\b[^?]*$",
    r"\bbut for\b|\bnot neither\b",
    r"\bat work\b|\bheard of\b|\bheld to\b",
]
"""Patterns of phrases that nobody would say at a whiteboard, for one sentence each. Literal uses pass ("told to stop")."""

IN_MESSAGES = [
    r"\b(?:is|are) gone\b",
    r"\bnot there\b",
    r"\bnot known here\b",
    r"\ball the time\b",
    r"\bstands? for\b",
    r"(?:[:,;(] |\bor )say\b",
    r"\bwe\b",
]
"""Phrases that are fine in an explanation, and do not help the reader of an error or a log."""

CODE = ("SELECT ", "(SELECT ", "(VALUES ", "CREATE ", "INSERT ", "PRAGMA ", "<!doctype")
"""How messages begin that are not prose."""


def dialect(sentence: str, patterns: Iterable[str] = DIALECT) -> Iterator[re.Match[str]]:
    for pattern in patterns:
        if found := re.search(pattern, sentence, re.IGNORECASE):
            yield found


def problems(page: str, patterns: Iterable[str] = DIALECT) -> Iterator[str]:
    for sentence in sentences(page):
        for found in dialect(sentence, patterns):
            yield f"{found.group()!r} in: {sentence}"
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > WORDS_MAX:
            yield f"{len(words)} words in: {sentence}"


def refuse(files: Iterable[Path], texts_in: Callable[[Path], Iterable[str]], patterns: Iterable[str] = DIALECT) -> None:
    found = [
        f"{from_root(file)}: {problem}"
        for file in files
        for text in texts_in(file)
        for problem in problems(text, patterns)
    ]
    assert not found, "rewrite these sentences (split them, name the actor):\n" + "\n".join(found)


def from_root(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_pages_are_in_plain_english() -> None:
    refuse(PAGES, lambda page: [page.read_text()])


def test_docstrings_are_in_plain_english() -> None:
    refuse(MODULES, lambda module: docstrings(module.read_text()))


def test_comments_are_in_plain_english() -> None:
    refuse(MODULES, lambda module: comments(module.read_text()))


def test_messages_are_in_plain_english() -> None:
    def prose(module: Path) -> Iterator[str]:
        return (text for text in messages(module.read_text()) if not text.lstrip().startswith(CODE))

    refuse(MODULES, prose, DIALECT + IN_MESSAGES)


def test_the_chart_is_in_plain_english() -> None:
    refuse(CHART, lambda file: chart_texts(file.name, file.read_text()))


def test_the_dashboard_is_in_plain_english() -> None:
    def texts(file: Path) -> Iterable[str]:
        return page_texts(file.read_text()) if file.suffix == ".html" else script_texts(file.read_text())

    refuse(DASHBOARD, texts)


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
        "Where it is absent, it is created.",
        "It waits, for it is early.",
        "Nobody leads, and nobody waits.",
        "| metric | what the host was asked for |",
        "- a list\n- somebody\n",
        "The buffer has entries, of which two are sent.",
        "`key` goes with `container`.",
        "The position is not to be found.",
        "`list` shows those there are",
        "Pods reach nothing but for these ports.",
        "word " * 36 + ".",
    ],
)
def test_dialect_is_found(text: str) -> None:
    assert len(list(problems(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "As whom an Azure account is come to: the same words for leases, feeds and sinks.",
        "What is said of a setting that is not what it must be.",
        (
            "While modules are imported nothing becomes garbage, and looking for it again and again"
            " takes a part of a process's start."
        ),
        "Where a lease begins anew whose document was deleted, as far as its sink or its parents know",
        "nobody to come as (...): log in, or set a key",
        "Of CSV files the header names the columns that `schema` picks, by the same names; one that a header lacks is told.",
        "A pipeline's name stays: under another one it begins anew.",
        "what they do beside their output is not taken back",
        "It is made where it is missing and we may.",
        "has `dead_letters` and `on_error: stop`, which makes none: remove one of them",
        "schemas, SQL and connections: not looked at (--probe does)",
        "leases: {type: memory} is gone when this command ends: name a lease store that stays",
        "Who does not answer at all is told at the start; later, hosts wait for it.",
        "lease let go",
    ],
)
def test_the_examples_of_the_old_dialect_are_found(text: str) -> None:
    assert list(problems(text, DIALECT + IN_MESSAGES))


@pytest.mark.parametrize(
    "text",
    [
        "A pod that is told to stop releases its leases. There is no default. It is no longer valid.",
        "The error says which key is missing. Where is it? Owner and epoch tell the two apart.",
        "Run `is told anew` first.\n\n```\nmend it\n```\n\n1. One\n\n   ```yaml\n   anew: 1\n   ```\n",
        "<!-- anew -->\n" + "word " * 30 + ".\n" + "Word " * 30,
        "- " + "word " * 30 + "\n- " + "word " * 30 + "\n\n| " + "word " * 30 + "| " + "word " * 30 + "|",
        "Each partition has a queue, one of which is full. The host takes back its leases.",
    ],
)
def test_plain_english_passes(text: str) -> None:
    assert list(problems(text)) == []


def test_a_message_is_found_in_errors_and_templates_and_not_in_docstrings() -> None:
    source = '"""It comes again."""\nraise ValueError(f"{x} comes again")\nlog.info("lease let go", key="told")\n'
    assert sorted(messages(source)) == ["CODE comes again", "lease let go"]


def test_comments_are_read_in_blocks_and_at_the_ends_of_lines() -> None:
    source = "# One\n# sentence.\nx = 1  # the end  # noqa: E501\ny = 2  # noqa: E501\n# another\n"
    assert [text for text in comments(source) if text] == ["One\nsentence.", "the end", "another"]


def test_texts_of_a_script_are_found_also_within_templates() -> None:
    source = 'a("two words"); // why\nb(`as ${x ? `it was ${y}` : ""} then`); /** What\n * it is. */'
    assert list(script_texts(source)) == ["two words", "why", "it was CODE", "as CODE then", "What\nit is."]


def test_texts_of_a_page_are_found_also_in_attributes() -> None:
    assert page_texts('<p aria-label="A label">Set <code>key</code> first.</p><p>Then go.') == [
        "A label",
        "Set key first.",
        "Then go.",
    ]


@pytest.mark.parametrize(
    ("name", "source", "texts"),
    [
        ("values.yaml", "# Two\n# lines\nname: x  # why\n", ["Two\nlines", "why"]),
        ("alerts.yaml", '  summary: "{{ $value }} fail"\n', ['"CODE fail"']),
        ("_a.tpl", '{{- /* Why. */}}{{ fail "it is not good enough" }}', ["Why.", "it is not good enough"]),
        ("NOTES.txt", "{{- $x := 1 -}}\nHosts start.\n\n  kubectl get pods\n", ["Hosts start."]),
        ("values.schema.json", '{"a": [{"description": "Why."}]}', ["Why."]),
    ],
)
def test_texts_of_the_chart_are_found(name: str, source: str, texts: list[str]) -> None:
    assert [text.strip() for text in chart_texts(name, source) if text.strip()] == texts
