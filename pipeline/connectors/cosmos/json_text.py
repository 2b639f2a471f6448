"""Finds where the values of a JSON text begin and end, so that a document is kept byte for byte.

Its caller checks the nesting of the text first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

JSON = json.JSONDecoder()
_SPACE = " \t\r\n"


def value_text(text: str, start: int, name: str) -> str:
    at = place_of_value(text, name, start)
    return text[at : JSON.raw_decode(text, at)[1]]


def place_of_value(text: str, wanted: str, at: int = 0) -> int:
    """The place of the member's value in the object at `at`. Raises ValueError."""
    at = _expected(text, "{", at)
    while True:
        name, at = JSON.raw_decode(text, _skipped(text, at))
        at = _skipped(text, _expected(text, ":", at))
        if name == wanted:
            return at
        at = _expected(text, ",", JSON.raw_decode(text, at)[1])


def members_of(text: str, at: int) -> Iterator[tuple[tuple[int, int], Any]]:
    """Each member of the array at `at`, with its beginning and end. Raises ValueError, also if the text has no end."""
    at = _skipped(text, _expected(text, "[", at))
    while text[at : at + 1] != "]":
        item, end = JSON.raw_decode(text, at)
        yield (at, end), item
        at = _skipped(text, end)
        at = at if text[at : at + 1] == "]" else _skipped(text, _expected(text, ",", at))
    if not text.rstrip().endswith("}"):
        raise ValueError("it has no end")


def _expected(text: str, mark: str, at: int) -> int:
    at = _skipped(text, at)
    if text[at : at + 1] != mark:
        raise ValueError(f"no '{mark}' at character {at}")
    return at + 1


def _skipped(text: str, at: int) -> int:
    while text[at : at + 1] in _SPACE and at < len(text):
        at += 1
    return at
