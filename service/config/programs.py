"""What a program writes where a file has several keys: `Pipeline("orders", feed=..., handler=on_changes)`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from leasehold.service.errors import ConfigurationError

OF_HANDLER = ("gets", "parallel", "checkpoint_s", "buffered_entries_max")


@dataclass(frozen=True, slots=True)
class Sql:
    """A transform: a SELECT over `events`. schema: the columns to parse from the JSON body, as in SQL's CREATE TABLE."""

    text: str
    schema: str | None = None


@contextmanager
def of_program(given: Mapping[str, object]) -> Iterator[None]:
    """Names arguments of the handler as a program does, in errors."""
    try:
        yield
    except ConfigurationError as error:
        problems = [re.sub(r"^`sink(\.|`: )", lambda m: "`" if m[1] == "." else "", each) for each in error.problems]
        raise ConfigurationError("Pipeline", problems if "handler" in given else list(error.problems)) from None


def fields_of(positional: tuple[object, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a pipeline. Raises ConfigurationError."""
    values = dict(given)
    if len(positional) == 1 and "name" not in values:
        values["name"] = positional[0]
    elif positional:
        raise _wrong(
            f"takes one argument without a name, its own name: Pipeline({positional[0]!r}, feed=..., handler=...)"
        )
    if "transform" in values:
        values |= _transform(values.pop("transform"), values)
    of_handler = {name: values.pop(name) for name in OF_HANDLER if name in values}
    if "handler" in values:
        if "sink" in values:
            raise _wrong("has both `handler` and `sink`, and a handler is the sink: remove one of them")
        values["sink"] = {"type": "python", "handler": values.pop("handler"), **of_handler}
    elif of_handler:
        raise _wrong(f"`{min(of_handler)}` requires `handler`: add it, or remove `{min(of_handler)}`")
    elif "sink" not in values:
        raise _wrong("needs `handler`, a function of yours, or `sink`, like LogSink(path=...)")
    elif _is_function(values["sink"]):
        raise _wrong("`sink` is a function: give it as `handler`")
    if _is_function(values.get("function")):
        values["function"] = _path_of(values["function"])
    return values


def _transform(transform: object, values: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ConfigurationError."""
    if twice := {"sql", "function"} & values.keys():
        raise _wrong(f"has both `transform` and `{min(twice)}`: keep one of them")
    if transform is None:
        return {}
    if isinstance(transform, Sql):
        if transform.schema is not None and "schema" in values:
            raise _wrong("has `schema` twice, in Sql(...) and as an argument: keep one of them")
        return {"sql": transform.text, **({} if transform.schema is None else {"schema": transform.schema})}
    if _is_function(transform):
        return {"function": transform}
    raise _wrong(
        f"`transform` is of type {type(transform).__name__}, and must be Sql(...), a function from DataFrame to"
        " DataFrame, or None"
    )


def _is_function(value: object) -> bool:
    return isinstance(value, Callable) and not isinstance(value, type) and hasattr(value, "__qualname__")  # type: ignore[arg-type]


def _path_of(function: Any) -> str:
    """Spark's workers find it by its name. Raises ConfigurationError."""
    if "<" in function.__qualname__ or "." in function.__qualname__:
        raise _wrong(
            f"the transform '{function.__qualname__}' is found by its name: define it at the top level of a module"
        )
    return f"{function.__module__}:{function.__qualname__}"


def _wrong(problem: str) -> ConfigurationError:
    return ConfigurationError("Pipeline", [problem])
