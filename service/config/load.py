"""One YAML file -> Settings, or every problem in it at once.

    settings = load(Path("bank.yaml"), os.environ)

`${NAME}` in a value stands for an environment variable, and `$${NAME}` for the text `${NAME}`. Relative paths start at the
file's folder. A value that came from the environment, or that is a secret, is never shown in a problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from leasehold.service.config.environment import Expansion, FromEnvironment, StandIn, Unset, key_of
from leasehold.service.config.messages import WRITTEN, message_of, shown, unknown_setting
from leasehold.service.config.reference import describe, names_in, types_of
from leasehold.service.config.rings import resolved_path, rings_in
from leasehold.service.config.settings import Settings
from leasehold.service.config.strict_yaml import UNREADABLE, KeyPath, SettingsProblem, YamlDocument, read
from leasehold.service.errors import ConfigurationError
from leasehold.service.texts import names_a_secret

FILE_BYTES_MAX = 256 * 1024


NO_HANDLERS: Mapping[str, object] = MappingProxyType({})


def _nothing(place: KeyPath, section: Mapping[str, object]) -> None:
    return None


def load(
    path: Path, env: Mapping[str, str], stand_in: StandIn = _nothing, *, handlers: Mapping[str, object] = NO_HANDLERS
) -> Settings:
    """handlers: a program's functions, by values of `handler` in the file. stand_in: for a command that uses only some sections.
    Sections other than `pipelines` and `spark` are then left out if a variable is not set. Raises ConfigurationError."""
    return parse(
        text_of(path), env, folder=path.absolute().parent, source=str(path), stand_in=stand_in, handlers=handlers
    )


def parse(
    text: str,
    env: Mapping[str, str],
    *,
    folder: Path,
    source: str = "configuration",
    stand_in: StandIn = _nothing,
    handlers: Mapping[str, object] = NO_HANDLERS,
) -> Settings:
    """Like `load`, for a text. folder: where relative paths start. Raises ConfigurationError."""
    document = read(text)
    problems = list(document.problems)
    settings = None
    if isinstance(document.root, dict):
        expansion = Expansion(env, document.lines, stand_in)
        root = expansion.expanded(document.root, ())
        for section in {place[0] for place, _ in expansion.stood_in} - {"pipelines", "spark"}:
            del root[section]
        problems += expansion.problems
        problems += _take_handlers(root, handlers, document)
        settings = _validated(root, folder, document, problems)
        if settings is None and not problems:  # the substitute of a variable is not valid
            problems += [problem for _, problem in expansion.stood_in]
    elif document.root is not None and document.root is not UNREADABLE:
        problems.append(SettingsProblem(1, "this is not a mapping of settings: begin with `pipelines:`"))
    elif not problems:
        problems.append(SettingsProblem(0, "there are no settings in it: begin with `pipelines:`"))
    if problems or settings is None:
        problems.sort(key=lambda problem: problem.line)
        raise ConfigurationError(source, [f"line {p.line}: {p.text}" if p.line else p.text for p in problems])
    return settings


def text_of(path: Path) -> str:
    """The file's text. Raises ConfigurationError."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigurationError(
            str(path), [f"cannot be read ({reason}): name a file that this user may read"]
        ) from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigurationError(str(path), [f"is larger than {FILE_BYTES_MAX} bytes: name a configuration file"])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(str(path), [f"line {line}: this is not UTF-8: save the file as UTF-8"]) from None


def _take_handlers(
    root: dict[str, Any], handlers: Mapping[str, object], document: YamlDocument
) -> Iterator[SettingsProblem]:
    """Put the handlers where the file names them."""
    left = set(handlers)
    pipelines = root.get("pipelines")
    for each in pipelines if isinstance(pipelines, list) else ():
        sink = each.get("sink") if isinstance(each, dict) else None
        name = sink.get("handler") if isinstance(sink, dict) and sink.get("type") == "python" else None
        if isinstance(sink, dict) and isinstance(name, str) and name in handlers:
            sink["handler"] = handlers[name]
            left.discard(name)
    for name in sorted(left):
        yield SettingsProblem(0, f"`handlers` has '{name}', and no sink has `handler: {name}`: correct the name")


def _validated(
    root: dict[str, Any], folder: Path, document: YamlDocument, problems: list[SettingsProblem]
) -> Settings | None:
    problems += [
        SettingsProblem(line_of(place, document), f"{key_of(place)} {text}") for place, text in _clashes(root, folder)
    ]
    while True:
        try:
            return Settings.model_validate({"leases": {}, **root}, context={"folder": str(folder)})
        except ValidationError as failed:
            errors = [error for error in map(_about, failed.errors(include_url=False)) if _is_news(error)]
            unknown = [error for error in errors if error["type"] == "extra_forbidden"]
            for error in unknown or errors:
                problems += _described(error, document)
            if not unknown:
                return None
            for error in unknown:  # rules between settings are only checked if every key is known
                _remove(root, _where(error["loc"]).place)


def _is_news(error: ErrorDetails) -> bool:
    """Whether an error is new: not about an unset variable or an unreadable value, which are reported already, and not about a
    list that is empty only because no entry is valid."""
    value = error["input"]
    return not (isinstance(value, Unset) or value is UNREADABLE or (error["type"] == "too_short" and value))


def _remove(root: Any, place: KeyPath) -> None:
    for part in place[:-1]:
        root = root[part]
    del root[place[-1]]


@dataclass(frozen=True, slots=True)
class _Where:
    """place: as in the file. section: the innermost one that has a choice; chosen: its type."""

    place: KeyPath
    section: str
    chosen: str | None


def _where(loc: tuple[str | int, ...]) -> _Where:
    """The place of an error. pydantic's path contains the types that unions have chosen; the path in the file does not."""
    place: list[str | int] = []
    section, chosen = "", None
    for part in loc:
        here = _row_key(tuple(place))
        if part in types_of(here) and here != section:
            section, chosen = here, str(part)
        else:
            place.append(part)
    return _Where(tuple(place), section, chosen)


def _row_key(place: KeyPath) -> str:
    return re.sub(r"\[\d+\]", "[]", key_of(place))


def _described(error: ErrorDetails, document: YamlDocument) -> Iterator[SettingsProblem]:
    where = _where(error["loc"])
    line = line_of(where.place, document)
    for message in _messages(error, where):
        yield SettingsProblem(line, f"{_subject(error, where)} {message}")


def _about(error: ErrorDetails) -> ErrorDetails:
    """The same error. If a section's `type` is unknown, one about its `type` instead, or about a value that is not a section."""
    if error["type"] != "unknown_type":
        return error
    section = error["input"]
    if not isinstance(section, Mapping):
        return {**error, "type": "model_type"}
    kind = "unknown_type" if "type" in section else "missing"
    return {**error, "type": kind, "loc": (*error["loc"], "type"), "input": section.get("type")}


def _messages(error: ErrorDetails, where: _Where) -> list[str]:
    kind, message = error["type"], error["msg"]
    if kind == "extra_forbidden":
        return [_unknown(where)]
    if kind == "missing":
        choice = f"it must be {message}" if where.place[-1] == "type" else "give it a value"
        return [f"is missing: {choice}"]
    if kind == "unknown_type":
        return [f"must be {message}"]
    written = WRITTEN.get(str(where.place[-1])) if kind in ("model_type", "model_attributes_type") else None
    return [f"{text}{'' if written is None else ', ' + written}" for text in message_of(error).split("\n")]


def _unknown(where: _Where) -> str:
    parent = _row_key(where.place[:-1])
    known = names_in(parent, where.chosen if parent == where.section else None)
    return unknown_setting(str(where.place[-1]), known)


def _subject(error: ErrorDetails, where: _Where) -> str:
    """The key, with its value if that may be shown. The value of an unknown key may be a misspelt secret."""
    key, value = key_of(where.place) or "the file", error["input"]
    is_plain = value is None or isinstance(value, str | int | float)
    if error["type"] in ("missing", "extra_forbidden") or not is_plain:
        return f"{key}:" if error["type"] == "value_error" else key
    if isinstance(value, FromEnvironment):
        return f"{key} (from {value.names})"
    if _is_secret(where):
        return f"{key} (a secret, not shown)"
    return f"{key} is {shown(value)}, and"


def _is_secret(where: _Where) -> bool:
    key = _row_key(where.place)
    return names_a_secret(str(where.place[-1])) or any(row.key == key and "secret" in row.type for row in describe())


def line_of(place: KeyPath, document: YamlDocument) -> int:
    """The line of the place itself, or of the nearest enclosing element in the file."""
    while place and place not in document.lines:
        place = place[:-1]
    return document.lines[place] if place else 0


def _clashes(root: dict[str, Any], folder: Path) -> Iterator[tuple[KeyPath, str]]:
    """Conflicts between pipelines, found before validation, so that one pipeline's mistake does not hide another's."""
    found, log = root.get("pipelines"), root.get("log")
    pipelines = found if isinstance(found, list) else []
    yield from rings_in(_known(pipelines), _known(log).get("file") if isinstance(log, dict) else None, folder)
    names: dict[str, int] = {}
    writers: dict[str, int] = {}
    for index, pipeline in enumerate(pipelines):
        if not isinstance(pipeline, dict):
            continue
        name, writes = pipeline.get("name"), _written_log(pipeline, folder)
        if isinstance(name, str) and names.setdefault(name, index) != index:
            yield (
                ("pipelines", index, "name"),
                f"'{name}' is the name of pipelines[{names[name]}] too: rename one of them",
            )
        if writes is not None and writers.setdefault(writes, index) != index:
            other = f"pipelines[{writers[writes]}]"
            yield (
                ("pipelines", index, "sink", "path"),
                f"is the log that {other} writes, and they would mix: use another",
            )


def _known(value: Any) -> Any:
    """The value without texts whose variables are not set."""
    if isinstance(value, dict):
        return {key: _known(child) for key, child in value.items() if not isinstance(child, Unset)}
    return [_known(child) for child in value] if isinstance(value, list) else value


def _written_log(pipeline: dict[str, Any], folder: Path) -> str | None:
    section = pipeline.get("sink")
    if not (isinstance(section, dict) and section.get("type") == "log"):
        return None
    return resolved_path(section.get("path"), folder)
