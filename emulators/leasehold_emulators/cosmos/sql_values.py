"""Values of Cosmos DB's SQL: its undefined value, its types in order, comparisons and functions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from leasehold_emulators.cosmos.refused import bad

Env = dict[str, Any]
Expression = Callable[[Env], Any]


class Missing:
    """Cosmos DB's undefined value: no comparison with it holds, and results leave it out."""


MISSING: Final = Missing()
COMPARISONS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": operator.mod}
AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {"COUNT": len, "SUM": sum, "MIN": min, "MAX": max}


def constant(value: Any) -> Expression:
    return lambda env: value


def record(items: list[tuple[str, Expression]]) -> Expression:
    return lambda env: {name: v for name, v in ((name, value(env)) for name, value in items) if v is not MISSING}


def member_of(value: Expression, name: Expression) -> Expression:
    def member(env: Env) -> Any:
        whole, key = value(env), name(env)
        if isinstance(whole, dict) and isinstance(key, str):
            return whole.get(key, MISSING)
        if isinstance(whole, list) and isinstance(key, int) and 0 <= key < len(whole):
            return whole[key]
        return MISSING

    return member


def both(left: Expression, right: Expression) -> Expression:
    return lambda env: left(env) is True and right(env) is True


def either(left: Expression, right: Expression) -> Expression:
    return lambda env: left(env) is True or right(env) is True


TYPES: tuple[Any, ...] = (bool, (int, float), str, list, dict)


def kind(value: Any) -> int:
    """The place of the value's type in the order of ORDER BY."""
    if value is MISSING:
        return 0
    if value is None:
        return 1
    for place, types in enumerate(TYPES, start=2):
        if isinstance(value, types):
            return place
    raise bad(f"{value!r} is not a JSON value.")


def same(a: Any, b: Any) -> bool:
    return kind(a) == kind(b) != 0 and bool(a == b)


def compared_by(how: Callable[[Any, Any], bool], left: Expression, right: Expression) -> Expression:
    def compared(env: Env) -> Any:
        a, b = left(env), right(env)
        if a is MISSING or b is MISSING:
            return MISSING
        if kind(a) != kind(b):
            return {operator.ne: True, operator.eq: False}.get(how, MISSING)
        return False if a is None and how not in (operator.eq, operator.le, operator.ge) else how(a, b)

    return compared


def calculated_by(how: Callable[[Any, Any], Any], left: Expression, right: Expression) -> Expression:
    def calculated(env: Env) -> Any:
        a, b = left(env), right(env)
        return (
            how(a, b)
            if kind(a) == kind(b) == 3 and not (b == 0 and how in (operator.truediv, operator.mod))
            else MISSING
        )

    return calculated


def _of_text(function: Callable[[str, str], bool]) -> Callable[..., Any]:
    def called(whole: Any, part: Any, ignores_case: Any = False) -> Any:
        if not isinstance(whole, str) or not isinstance(part, str):
            return MISSING
        return function(whole.lower(), part.lower()) if ignores_case is True else function(whole, part)

    return called


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "STARTSWITH": _of_text(str.startswith),
    "ENDSWITH": _of_text(str.endswith),
    "CONTAINS": _of_text(lambda whole, part: part in whole),
    "IS_DEFINED": lambda value: value is not MISSING,
    "IS_NULL": lambda value: value is None,
    "IS_STRING": lambda value: isinstance(value, str),
    "ARRAY_CONTAINS": lambda items, item: any(same(one, item) for one in items) if isinstance(items, list) else MISSING,
    "LENGTH": lambda value: len(value) if isinstance(value, str) else MISSING,
    "LOWER": lambda value: value.lower() if isinstance(value, str) else MISSING,
    "UPPER": lambda value: value.upper() if isinstance(value, str) else MISSING,
}
