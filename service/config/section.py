"""What all sections of the configuration have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Discriminator

from service.config.types import Importable

CUSTOM = "module:Class"
"""Stands for every `type` that names a class of somebody else's."""


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
    """is_open: whether a class of somebody else's may stand there too."""

    def tag(value: object) -> str | None:
        name = value.get("type", default) if isinstance(value, Mapping) else getattr(value, "type", None)
        return str(name) if name in known else CUSTOM if is_open and isinstance(name, str) and ":" in name else None

    return Discriminator(
        tag,
        custom_error_type="unknown_type",
        custom_error_message=", ".join(known) + (", or a class to import like package.module:Class" if is_open else ""),
    )
