"""Orders of the control ports: each is a function. Its arguments are checked by its annotations before it is called."""

from __future__ import annotations

import fnmatch
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails

from leasehold.common.nesting import parsed_json
from leasehold_emulators.hosting import Clock

LEVELS_MAX = 50
VALUE_CHARACTERS_MAX = 100
YEARS_50_S = 50 * 365 * 86_400.0
NO_ARGUMENT = "is not an argument of this order"
FaultKind = TypeVar("FaultKind")

STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
"""Nothing is converted: `true` does not count as a number, and a text does not count as a list."""

Name = Annotated[str, Field(min_length=1, max_length=1024)]
Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Positive = Annotated[int, Field(ge=1, le=1_000_000_000)]
Status = Annotated[int, Field(ge=400, le=599)]
Seconds = Annotated[float, Field(ge=0, le=86_400)]
Move = Annotated[float, Field(ge=-YEARS_50_S, le=YEARS_50_S)]
"""The seconds by which an order moves a clock."""

_WORDS = {
    "bool_type": "must be true or false",
    "extra_forbidden": NO_ARGUMENT,
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "string_type": "must be a text",
    "string_unicode": "must be a text in Unicode, without half of a surrogate pair",
}
"""Type of a pydantic error -> words for it, if its own do not explain what to send."""


@dataclass(frozen=True, slots=True)
class Order:
    """arguments: the parameters of `carry_out` after the control."""

    carry_out: Callable[..., Any]
    arguments: type[BaseModel]


def orders_of(*functions: Callable[..., Any]) -> dict[str, Order]:
    """The orders, by the names of their functions. Pure."""
    return {each.__name__: Order(each, arguments_of(each)) for each in functions}


def arguments_of(function: Callable[..., Any]) -> type[BaseModel]:
    """A model of the parameters after the first one, the control. What `**` collects, the function checks itself. Pure."""
    hints = get_type_hints(function, include_extras=True)
    _, *parameters = inspect.signature(function).parameters.values()
    is_open = any(each.kind is each.VAR_KEYWORD for each in parameters)
    named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    fields: dict[str, Any] = {
        each.name: (hints[each.name], ... if each.default is each.empty else each.default) for each in named
    }
    config = ConfigDict(**STRICT | {"extra": "allow" if is_open else "forbid"})
    return create_model(function.__name__, __config__=config, **fields)


async def serve_order(
    orders: Mapping[str, Order], control: Any, request: web.BaseRequest, commit: Callable[[], None] | None = None
) -> web.Response:
    """Carry out the order that a request names; a wrong one changes nothing, and gets 400. commit: called after an order."""
    name = request.path.strip("/")
    if name not in orders:
        return web.json_response({"error": f"no order {name!r}: use one of {', '.join(orders)}"}, status=404)
    try:
        said = carried_out(orders[name], control, await request.read())
    except ValueError as error:
        return web.json_response({"error": problem_of(error)}, status=400)
    if commit:
        commit()
    return web.json_response(said)


def carried_out(order: Order, control: Any, body: bytes) -> Any:
    """Raises ValueError."""
    given = order.arguments.model_validate(parsed_order(body))
    arguments = {name: getattr(given, name) for name in type(given).model_fields}
    return order.carry_out(control, **arguments, **(given.model_extra or {}))


def parsed_order(body: bytes) -> dict[str, Any]:
    """The arguments in the body of an order, none if it is empty. Raises ValueError. Pure."""
    try:
        order = parsed_json(body or b"{}", LEVELS_MAX, _DECODER)
    except ValueError as error:
        raise ValueError(f"the body of an order is JSON: {type(error).__name__}: {error}") from None
    if not isinstance(order, dict):
        raise ValueError(f"the body of an order is a JSON object, not {type(order).__name__}")
    return order


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON: send a finite number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def problem_of(error: ValueError) -> str:
    """Each wrong argument with its value, and what it must be. Pure."""
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(_problem(each) for each in error.errors(include_url=False))


def _problem(error: ErrorDetails) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"{name}: is missing: this order needs it"
    message = error["msg"].removeprefix("Value error, ")
    if not name:
        return message
    words = _WORDS.get(error["type"]) or message.replace("Input should", "must").replace("String should", "must")
    return f"{name}: {shown(error['input'])} {words}"


def shown(value: Any) -> str:
    """The value for an error message, shortened. Pure."""
    text = repr(value)
    return text if len(text) <= VALUE_CHARACTERS_MAX else text[:VALUE_CHARACTERS_MAX] + "..."


# --- what all emulators check --------------------------------------------------------------------------------------------


def fault_of(kind: type[FaultKind], what: Mapping[str, Any]) -> FaultKind:
    """A fault with these fields. kind: a pydantic dataclass, which checks them. Raises ValueError. Pure."""
    known = inspect.signature(kind).parameters
    if unknown := [f"{name}: {shown(value)} {NO_ARGUMENT}" for name, value in what.items() if name not in known]:
        raise ValueError("; ".join(unknown))
    return kind(**what)


def check_fault(fault: Any, kinds: Iterable[str], of: Iterable[str]) -> None:
    """kinds: all kinds of faults. of: all kinds of requests. Raises ValueError. Pure."""
    if fault.do not in kinds:
        raise ValueError(f"do: {shown(fault.do)} is not a fault: use one of {', '.join(kinds)}")
    if not fnmatch.filter(of, fault.of):
        raise ValueError(f"of: {shown(fault.of)} fits none of {', '.join(of)}")
    if fault.do == "delay" and fault.delay_s <= 0:
        raise ValueError(f"delay_s: {fault.delay_s} must be the seconds of a delay, more than 0")


def check_number(number: int | None, known: Iterable[int]) -> None:
    """number: of a fault, None for all. Raises ValueError if no fault has it. Pure."""
    numbers = sorted(known)
    if number is not None and number not in numbers:
        there = f"use one of {', '.join(map(str, numbers))}" if numbers else "none is in force"
        raise ValueError(f"number: {number} must be the number of a fault: {there}")


def move_clock(clock: Clock, move_s: float) -> None:
    """Move the clock to at most fifty years from the machine's: every emulator can write dates up to there. Raises ValueError."""
    offset_s = clock.offset_s + move_s
    if abs(offset_s) > YEARS_50_S:
        raise ValueError(f"move_s: {move_s} must leave the clock within fifty years of the machine's: reset it first")
    clock.offset_s = offset_s
