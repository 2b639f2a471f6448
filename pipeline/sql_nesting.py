"""SQL and its types (DDL) whose nesting is bounded before Spark's parser recurses into them. Pure."""

from __future__ import annotations

import re
from itertools import accumulate

SCHEMA_LEVELS_MAX = 32
"""Spark hands a schema to Python's pickle, which recurses: some 50 levels are too many for it."""
SQL_LEVELS_MAX = 200
"""Some 400 brackets exhaust the stack of Spark's parser, and thousands keep it busy for minutes."""
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
