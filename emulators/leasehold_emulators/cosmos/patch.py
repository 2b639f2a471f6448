"""Partial updates of a document: Cosmos DB's operations add, set, replace, remove, incr and move."""

from __future__ import annotations

import copy
from typing import Any

from leasehold_emulators.cosmos.refused import Refused, bad
from leasehold_emulators.cosmos.sql import matches


def patched(document: dict[str, Any], request: Any) -> dict[str, Any]:
    """request: {"operations": […], "condition": "from c where …"}, or the list alone. Raises Refused."""
    operations = request if isinstance(request, list) else request.get("operations", [])
    condition = None if isinstance(request, list) else request.get("condition")
    if condition and not matches(f"SELECT * {condition}", document):
        raise Refused(412, "The patch's condition is not met.")
    result = copy.deepcopy(document)
    for operation in operations:
        _apply(result, operation)
    return result


def _apply(document: dict[str, Any], operation: dict[str, Any]) -> None:
    kind = operation.get("op")
    parent, name = _place(document, operation["path"])
    if kind in ("set", "add"):
        _put(parent, name, operation["value"], is_insert=kind == "add")
    elif kind == "replace":
        _existing(parent, name, operation)
        parent[name] = operation["value"]
    elif kind == "remove":
        _existing(parent, name, operation)
        del parent[name]
    elif kind in ("incr", "increment"):
        was = parent.get(name, 0) if isinstance(parent, dict) else parent[name]
        parent[name] = was + operation["value"]
    elif kind == "move":
        source, source_name = _place(document, operation["from"])
        _existing(source, source_name, operation)
        value = source[source_name]
        del source[source_name]
        _put(parent, name, value, is_insert=True)
    else:
        raise bad(f"The patch operation {kind!r} is not known.")


def _place(document: Any, path: str) -> tuple[Any, Any]:
    *way, last = path.strip("/").split("/")
    for name in way:
        try:
            document = document[int(name) if isinstance(document, list) else name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise bad(f"The path {path} does not exist.") from None
    if isinstance(document, list):
        return document, len(document) if last == "-" else int(last)
    return document, last


def _put(parent: Any, name: Any, value: Any, *, is_insert: bool) -> None:
    if isinstance(parent, list) and (is_insert or name == len(parent)):
        parent.insert(name, value)
    else:
        parent[name] = value


def _existing(parent: Any, name: Any, operation: dict[str, Any]) -> None:
    if name >= len(parent) if isinstance(parent, list) else name not in parent:
        raise bad(f"The path {operation['path']} does not exist.")
