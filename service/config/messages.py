"""What is said of a setting that is not what it must be."""

from __future__ import annotations

from pydantic_core import ErrorDetails

_WORDS = {
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("dict_type", "mapping_type"), "must be a mapping"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("model_type", "model_attributes_type"), "must be a mapping of settings"),
    **dict.fromkeys(("string_too_short", "too_short"), "must not be empty"),
    "finite_number": "must be a finite number",
    "path_type": "must be a path",
    "string_type": "must be a text (put it in quotes)",
    "tuple_type": "must be a list",
}
"""pydantic's errors, where its own words would not tell a person what to write."""


def said_of(error: ErrorDetails) -> str:
    """Without the value. A rule of ours may have several things to say, each on a line."""
    kind, message = error["type"], error["msg"]
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    return _WORDS.get(kind) or message.replace("Input should", "must").replace("String should", "must")
