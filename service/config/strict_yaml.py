"""YAML as plain data: texts, numbers, true, false, null, lists, and mappings with text keys. Every place keeps its line.

Features that surprise people are refused: aliases (a few lines of them fill any memory), tags, merge keys and duplicate keys.
`yes`, `on`, `1:30`, `010` and `2026-01-31` do not have their old meanings: they are the texts (or the number ten) that they look
like.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import yaml

UNREADABLE = object()
"""Stands for a value that is reported already."""

DEPTH_MAX = 20
DIGITS_MAX = 18

KeyPath = tuple[str | int, ...]
"""A value's place: the keys and indexes that lead to it."""


@dataclass(frozen=True, slots=True)
class SettingsProblem:
    """line: from 1; 0 if the problem concerns the whole file."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """root: None if the text is empty or cannot be read. problems: all that were found; a value with a problem is UNREADABLE
    in root, or left out."""

    root: object
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    problems: tuple[SettingsProblem, ...] = ()


def read(text: str, *, fraction: Callable[[str], object] = float) -> YamlDocument:
    """Never raises because of the text. fraction: converts a number with a point or an exponent."""
    try:
        node = _composed(text)
    except yaml.MarkedYAMLError as error:
        return YamlDocument(None, problems=(_unreadable(text, error),))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"the character U+{error.character:04X} is not allowed: remove it, or write it as an escape in double quotes"
        return YamlDocument(None, problems=(SettingsProblem(line, what),))
    reading = _MappingReading(fraction)
    root = None if node is None else reading.value(node, ())
    return YamlDocument(root, reading.lines, tuple(reading.problems))


def _composed(text: str) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _unreadable(text: str, error: yaml.MarkedYAMLError) -> SettingsProblem:
    mark = error.problem_mark or error.context_mark
    line, column, at = (mark.line + 1, mark.column + 1, mark.index) if mark else (0, 0, 0)
    what = "; ".join(part for part in (error.context, error.problem) if part)
    is_reference = text[max(0, at - 1) : at + 1] == "${"
    hint = ' (inside { } write "${NAME}", with quotes)' if is_reference else ""
    return SettingsProblem(line, f"column {column}: this is not the YAML that is read here: {what}{hint}")


class _Loader(yaml.SafeLoader):
    """Composes nodes and nothing more; no objects are made from tags."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # PyYAML's own name and shape

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs have no types for it
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "an alias (*): write the value out", event.start_mark)
        if self._depth >= DEPTH_MAX:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {DEPTH_MAX} levels", event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


_NULL, _BOOL, _INT, _FLOAT, _TEXT = (f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str"))
for _tag, _pattern, _first in (
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, r"[-+]?[0-9]+", list("-+0123456789")),
    (_FLOAT, r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
):  # YAML 1.2's core schema
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _first)


class _MappingReading:
    """Values from nodes. Continues after a problem, to find all of them."""

    def __init__(self, fraction: Callable[[str], object]) -> None:
        self._fraction = fraction
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[SettingsProblem] = []

    def value(self, node: yaml.Node, place: KeyPath) -> object:
        self.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*place, index)) for index, child in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, place: KeyPath) -> dict[str, object]:
        values: dict[str, object] = {}
        for key_node, child in node.value:
            key = self._key(key_node)
            if key is None:
                continue
            if key in values:
                first = self.lines[(*place, key)]
                self._refuse(key_node, f"key '{key}' appears a second time (first in line {first}): keep one of them")
                continue
            self.lines[(*place, key)] = key_node.start_mark.line + 1
            values[key] = self.value(child, (*place, key))
        return values

    def _key(self, node: yaml.Node) -> str | None:
        key = self._scalar(node) if isinstance(node, yaml.ScalarNode) else None
        if isinstance(key, str):
            return key
        if key is not UNREADABLE:
            self._refuse(node, "this key is not text: put it in quotes")
        return None

    def _scalar(self, node: yaml.ScalarNode) -> object:
        """A text, a number, true, false, None, or UNREADABLE."""
        text: str = node.value
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            return self._refuse(node, "a text holds a NUL or half of a surrogate pair: remove it")
        if node.tag == _TEXT:
            return text
        if node.tag == _NULL:
            return None
        if node.tag == _BOOL:
            return text.lower() == "true"
        if node.tag in (_INT, _FLOAT):
            return self._read_number(node)
        return self._refuse(node, f"the tag {node.tag} is not read here: write the plain value")

    def _read_number(self, node: yaml.ScalarNode) -> object:
        try:
            if len(node.value) <= DIGITS_MAX + 2:
                return int(node.value) if node.tag == _INT else self._fraction(node.value)
            return self._refuse(node, f"a number of more than {DIGITS_MAX} digits: shorten it, or put it in quotes")
        except (ValueError, ArithmeticError):  # an explicit tag on something else
            return self._refuse(node, "this is not a number")

    def _refuse(self, node: yaml.Node, text: str) -> object:
        self.problems.append(SettingsProblem(node.start_mark.line + 1, text))
        return UNREADABLE
