"""Problems of the arguments of a section that a program makes: all at once, by argument, in the same words as for a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, Tag, ValidationError
from pydantic_core import ErrorDetails

from leasehold.service.config.messages import message_of, shown, unknown_setting
from leasehold.service.config.section import CUSTOM, GIVEN, Keys
from leasehold.service.errors import ConfigurationError
from leasehold.service.texts import names_a_secret

Model = type[BaseModel]
_NO_SECTION = ("unknown_type", "model_type", "model_attributes_type", "dict_type")
"""Kinds of errors about a value that cannot be a section."""
_MAPPINGS = {
    "CheckpointBlobsSettings": '{"account_url": ..., "container": ...}',
    "ParallelSettings": '{"key": "key", "max": 64}',
}
"""Sections without a public class, and what a program gives for them."""


def make_of(
    section: Model,
    positional: tuple[object, ...],
    values: Mapping[str, Any],
    make: Callable[..., None],
    problems: Iterable[str] = (),
) -> None:
    """Call `make` with the known arguments. problems: those that were found before.

    Raises ConfigurationError with all problems, even those that an unknown name would hide.
    """
    known = {name: value for name, value in values.items() if _is_known(section, name)}
    keys = {name: advice for name in known if (advice := _instead_of_keys(section, name, known[name]))}
    found = [*problems, *_without_names(section, positional, values)]
    found += (f"`{name}` {unknown_setting(name, arguments_of(section))}" for name in values if name not in known)
    found += (
        f"`{name}` is of type {type(known.pop(name)).__name__}, and must be {advice}" for name, advice in keys.items()
    )
    try:
        make(**known)
    except ValidationError as error:
        found += (
            line
            for each in error.errors(include_url=False)
            if not (each["type"] == "missing" and (positional or each["loc"][0] in keys))
            for line in _described(section, each)
        )
    if found:
        raise ConfigurationError(section.__name__, found) from None


def _is_known(section: Model, name: str) -> bool:
    return section.model_config.get("extra") == "allow" or name in {"type", "part", *arguments_of(section)}


def _instead_of_keys(section: Model, name: str, value: object) -> str:
    """What a program has to give instead of a mapping with a section's keys, as in a file; empty if the value is not one."""
    fields = {field.alias or name: field for name, field in section.model_fields.items()}
    if not isinstance(value, Mapping) or isinstance(value, Keys) or name not in fields:
        return ""
    sections = dict(sections_of(fields[name].annotation))
    if not sections or any(each.__name__ in _MAPPINGS for each in sections.values()):
        return ""
    given = value.get("type")
    kind = given if isinstance(given, str) else None
    if kind == "python":
        return "left out: give the function as `handler`"
    if kind not in sections or kind == CUSTOM:
        return f"a section, like {_example(fields[name].annotation)}" + (", or an object of your class" if kind else "")
    names = ", ".join(f"{each}=..." for each in value if each != "type")
    return f"a section: write {sections[kind].__name__}({names})"


def _without_names(section: Model, positional: tuple[object, ...], values: Mapping[str, object]) -> Iterator[str]:
    if positional:
        names = sorted((name for name in arguments_of(section) if name not in values), key=_rank(section))
        yield f"takes its arguments by name: write {section.__name__}({names[0]}={_short(positional[0])})"


def _rank(section: Model) -> Callable[[str], int]:
    """The order in which arguments are guessed for a value without a name: required ones first, then those that are places."""
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
        what = f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
        return [f"is {what}, and must be a {_kind(annotation)}, like {_example(annotation)}"]
    return message_of(error).split("\n")


def _kind(annotation: Any) -> str:
    return "mapping" if _example(annotation) in _MAPPINGS.values() else "section"


def _example(annotation: Any) -> str:
    """An example of the section that an argument takes; empty if it takes none."""
    for _, section in sections_of(annotation):
        if section.__name__ in _MAPPINGS:
            return _MAPPINGS[section.__name__]
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
    if names_a_secret(place.rpartition(".")[2]) or _holds_secret(annotation) or place == "credential":
        return f"`{place}` (a secret, not shown) "
    return f"`{place}` is {shown(value)}, and "


def _holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(_holds_secret, get_args(annotation)))


def _short(value: object) -> str:
    return shown(value) if isinstance(value, str | int | float) else "..."
