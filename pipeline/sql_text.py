"""What can be known about a query or a schema (DDL) from its text, without Spark. Pure."""

from __future__ import annotations

import re
from itertools import accumulate

_NAME = re.compile(r"\s*(?:`((?:[^`]|``)*)`|([^\s:,`]+))")
_NOT_NULL = re.compile(r"\bNOT\s+NULL\b", re.IGNORECASE)
_OPENS, _CLOSES = "<(", ">)"


def columns_of(schema: str) -> dict[str, bool]:
    """The names of the outermost columns, in order, each with whether it is NOT NULL.

    A text that is not a schema yields whatever looks like a column; Spark reports the error.
    """
    columns, depth, quote, start, outermost = dict[str, bool](), 0, "", 0, ""
    for index, char in enumerate(f"{schema},"):
        if quote:
            quote = "" if char == quote else quote
        elif char in "`'\"":
            quote = char
        elif char in _OPENS:
            depth += 1
        elif char in _CLOSES:
            depth -= 1
        elif char == "," and depth == 0:
            if (found := _NAME.match(schema, start, index)) is not None:
                columns[found[2] or found[1].replace("``", "`")] = _NOT_NULL.search(outermost) is not None
            start, outermost = index + 1, ""
        elif depth == 0:
            outermost += char
    return columns


SCHEMA_LEVELS_MAX = 32
"""Spark hands a schema to Python's pickle, which recurses: about 50 levels are too many for it."""
SQL_LEVELS_MAX = 200
"""About 400 brackets exhaust the stack of Spark's parser, and thousands keep it busy for minutes."""
_APART = re.compile(r"'(?:[^'\\]|\\.)*'?|\"(?:[^\"\\]|\\.)*\"?|`[^`]*`?|--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
"""Strings, quoted names and comments. One that is not closed reaches to the end."""


def schema_problem(ddl: str) -> str | None:
    """What is wrong with a schema's nesting, if it is too deep."""
    return _problem(ddl, "<>", SCHEMA_LEVELS_MAX)


def sql_problem(query: str) -> str | None:
    """What is wrong with a query's nesting, if it is too deep."""
    return _problem(query, "()", SQL_LEVELS_MAX)


def _problem(text: str, brackets: str, levels_max: int) -> str | None:
    if text.count(brackets[0]) <= levels_max:
        return None
    steps = (1 if each == brackets[0] else -1 for each in _APART.sub(" ", text) if each in brackets)
    depth = max(accumulate(steps), default=0)
    if depth <= levels_max:
        return None
    return (
        f"must nest {brackets} at most {levels_max} levels deep, and nests them {depth} levels deep: write it flatter"
    )
