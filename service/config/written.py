"""Settings -> a file with these settings. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import PurePath
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr

from leasehold.pipeline.handlers.forms import name_of
from leasehold.service.config.section import Given
from leasehold.service.config.settings import Settings
from leasehold.service.errors import ConfigurationError

HEAD = ("leases", "host", "spark", "api", "log", "telemetry", "pipelines")


def yaml_of(settings: Settings, environment: Mapping[str, str], *, has_observer: bool) -> str:
    """A secret becomes the name of the variable that contains it, or one made from its place. Raises ConfigurationError."""
    writing = _Writing(environment)
    root = writing.section(settings, ())
    if has_observer:
        writing.problems.append("`on` is an object: name its class in `notifications`, like module:Class")
    if writing.problems:
        raise ConfigurationError("to_yaml", writing.problems)
    text: str = yaml.safe_dump(root, sort_keys=False, allow_unicode=True)
    return text


class _Writing:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._variables = {value: name for name, value in sorted(environment.items(), reverse=True) if len(value) > 3}
        self.problems: list[str] = []

    def section(self, section: BaseModel, place: tuple[str, ...]) -> dict[str, Any]:
        if isinstance(section, Given):
            self.problems.append(
                f"`{'.'.join(place)}` is an object: name its class by `type`, like package.module:Class"
            )
            return {}
        written: dict[str, Any] = {}
        for name, field in _ordered_fields(section):
            value = getattr(section, name)
            key = field.alias or name
            if field.exclude:
                if value is not None:
                    self.problems.append(f"`{'.'.join((*place, key))}` is an object: use `identity`, or a key")
            elif name in ("type", "leases") or name in section.model_fields_set or isinstance(value, PurePath):
                written[key] = self._value(value, (*place, key))
        return {
            **written,
            **{name: self._value(value, (*place, name)) for name, value in (section.model_extra or {}).items()},
        }

    def _value(self, value: Any, place: tuple[str, ...]) -> Any:
        if isinstance(value, BaseModel):
            return self.section(value, place)
        if isinstance(value, Mapping):
            return {key: self._value(each, (*place, str(key))) for key, each in value.items()}
        if isinstance(value, tuple | list):
            return [self._value(each, (*place, getattr(each, "name", str(at)))) for at, each in enumerate(value)]
        if isinstance(value, SecretStr):
            return f"${{{self._variable(value.get_secret_value(), place)}}}"
        if isinstance(value, datetime):
            return value.isoformat()
        if isinstance(value, str | PurePath):
            return str(value).replace("${", "$${")
        if value is None or isinstance(value, bool | int | float):
            return value
        return self._path_of(value, place)

    def _variable(self, secret: str, place: tuple[str, ...]) -> str:
        return self._variables.get(secret) or re.sub(r"\W", "_", "_".join(place).removeprefix("pipelines_")).upper()

    def _path_of(self, handler: Any, place: tuple[str, ...]) -> str:
        module, name = getattr(handler, "__module__", "__main__"), name_of(handler)
        if module == "__main__" or not name.isidentifier():
            self.problems.append(
                f"`{'.'.join(place)}` is '{module}:{name}', which no file can name: move it to the top level of a module"
            )
        return f"{module}:{name}"


def _ordered_fields(section: BaseModel) -> Iterator[tuple[str, Any]]:
    fields = type(section).model_fields
    for name in sorted(fields, key=lambda name: (name != "type", HEAD.index(name) if name in HEAD else 0)):
        yield name, fields[name]
