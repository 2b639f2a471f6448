"""Problems of the arguments of a section that a program makes: all at once, by their names, in the words of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, Tag, ValidationError
from pydantic_core import ErrorDetails

from leasehold.service.config.messages import message_of, shown, unknown_setting
from leasehold.service.config.section import GIVEN
from leasehold.service.errors import ConfigurationError
from leasehold.service.texts import names_a_secret

Model = type[BaseModel]
_NO_SECTION = ("unknown_type", "model_type", "model_attributes_type", "dict_type")
"""Kinds of errors of a value that cannot be a section."""
_MAPPINGS = {"sink.parallel": '{"key": "key", "max": 64}'}
"""Sections without a public class."""


def make_of(
    section: Model,
    positional: tuple[object, ...],
    values: Mapping[str, Any],
    make: Callable[..., None],
    problems: Iterable[str] = (),
) -> None:
    """Calls `make` with the arguments that there are. problems: what is wrong with them already.

    Raises ConfigurationError, with all problems: what an unknown name hides as well.
    """
    known = {name: value for name, value in values.items() if _is_known(section, name)}
    found = [*problems, *_without_names(section, positional, values)]
    found += (f"`{name}` {unknown_setting(name, arguments_of(section))}" for name in values if name not in known)
    try:
        make(**known)
    except ValidationError as error:
        found += (
            line
            for each in error.errors(include_url=False)
            if not (positional and each["type"] == "missing")
            for line in _described(section, each)
        )
    if found:
        raise ConfigurationError(section.__name__, found) from None


def _is_known(section: Model, name: str) -> bool:
    return section.model_config.get("extra") == "allow" or name in {"type", "part", *arguments_of(section)}


def _without_names(section: Model, positional: tuple[object, ...], values: Mapping[str, object]) -> Iterator[str]:
    if positional:
        names = sorted((name for name in arguments_of(section) if name not in values), key=_rank(section))
        yield f"takes its arguments by name: write {section.__name__}({names[0]}={_short(positional[0])})"


def _rank(section: Model) -> Callable[[str], int]:
    """The argument that is meant, if it has no name: one that is required, or where a thing is."""
    required = {field.alias or name for name, field in section.model_fields.items() if field.is_required()}
    return lambda name: 0 if name in required else 1 if name in ("path", "port", "name") else 2


def arguments_of(section: Model) -> list[str]:
    more: tuple[str, ...] = getattr(section, "program_arguments", ())
    return [*(field.alias or name for name, field in section.model_fields.items() if name != "type"), *more]


def sections_of(annotation: Any) -> Iterator[tuple[str | None, type[BaseModel]]]:
    """The models within an annotation, each with its tag."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield None, annotation
        return
    tags = [part.tag for part in get_args(annotation) if isinstance(part, Tag)]
    if tags == [GIVEN]:
        return
    for part in get_args(annotation):
        for tag, model in sections_of(part):
            yield (tags[0] if tags else tag), model


def _described(section: Model, error: ErrorDetails) -> Iterator[str]:
    place, owner, annotation = _located(section, error["loc"])
    for message in _messages(error, place, owner, annotation):
        yield f"{_subject(error, place, annotation)}{message}"


def _messages(error: ErrorDetails, place: str, owner: Model | None, annotation: Any) -> list[str]:
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        return [unknown_setting(str(error["loc"][-1]), arguments_of(owner) if owner is not None else ())]
    if kind == "missing":
        choice = f", like {_example(annotation)}" if _example(annotation) else ""
        return [f"is missing: give it a value{choice}"]
    if kind in _NO_SECTION and _example(annotation):
        if isinstance(value, Mapping):
            return ["needs a `type`: write " + _example(annotation)]
        what = f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
        if (written := _MAPPINGS.get(place)) is not None:
            return [f"is {what}, and must be a mapping, like {written}"]
        return [f"is {what}, and must be a section, like {_example(annotation)}"]
    return message_of(error).split("\n")


def _example(annotation: Any) -> str:
    """How to make what an argument takes; empty if it takes no section."""
    for _, section in sections_of(annotation):
        required = [f"{name}=..." for name, field in section.model_fields.items() if field.is_required()]
        return f"{section.__name__}({', '.join(required)})"
    return ""


def _located(section: Model, loc: tuple[str | int, ...]) -> tuple[str, Model | None, Any]:
    """The argument's place, the section that it belongs to, and its annotation. pydantic adds the tags of unions to the place."""
    place, here, annotation = "", section, None
    choices: dict[str | None, Model] = {}
    owner: Model | None = section
    for part in loc:
        if part in choices:
            here, choices = choices[str(part)], {}
            continue
        owner = here
        if isinstance(part, int):
            place += f"[{part}]"
            continue
        place += f".{part}" if place else part
        fields = {field.alias or name: field for name, field in here.model_fields.items()}
        annotation = fields[part].annotation if part in fields else None
        choices = dict(sections_of(annotation))
        here = choices.get(None, here)
    return place, owner, annotation


def _subject(error: ErrorDetails, place: str, annotation: Any) -> str:
    kind, value = error["type"], error["input"]
    if not place:
        return ""
    if kind in ("missing", "extra_forbidden", *_NO_SECTION) or not isinstance(value, str | int | float | None):
        return f"`{place}` " if kind != "value_error" else f"`{place}`: "
    if names_a_secret(place.rpartition(".")[2]) or _holds_secret(annotation):
        return f"`{place}` (a secret, not shown) "
    return f"`{place}` is {shown(value)}, and "


def _holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(_holds_secret, get_args(annotation)))


def _short(value: object) -> str:
    return shown(value) if isinstance(value, str | int | float) else "..."
