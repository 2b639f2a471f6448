"""Parse JSON only after bounding its nesting. Pure.

Python's parser recurses. How deep it can go depends on the version, the stack and the caller, so the limit is checked
first.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

_PLAIN = json.JSONDecoder()
_OTHERS = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_ROUNDS = 8
"""Nearly all texts nest no deeper than this, and need no counting of single brackets."""


class NestedTooDeeply(ValueError):
    """The text nests too deeply."""


def parsed_json(text: str | bytes, levels_max: int, decoder: json.JSONDecoder = _PLAIN) -> Any:
    """Like `json.loads`. Raises ValueError."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    check_nesting(text, levels_max)
    return decoder.decode(text)


def check_nesting(text: str, levels_max: int) -> None:
    """Takes time linear in the text, and almost none for a text with few arrays and objects. Raises NestedTooDeeply."""
    if len(text) > levels_max and text.count("[") + text.count("{") > levels_max and _depth(text) > levels_max:
        raise NestedTooDeeply(f"nested more than {levels_max} levels deep")


def _depth(text: str) -> int:
    """At least the depth that a parser can reach before it finds an error; an upper bound if the text is shallow."""
    brackets = rest = _brackets(text)
    for _ in range(_ROUNDS):
        rest = rest.replace(b"[]", b"").replace(b"{}", b"")
    return max(accumulate(map(_STEPS.__getitem__, brackets))) if rest else 2 * _ROUNDS


def _brackets(text: str) -> bytes:
    """The brackets outside of strings. Without its escapes, a string is the text between two quotes."""
    octets = text.encode("utf-8", "surrogatepass").replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = octets.translate(None, _OTHERS).replace(b'""', b"")
    return b"".join(marks.split(b'"')[::2])
