"""The names of a schema's columns, as its text has them: for those who cannot wait for Spark to read it. Pure."""

from __future__ import annotations

import re

_NAME = re.compile(r"\s*(?:`((?:[^`]|``)*)`|([^\s:,`]+))")
_OPENS, _CLOSES = "<(", ">)"


def column_names(schema: str) -> tuple[str, ...]:
    """Those of the outermost columns, in their order. Of a text that is no schema, whatever looks like one: Spark tells."""
    names, depth, quote, start = [], 0, "", 0
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
                names.append(found[2] or found[1].replace("``", "`"))
            start = index + 1
    return tuple(names)
