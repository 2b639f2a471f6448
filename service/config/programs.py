"""What a program writes instead of several keys of a file: `Pipeline("orders", feed=..., handler=on_changes)`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from leasehold.service.config.section import Keys
from leasehold.service.errors import ConfigurationError

OF_HANDLER = ("gets", "parallel", "checkpoint_s", "buffered_entries_max")
EXAMPLE = 'Sql("SELECT * FROM events")'


@dataclass(frozen=True, slots=True)
class Sql:
    """A transform: a SELECT over `events`. schema: the columns to parse from the JSON body, as in SQL's CREATE TABLE."""

    text: str
    schema: str | None = None

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        named: dict[str, object] = {"text": self.text, **({} if self.schema is None else {"schema": self.schema})}
        problems = [
            f"`{name}` is of type {type(value).__name__}, and must be a text, like {EXAMPLE}"
            for name, value in named.items()
            if not isinstance(value, str)
        ]
        if problems:
            raise ConfigurationError("Sql", problems)


@contextmanager
def of_program(values: Mapping[str, object], problems: Sequence[str]) -> Iterator[None]:
    """In errors, name the handler's arguments as a program does. problems: raised together with these errors."""
    found: tuple[str, ...] = ()
    try:
        yield
    except ConfigurationError as error:
        found = error.problems
    written = [_as_written(each) if "handler" in values else each for each in found]
    if every := [*problems, *(each for each in written if not (problems and each.startswith("`sink` is missing")))]:
        raise ConfigurationError("Pipeline", every) from None


def _as_written(problem: str) -> str:
    if problem.startswith("`sink`: handler "):
        return "`handler` " + problem.removeprefix("`sink`: handler ")
    return problem.removeprefix("`sink`: ").replace("`sink.", "`", 1 if problem.startswith("`sink.") else 0)


def fields_of(positional: tuple[object, ...], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The settings of a pipeline, and what is wrong with its arguments. A setting that is wrong is left out."""
    values, problems = dict(given), list[str]()
    if len(positional) == 1 and "name" not in values:
        values["name"] = positional[0]
    elif positional:
        problems.append(
            f"takes one argument without a name, its own name: Pipeline({positional[0]!r}, feed=..., handler=...)"
        )
        values = {**dict(zip(("name", "feed", "handler"), positional, strict=False)), **values}
    if "transform" in values:
        problems += _take_transform(values.pop("transform"), values)
    problems += _take_handler(values)
    if _is_function(values.get("function")):
        problems += _take_function("function", values.pop("function"), values)
    return values, problems


def _take_handler(values: dict[str, Any]) -> Iterator[str]:
    """Put the handler where a file has it."""
    of_handler = {name: values.pop(name) for name in OF_HANDLER if name in values}
    if "handler" in values:
        handler = values.pop("handler")
        if "sink" in values:
            yield "has both `handler` and `sink`, and a handler is the sink: remove one of them"
        values["sink"] = Keys(type="python", handler=handler, **of_handler)
    elif "sink" not in values:
        yield "needs `handler`, a function of yours, or `sink`, like LogSink(path=...)"
    elif _is_function(values["sink"]):
        yield "`sink` is a function: give it as `handler`"
        values["sink"] = Keys(type="python", handler=values["sink"], **of_handler)
    else:
        for name in of_handler:
            yield f"`{name}` requires `handler`: add it, or remove `{name}`"


def _take_transform(transform: object, values: dict[str, Any]) -> Iterator[str]:
    """Put the transform where a file has it."""
    if twice := {"sql", "function"} & values.keys():
        yield f"has both `transform` and `{min(twice)}`: keep one of them"
    elif isinstance(transform, Sql):
        if transform.schema is not None and "schema" in values:
            yield "has `schema` twice, in Sql(...) and as an argument: keep one of them"
        values |= {"sql": transform.text, **({} if transform.schema is None else {"schema": transform.schema})}
    elif _is_function(transform):
        yield from _take_function("transform", transform, values)
    elif transform is not None:
        yield (
            f"`transform` is of type {type(transform).__name__}, and must be Sql(...), a function from DataFrame to"
            " DataFrame, or None"
        )


def _is_function(value: object) -> bool:
    return isinstance(value, Callable) and not isinstance(value, type) and hasattr(value, "__qualname__")  # type: ignore[arg-type]


def _take_function(argument: str, function: Any, values: dict[str, Any]) -> Iterator[str]:
    """Take the function by its name, because Spark's workers import it by that."""
    if "<" in function.__qualname__ or "." in function.__qualname__:
        yield (
            f"`{argument}` is '{function.__qualname__}', which workers cannot find by its name: define it at the top level of a"
            " module"
        )
    else:
        values["function"] = f"{function.__module__}:{function.__qualname__}"
