"""Fills values of environment variables into the text of a settings file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from leasehold.service.config.strict_yaml import KeyPath, SettingsProblem

_REFERENCE = re.compile(r"(\$?)\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
StandIn = Callable[[KeyPath, Mapping[str, object]], str | None]
"""(place, section around it) -> what replaces a text whose variable is not set; None if the variable must be set."""


class FromEnvironment(str):
    """A text that contains values of environment variables; it is never shown. names: the variables' names, for messages."""

    names: str


class Unset(FromEnvironment):
    """A text with a variable that is not set, which is already reported."""


class Expansion:
    def __init__(self, env: Mapping[str, str], lines: Mapping[KeyPath, int], stand_in: StandIn) -> None:
        self._env = env
        self._lines = lines
        self._stand_in = stand_in
        self.problems: list[SettingsProblem] = []
        self.stood_in: list[tuple[KeyPath, SettingsProblem]] = []
        """The places of texts whose variables are not set, and the problem that this would be elsewhere."""

    def expanded(self, value: object, place: KeyPath, section: Mapping[str, object] = MappingProxyType({})) -> Any:
        if isinstance(value, dict):
            return {key: self.expanded(child, (*place, key), value) for key, child in value.items()}
        if isinstance(value, list):
            return [self.expanded(child, (*place, index), section) for index, child in enumerate(value)]
        return self._filled_in(value, place, section) if isinstance(value, str) and "${" in value else value

    def _filled_in(self, text: str, place: KeyPath, section: Mapping[str, object]) -> str:
        wrong: list[str] = []
        unset: list[str] = []
        names: list[str] = []

        def replaced(match: re.Match[str]) -> str:
            escape, name, end = match.groups()
            if escape:
                return match[0][1:]
            if not (end and _NAME.fullmatch(name)):
                wrong.append("has a `${` that names no variable: write ${NAME}, or $${ for the characters themselves")
            elif name not in self._env:
                unset.append(f"needs the environment variable {name}, which is not set: set it")
            else:
                names.append(f"${{{name}}}")
                return self._env[name]
            return ""

        result = _REFERENCE.sub(replaced, text)
        found = [SettingsProblem(self._lines[place], f"{key_of(place)} {what}") for what in (*wrong, *unset)]
        if unset and not wrong and (given := self._stand_in(place, section)) is not None:
            self.stood_in += [(place, problem) for problem in found]
            stands_in = Unset(given)
            stands_in.names = " and ".join(names)
            return stands_in
        self.problems += found
        wrong += unset
        if not (names or wrong):
            return result
        hidden = Unset(result) if wrong else FromEnvironment(result)
        hidden.names = " and ".join(names)
        return hidden


def key_of(place: KeyPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
