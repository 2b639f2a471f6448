"""A handler as a whole program: `@leasehold.handler(feed=...)` makes one, and `leasehold.run` runs it as `leasehold run` does.

@leasehold.handler(feed={"type": "log", "path": "orders"}, key="key", max=64)
async def handle(event): ...

if __name__ == "__main__":
    leasehold.run(handle)
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import update_wrapper, wraps
from importlib.util import find_spec
from pathlib import Path, PurePath
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

from leasehold.pipeline.handlers import FUNCTION_OF
from leasehold.service.cli.common import USAGE, fail
from leasehold.service.cli.run_host import run_host
from leasehold.service.config.load import ConfigurationError, parse

if TYPE_CHECKING:
    from leasehold.service.config.settings import Settings

F = TypeVar("F", bound=Callable[[Any], Any])
P = ParamSpec("P")
R = TypeVar("R")
Section = Mapping[str, Any]
SOURCE = "@leasehold.handler"
MAIN = "__main__"
BUILT_IN = "a module of Python"


class HandlerProgram(Generic[F]):
    """Your function, which can still be called, and the settings of the host that calls it."""

    def __init__(self, function: F, settings: Mapping[str, Any]) -> None:
        update_wrapper(self, function)
        self.function = function
        self._settings = settings
        setattr(self, FUNCTION_OF, function)

    def __call__(self, argument: Any) -> Any:
        return self.function(argument)

    def settings(self) -> Settings:
        """Raises ConfigurationError."""
        source = f"{SOURCE} of '{self.function.__name__}'"
        if problems := [*_unwritable("", self._settings)]:
            raise ConfigurationError(source, problems)
        text = json.dumps(
            self._settings, default=lambda value: dict(value) if isinstance(value, Mapping) else str(value)
        )
        try:
            return parse(text, os.environ, folder=Path.cwd(), source=source)
        except ConfigurationError as error:
            problems = [re.sub(r"^line \d+: ", "", problem) for problem in error.problems]
            raise ConfigurationError(source, problems) from None

    def run(self, *, until_idle: bool = False) -> None:
        """As `leasehold run` with such settings; so it ends the process with its exit code if it fails."""
        try:
            settings = self.settings()
            if self.function.__module__ == MAIN:
                _name_main(_main_name())
        except ConfigurationError as error:
            fail(str(error), code=USAGE)
        run_host(settings, until_idle=until_idle)


def _main_name() -> str:
    """The name by which the program's module can be imported, so that each program has its own. In a console it is `__main__`.

    A script is named by its file, and a directory with a `__main__.py` by itself. Characters that a name cannot have become `_`.
    """
    main = sys.modules[MAIN]
    spec = getattr(main, "__spec__", None)  # pdb removes the attribute
    if spec is not None and spec.name != MAIN:  # python -m
        return str(spec.name)
    if (file := getattr(main, "__file__", None)) is None:
        return MAIN
    path = Path(os.path.abspath(file))
    stem = path.parent.stem if path.stem == MAIN else path.stem
    name = "".join(character if f"_{character}".isidentifier() else "_" for character in stem)
    return name if name[:1].isascii() and name.isidentifier() else f"_{name}"


def _name_main(name: str) -> None:
    """Let an import of this name find the program that runs. Otherwise its file would run a second time, as another module.

    Raises ConfigurationError.
    """
    main = sys.modules[MAIN]
    if sys.modules.get(name) is main:
        return
    other = _file_named(name)
    if other not in (None, _file_of(main)):
        raise ConfigurationError(
            SOURCE,
            [f"hosts find the handler in the module '{name}', and {other} has that name too: rename {_file_of(main)}"],
        )
    sys.modules[name] = main


def _file_named(name: str) -> str | None:
    """The file of the module that an import of this name finds; None if there is none."""
    if (loaded := sys.modules.get(name)) is not None:
        return _file_of(loaded) or BUILT_IN
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return os.path.realpath(spec.origin) if spec.has_location else BUILT_IN


def _file_of(module: ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    return None if file is None else os.path.realpath(file)


def _in_parentheses(make: Callable[P, R]) -> Callable[P, R]:
    """Without them, Python passes the function, and its error would not say what is missing."""

    @wraps(make)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        if args:
            raise TypeError(f"{SOURCE} needs parentheses with its arguments by name: write {SOURCE}(feed={{...}})")
        return make(*args, **options)

    return checked


@_in_parentheses
def handler(
    *,
    feed: Section,
    leases: Section | None = None,
    name: str | None = None,
    key: str = "key",
    max: int | None = None,
    events_max: int | None = None,
    ack: Literal["auto", "manual"] | None = None,
    window: int | None = None,
    window_bytes: int | None = None,
    timeout_s: float | None = None,
    attempts: int | None = None,
    backoff_s: float | None = None,
    park_s: float | None = None,
    checkpoint_s: float | None = None,
    dead_letters: Section | None = None,
    pipeline: Section | None = None,
    settings: Section | None = None,
) -> Callable[[F], HandlerProgram[F]]:
    """Make a program of a function that handles single events, or (with `events_max`) `Events` of one key.

    - `feed`, `leases`, `dead_letters`: sections as in a file of settings; relative paths start from the current directory.
    - `name`: of the pipeline, under which positions are kept; by default the function's name.
    - `key` to `park_s`: those of `sink.parallel`. `checkpoint_s`: that of the sink.
    - `pipeline`: more keys of the pipeline, like `sql` or `batch_age_max_s`.
    - `settings`: more sections beside `pipelines`, like `log`, `host` or `api`. The REST API is off unless they have `api`.

    The function has to be at the top level of its module, because hosts find it by its name. Raises ValueError otherwise, and for
    a key that is given twice.
    """
    _refuse_twice("pipeline", pipeline, {"name": name, "feed": feed, "dead_letters": dead_letters})
    _refuse_twice("settings", settings, {"leases": leases})
    if "sink" in (pipeline or {}):
        raise ValueError(
            f"{SOURCE}: `pipeline` has the key `sink`, but the function is the sink: remove the key. Its settings, such"
            " as `max`, are arguments of the decorator"
        )
    if "pipelines" in (settings or {}):
        raise ValueError(
            f"{SOURCE}: `settings` has the key `pipelines`, but the function is the only pipeline: remove the key, and give the"
            " keys of this pipeline in `pipeline`"
        )
    parallel = {
        "key": key,
        "max": max,
        "events_max": events_max,
        "ack": ack,
        "window": window,
        "window_bytes": window_bytes,
        "timeout_s": timeout_s,
        "attempts": attempts,
        "backoff_s": backoff_s,
        "park_s": park_s,
    }

    def made(function: F) -> HandlerProgram[F]:
        module = _main_name() if function.__module__ == MAIN else function.__module__
        place = f"{module}:{function.__qualname__}"
        if "<" in place:
            raise ValueError(
                f"{SOURCE}: hosts find a handler by its name, and '{place}' is inside a function: move it to the top level of its"
                " module"
            )
        sink = {
            "type": "python",
            "handler": place,
            "parallel": given(parallel),
            **given({"checkpoint_s": checkpoint_s}),
        }
        of_pipeline = {"name": name or function.__name__.strip("_").lower(), "feed": feed, "sink": sink}
        letters = given({"dead_letters": dead_letters})
        sections = {"api": {"enabled": False}, **given({"leases": leases}), **(settings or {})}
        return HandlerProgram(function, {**sections, "pipelines": [{**of_pipeline, **letters, **(pipeline or {})}]})

    return made


def _refuse_twice(where: str, keys: Section | None, arguments: Mapping[str, Any]) -> None:
    """Raises ValueError."""
    for name in given(arguments):
        if name in (keys or {}):
            raise ValueError(
                f"{SOURCE}: `{name}` is given twice, as an argument and as a key of `{where}`: remove one of them"
            )


def _unwritable(place: str, value: object) -> Iterator[str]:
    """What a file of settings cannot hold, by its place. Paths are written as text."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _unwritable(f"{place}.{name}" if place else str(name), inner)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _unwritable(f"{place}[{number}]", inner)
    elif not isinstance(value, str | int | float | PurePath | None):
        yield f"{place} is of the type {type(value).__name__}: write it as a file of settings would have it, such as a text"


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are set; the others have the defaults of the settings."""
    return {name: value for name, value in options.items() if value is not None}


def run(program: HandlerProgram[Any], *, until_idle: bool = False) -> None:
    """Run a host that calls the handler, until Ctrl-C or SIGTERM; with `until_idle` until the group has nothing left to do.

    Several processes share the partitions. It ends the process as `leasehold run` does: exit code 1 if it failed, 2 for wrong
    settings. Raises TypeError for a function without `@leasehold.handler`.
    """
    if not isinstance(program, HandlerProgram):
        raise TypeError(f"leasehold.run takes a function with @leasehold.handler, not {program!r}: add the decorator")
    program.run(until_idle=until_idle)
