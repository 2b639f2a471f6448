"""Imports the parts that settings name as `module:Class`, creates them from their settings, and checks them before use.

docs/plugins.md describes this for third parties.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from leasehold.leases.store import INTERFACE as OF_STORES
from leasehold.leases.store import LeaseStore
from leasehold.pipeline.errors import NotImportable
from leasehold.pipeline.feed import INTERFACE as OF_FEEDS
from leasehold.pipeline.feed import ChangeFeed
from leasehold.pipeline.imports import derived, imported, takes
from leasehold.pipeline.sink import INTERFACE as OF_SINKS
from leasehold.pipeline.sink import Sink
from leasehold.service.config.messages import message_of
from leasehold.service.config.section import Custom, Section
from leasehold.service.errors import StartFailed

VERSION = "leasehold_interface"
"""The attribute with the version of the interface that a class was written for. The default is the first version."""
PAGE = "docs/plugins.md describes what it needs"


@dataclass(frozen=True, slots=True)
class Kind:
    """name: for people. interface: the version that this Leasehold has."""

    name: str
    base: type
    interface: int


FEED = Kind("feed", ChangeFeed, OF_FEEDS)
SINK = Kind("sink", Sink, OF_SINKS)
STORE = Kind("lease store", LeaseStore, OF_STORES)


def feed_made(settings: Custom) -> ChangeFeed:
    """Raises StartFailed, as the next two do."""
    return cast(ChangeFeed, _made(FEED, settings))


def sink_made(settings: Custom) -> Sink:
    return cast(Sink, _made(SINK, settings))


def store_made(settings: Custom) -> LeaseStore:
    return cast(LeaseStore, _made(STORE, settings))


async def check_part(kind: Kind, section: Section, where: str) -> str | None:
    """Why a part cannot be created; None if it can. A created part is closed again; it connects to nothing before it is used."""
    if not isinstance(section, Custom):
        return None
    try:
        made = _made(kind, section)
    except StartFailed as error:
        return f"{where}: {error}"
    try:
        await made.close()
    except Exception as error:  # a user's code may raise anything
        return f"{where}: {kind.name} '{section.type}' cannot be closed unused: {_words(error)}"
    return None


def _made(kind: Kind, settings: Custom) -> Any:
    """The created part. Raises StartFailed."""
    path, make = settings.type, _maker(kind, settings.type)
    if missing := sorted(getattr(make, "__abstractmethods__", ())):
        raise StartFailed(
            f"'{path}' is not a {kind.name}: {'; '.join(f'it has no `{name}`' for name in missing)}. {PAGE}"
        )
    given, problems = _checked(make, settings.options)
    if problems:
        raise StartFailed(f"{kind.name} '{path}' does not take its settings: {'; '.join(problems)}")
    try:
        made = make(**given)
    except Exception as error:  # a user's code may raise anything
        raise StartFailed(f"{kind.name} '{path}' cannot be created from its settings: {_words(error)}") from error
    if problems := [*lacks(made, kind.base)]:
        raise StartFailed(f"'{path}' is not a {kind.name}: {'; '.join(problems)}. {PAGE}")
    try:
        return derived(made, kind.base)
    except TypeError as error:
        raise StartFailed(f"'{path}' is not a {kind.name}: {error}. {PAGE}") from None


def _maker(kind: Kind, path: str) -> Any:
    """The class or function that makes a part. Raises StartFailed."""
    try:
        make = imported(path)
    except NotImportable as error:
        raise StartFailed(f"{kind.name} {error}") from error
    if not callable(make):
        raise StartFailed(f"{kind.name} '{path}' is {_kind_of(make)}: name a class, or a function that makes one")
    version = getattr(make, VERSION, 1)
    if version != kind.interface:
        raise StartFailed(
            f"{kind.name} '{path}' is made for version {version} of the interface of {kind.name}s, and this Leasehold has"
            f" {kind.interface}: install a version of either that fits the other"
        )
    return make


def _checked(make: Any, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments, each setting converted to its parameter's type; and the problems, without any value."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):  # some of Python's own callables have no signature
        return dict(options), []
    problems = [*_misnamed(parameters, options)]
    hints, given = _hints(make), dict(options)
    for name, value in options.items():
        try:
            given[name] = _as_type(hints.get(name, Any), value)
        except ValidationError as failed:
            problems += (
                f"`{name}{_path_text(error['loc'])}` {message_of(error)}" for error in failed.errors(include_url=False)
            )
    return given, problems


def _misnamed(parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> Iterator[str]:
    """Settings without a parameter, and parameters that lack a setting."""
    taken = {name: one for name, one in parameters.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for name in options if not takes_all else ():
        if name not in taken:
            near = difflib.get_close_matches(name, taken, n=1, cutoff=0.5)
            hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(taken) or 'none'}"
            yield f"`{name}` is not a setting: {hint}"
    for name, one in taken.items():
        if one.default is one.empty and name not in options:
            yield f"`{name}` is missing: give it a value"


def _hints(make: Any) -> dict[str, Any]:
    """The types of the parameters of `make`; empty if they are unknown."""
    try:
        return get_type_hints(make.__init__ if inspect.isclass(make) else make, include_extras=True)
    except (AttributeError, NameError, TypeError):
        return {}


def _as_type(hint: Any, value: Any) -> Any:
    """The value, converted to the type, if pydantic knows it. Raises ValidationError."""
    try:
        adapter = TypeAdapter[Any](hint, config=ConfigDict(hide_input_in_errors=True))
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            return value
        adapter = TypeAdapter(hint)
    return adapter.validate_python(value)


def _path_text(loc: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)


def lacks(thing: object, base: type) -> Iterator[str]:
    """What the base class demands and the thing lacks, what cannot be called as it will be, and what is probably misspelt."""
    members = dict.fromkeys(inspect.get_annotations(base)) | {
        name: member
        for name, member in vars(base).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }
    for name, member in members.items():
        if not hasattr(thing, name):
            if not hasattr(base, name) or name in getattr(base, "__abstractmethods__", ()):
                yield f"it has no `{name}`"
        elif inspect.isfunction(member):
            yield from _misfits(name, getattr(thing, name), member)
    for name in sorted(name for name in vars(type(thing)).keys() - members.keys() if not name.startswith("_")):
        near = difflib.get_close_matches(name, members.keys() - vars(type(thing)).keys(), n=1, cutoff=0.8)
        if near and callable(getattr(thing, name)):
            yield f"`{name}` is never called: did you mean `{near[0]}`?"


def _misfits(name: str, method: Any, wanted: Any) -> Iterator[str]:
    arguments = list(inspect.signature(wanted).parameters)[1:]
    if not callable(method):
        yield f"`{name}` is {_kind_of(method)}, not a method"
        return
    if not takes(method, len(arguments)):
        yield f"`{name}` does not take what it is called with: ({', '.join(arguments)})"
    if inspect.iscoroutinefunction(wanted):
        if inspect.isasyncgenfunction(method):
            yield f"`{name}` has to be a coroutine, without `yield`"
    elif inspect.iscoroutinefunction(method):
        yield (
            f"`{name}` has to be an async generator, with `yield`"
            if name == "open"
            else f"`{name}` has to be a plain `def`"
        )


def _kind_of(thing: object) -> str:
    return f"of type {type(thing).__name__}"


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: {error}"
