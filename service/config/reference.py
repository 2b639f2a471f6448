"""Every setting as a row: its key, type, default and meaning. Documentation and hints about misspelt keys use these rows."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from leasehold.service.config.arguments import sections_of
from leasehold.service.config.leases import SqliteLeases
from leasehold.service.config.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """key: its place in the file, like `pipelines[].feed.path`. when: the `type` that has it; None if there is no choice.

    default: as written in YAML; None if the setting is required.
    """

    key: str
    when: str | None
    type: str
    default: str | None
    description: str

    @property
    def parent(self) -> str:
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2].removesuffix("[]")


@cache
def describe() -> list[Setting]:
    """All settings, in the order of the file."""
    return list(_rows(Settings, "", None))


@cache
def types_of(parent: str) -> frozenset[str]:
    """What `type` may be in the section `parent`; empty if the section has no choice."""
    return frozenset(row.when for row in describe() if row.parent == parent and row.name == "type" and row.when)


def names_in(parent: str, when: str | None) -> list[str]:
    return [row.name for row in describe() if row.parent == parent and row.when in (None, when)]


def _rows(model: type[BaseModel], prefix: str, when: str | None) -> Iterator[Setting]:
    for name, field in sorted(model.model_fields.items(), key=lambda item: item[0] != "type"):
        if field.exclude:  # only programs have it
            continue
        key = prefix + (field.alias or name)
        sections = dict(sections_of(field.annotation))
        is_list = get_origin(field.annotation) is tuple and bool(sections)
        yield Setting(
            key=key,
            when=when,
            type=("list of sections" if is_list else "section") if sections else _type(field.annotation),
            default=None if is_choice(model, name) else _default(field, bool(sections)),
            description=field.description or "",
        )
        for tag, section in sections.items():
            yield from _rows(section, f"{key}[]." if is_list else f"{key}.", tag)


def is_choice(model: type[BaseModel], name: str) -> bool:
    """Whether a file has to have this setting, to choose the section."""
    return name == "type" and model is not SqliteLeases


_WORDS: Mapping[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Path: "path",
    SecretStr: "text, a secret",
    Any: "text",
}


def _type(annotation: Any) -> str:
    if annotation in _WORDS:
        return _WORDS[annotation]
    origin, parts = get_origin(annotation), [part for part in get_args(annotation) if part is not types.NoneType]
    if origin is Annotated:
        return _type(parts[0])
    if origin is Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin in (Union, types.UnionType):
        return _type(parts[0])
    return "mapping" if origin is Mapping else f"list of {_type(parts[0])}s"


def _default(field: FieldInfo, is_section: bool) -> str | None:
    if field.is_required():
        return None
    if is_section:
        return "all defaults"
    value = field.default
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return {(): "[]"}.get(value, str(value)) if isinstance(value, tuple) else str(value)
