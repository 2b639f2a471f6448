"""Paths of a container's partition key, like /account, /address/city or /\"a/b\": which fields they lead through. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_FIELD = re.compile(r'/?(?:"((?:[^"\\]|\\.)*)"|([^/]+))')


def fields_of(path: str) -> tuple[str, ...]:
    """The path's field names. A name in quotes may contain slashes."""
    return tuple(quoted or plain for quoted, plain in _FIELD.findall(path))


def value_at(document: Any, path: str) -> Any:
    """The value at a path; None if the document has no such field."""
    for name in fields_of(path):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document
