"""The texts that people read, out of the files that contain them: Markdown, Python, JavaScript, HTML and the chart."""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import tokenize
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any


def sentences(page: str) -> Iterator[str]:
    """The prose of a page, sentence by sentence: without code blocks and comments; a code span is one word.

    A list item, a heading, a cell of a table, a branch of a tree and a column begin sentences of their own.
    """
    page = re.sub(r"^( *)```.*?^\1```$", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    page = re.sub(r"(`+).+?\1", "CODE", page, flags=re.DOTALL)
    page = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", page)
    page = re.sub(r"^ {4}.*", "", page, flags=re.MULTILINE) if "\n\n    " in page else page
    page = re.sub(r"[|│├└]|\+--|(?<=\S) {3,}(?=\S)", "\n\n", page).replace("*", "")
    page = re.sub(r"^(#+ .*)$", r"\1\n", page, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:-|\d+\.) ", f"\n{page}"):
        text = re.sub(r"^\s*(?:#+|-|\d+\.) ", "", " ".join(paragraph.split()))
        yield from (each for each in re.split(r"(?<=[.?!])\)? (?=[A-Z\"(])", text) if each)


def docstrings(source: str) -> Iterator[str]:
    """Of a module, its classes and functions, and of attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield inspect.cleandoc(node.value.value)


def comments(source: str) -> Iterator[str]:
    """Trailing comments, and blocks of comment lines; no marks for tools, such as `# noqa: E501`."""
    block, last = "", (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or not token.string.startswith("# "):
            continue
        text = re.sub(r"(?:^|\s*# )(?:noqa|type|pragma|fmt|pylint)\b.*", "", token.string[2:])
        row, column = token.start
        if token.line[:column].strip() or (row - 1, column) != last:
            yield block
            block = ""
        block = f"{block}\n{text}" if block else text
        last = (row, column) if not token.line[:column].strip() else (0, 0)
    yield block


def messages(source: str) -> Iterator[str]:
    """The texts of at least two words in a module, docstrings apart: errors, log events, help, descriptions of the API."""
    tree = ast.parse(source)
    apart = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            apart.update(map(id, node.values))
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "CODE" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in apart:
            text = node.value
        if len(text.split()) >= 2:
            yield text


NESTED = r"\$\{(?:[^{}`]|`[^`]*`|\{[^{}]*\})*\}"
SCRIPT_TEXT = re.compile(rf'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|`(?:\\.|{NESTED}|[^`\\])*`', re.DOTALL)


def script_texts(source: str) -> Iterator[str]:
    """The comments of a script, and its texts of at least two words."""
    for text in SCRIPT_TEXT.findall(source):
        if text.startswith(("//", "/*")):
            yield re.sub(r"^[ \t]*(?://|/\*\*?|\*/|\*) ?", "", text.removesuffix("*/"), flags=re.MULTILINE).strip()
            continue
        for nested in re.findall(NESTED, text):
            yield from script_texts(nested[2:-1])
        plain = re.sub(NESTED, "CODE", text[1:-1])
        if len(plain.split()) >= 2:
            yield plain


class Visible(HTMLParser):
    """The texts of a page, and those of its attributes that are shown or read aloud."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.is_new = True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [
            text for name, text in attrs if text and name in ("aria-label", "title", "alt", "placeholder", "content")
        ]
        self.is_new = self.is_new or tag not in ("code", "strong", "em")

    def handle_endtag(self, tag: str) -> None:
        self.is_new = self.is_new or tag not in ("code", "strong", "em")

    def handle_data(self, data: str) -> None:
        if self.is_new or not self.texts:
            self.texts.append("")
        self.texts[-1] += data
        self.is_new = False


def page_texts(source: str) -> list[str]:
    visible = Visible()
    visible.feed(source)
    return [text for text in map(str.strip, visible.texts) if text]


def yaml_texts(source: str) -> Iterator[str]:
    """The comments of a YAML file (the lines of a block as one text), and the texts of alerts and descriptions."""
    block = ""
    for line in source.splitlines():
        whole, trailing = re.match(r"\s*# ?(.*)", line), re.search(r"\S.*?(?:\s|}})# (.*)", line)
        if whole:
            block = f"{block}\n{whole[1]}"
            continue
        yield block
        block = ""
        if trailing:
            yield trailing[1]
        if text := re.match(r"\s*(?:summary|description): (.*)", line):
            yield re.sub(r"\{\{.*?\}\}", "CODE", text[1])
    yield block


def template_texts(source: str) -> Iterator[str]:
    """What a template of the chart contains for people: comments, and the texts with which it fails."""
    yield from re.findall(r"\{\{-? ?/\*(.*?)\*/", source, flags=re.DOTALL)
    yield from (text for text in re.findall(r'"((?:\\.|[^"\\])*)"', source) if len(text.split()) >= 4)
    yield from yaml_texts(re.sub(r"\{\{.*?\}\}", "CODE", source))


def notes_texts(source: str) -> list[str]:
    """The notes after an installation: each line of prose, without the commands."""
    lines = re.sub(r"\{\{.*?\}\}", "CODE", source).splitlines()
    return [line for line in lines if not line.startswith(" ") and line.strip(" CODE-")]


def json_texts(value: Any) -> Iterator[str]:
    """The titles and descriptions of a JSON document."""
    if isinstance(value, dict):
        yield from (value[key] for key in ("title", "description") if isinstance(value.get(key), str))
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from json_texts(each)


def chart_texts(name: str, source: str) -> list[str]:
    """The texts of one of the chart's files."""
    if name.endswith(".json"):
        return list(json_texts(json.loads(source)))
    if name.endswith(".md"):
        return [source]
    if name.endswith(".py"):
        return [*docstrings(source), *messages(source)]
    if name == "NOTES.txt":
        return notes_texts(source)
    if name.endswith(".tpl") or "{{-" in source:
        return list(template_texts(source))
    return list(yaml_texts(source))
