"""What all sections of the configuration have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires
from typing import Any

from pydantic import BaseModel, ConfigDict, Discriminator
from pydantic_core import ErrorDetails

from service.config.types import Importable

# Error messages for invalid settings.


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


# How to install what an extra needs: Leasehold itself is on no package index, and its requirements are.


def install_command(extra: str) -> str:
    try:
        return command_of(extra, requires("leasehold") or ())
    except PackageNotFoundError:  # run from its sources
        return command_of(extra, ())


def command_of(extra: str, requirements: Iterable[str]) -> str:
    """requirements: as a distribution's metadata has them (PEP 508)."""
    found = [each.partition(";") for each in requirements]
    wanted = [
        name.strip() for name, _, marker in found if re.search(rf"""extra == ['"]{re.escape(extra)}['"]""", marker)
    ]
    return "pip install " + " ".join(f"'{name}'" for name in sorted(wanted) or [f"leasehold[{extra}]"])


CUSTOM = "module:Class"
"""Stands for every `type` that names a third party's class."""


class Section(BaseModel):
    """What all sections have in common: nothing unknown, nothing changes, nothing infinite."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, validate_default=True
    )


class Custom(Section):
    """Other keys than those named here are arguments of the class."""

    model_config = ConfigDict(extra="allow")
    type: Importable

    @property
    def options(self) -> Mapping[str, Any]:
        return dict(self.model_extra or {})

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        """Without the values of `options`, which may be secrets."""
        return [(name, "..." if name in self.options else value) for name, value in super().__repr_args__()]


def tag_of(default: str | None, *known: str, is_open: bool = True) -> Discriminator:
    """is_open: whether a third party's class is allowed, too."""

    def tag(value: object) -> str | None:
        name = value.get("type", default) if isinstance(value, Mapping) else getattr(value, "type", None)
        return str(name) if name in known else CUSTOM if is_open and isinstance(name, str) and ":" in name else None

    return Discriminator(
        tag,
        custom_error_type="unknown_type",
        custom_error_message=", ".join(known) + (", or a class to import like package.module:Class" if is_open else ""),
    )
