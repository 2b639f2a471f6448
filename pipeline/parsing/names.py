"""The columns of a schema, read from its text without Spark. Pure."""

from __future__ import annotations

import re

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
