"""The supported part of Cosmos DB's SQL, parsed once into functions of a document."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from leasehold_emulators.cosmos.refused import bad
from leasehold_emulators.cosmos.sql_values import (
    AGGREGATES,
    ARITHMETIC,
    COMPARISONS,
    FUNCTIONS,
    MISSING,
    Expression,
    both,
    calculated_by,
    compared_by,
    constant,
    either,
    member_of,
    record,
    same,
)

TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"""|(?P<name>[A-Za-z_]\w*)|(?P<parameter>@\w+)|(?P<sign><=|>=|!=|<>|\|\||[-+*/%=<>()\[\]{},.:]))""",
    re.ASCII,
)
CLAUSES = ("FROM", "WHERE", "ORDER", "OFFSET", "LIMIT", "GROUP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    kind: str
    text: str
    start: int


@dataclass(slots=True)
class Query:
    """A parsed query, with the texts of its clauses for a plan that has to rewrite it."""

    text: str
    alias: str = "c"
    top: int | None = None
    is_distinct: bool = False
    is_value: bool = False
    select: Expression | None = None  # None: *
    where: Expression | None = None
    order: list[tuple[Expression, bool, str]] = field(default_factory=list)  # expression, whether descending, text
    offset: int = 0
    limit: int | None = None
    aggregates: list[tuple[str, Expression]] = field(default_factory=list)
    clauses: dict[str, str] = field(default_factory=dict)  # their texts: select, from, where
    items: list[tuple[str, str]] = field(default_factory=list)  # name and text of what is selected


def matches(text: str, document: dict[str, Any]) -> bool:
    query = parsed(text)
    return query.where is None or query.where({query.alias: document}) is True


@lru_cache(maxsize=500)
def parsed(text: str) -> Query:
    """Raises Refused with 400 for what is not supported."""
    return _Parser(text).query()


def tokens(text: str) -> Iterator[Token]:
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = TOKEN.match(text, at)
        if not found or not found.lastgroup:
            raise bad(f"Syntax error near {text[at : at + 20]!r}.")
        yield Token(kind=found.lastgroup, text=found[found.lastgroup], start=found.start(found.lastgroup))
        at = found.end()
    yield Token(kind="end", text="", start=len(text))


class _Parser:
    """Recursive descent; every method consumes the tokens of its part."""

    def __init__(self, text: str) -> None:
        self._tokens = list(tokens(text))
        self._at = 0
        self._query = Query(text)

    # --- tokens -----------------------------------------------------------------------------------------------------

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self, *words: str) -> str | None:
        """Consume and return the next token if it is one of these words or signs."""
        token = self._next
        if token.kind in ("name", "sign") and token.text.upper() in words:
            self._at += 1
            return token.text.upper()
        return None

    def _must(self, word: str) -> None:
        if not self._take(word):
            raise bad(f"Syntax error: {word} expected near {self._query.text[self._next.start :][:20]!r}.")

    def _any(self, kind: str) -> str:
        token = self._next
        if token.kind != kind:
            raise bad(f"Syntax error: a {kind} expected near {self._query.text[token.start :][:20]!r}.")
        self._at += 1
        return token.text

    def _slice(self, start: int) -> str:
        return self._query.text[start : self._next.start].strip()

    # --- clauses ----------------------------------------------------------------------------------------------------

    def query(self) -> Query:
        query = self._query
        self._must("SELECT")
        self._select(query)
        start = self._next.start
        if self._take("FROM"):
            query.alias = self._any("name")
            if self._take("AS") or (self._next.kind == "name" and self._next.text.upper() not in CLAUSES):
                query.alias = self._any("name")
        query.clauses["from"] = self._slice(start) or "FROM c"
        if self._take("WHERE"):
            start = self._next.start
            query.where = self._expression()
            query.clauses["where"] = self._slice(start)
        self._order(query)
        if self._take("OFFSET"):
            query.offset = int(self._any("number"))
        if self._take("LIMIT"):
            query.limit = int(self._any("number"))
        if self._next.kind != "end":
            raise bad(f"Not supported: {query.text[self._next.start :]!r}.")
        return query

    def _select(self, query: Query) -> None:
        query.is_distinct = bool(self._take("DISTINCT"))
        query.top = int(self._any("number")) if self._take("TOP") else None
        start = self._next.start
        if self._take("*"):
            pass
        elif self._take("VALUE"):
            query.is_value = True
            query.select = self._expression()
        else:
            query.select = self._items()
        query.clauses["select"] = self._slice(start)

    def _items(self) -> Expression:
        items: list[tuple[str, Expression]] = []
        while True:
            start = self._next.start
            value = self._expression()
            text, last = self._slice(start), self._tokens[self._at - 1]
            name = last.text if last.kind == "name" else f"${len(items) + 1}"
            if self._take("AS") or (self._next.kind == "name" and self._next.text.upper() not in CLAUSES):
                name = self._any("name")
            items.append((name, value))
            self._query.items.append((name, text))
            if not self._take(","):
                return record(items)

    def _order(self, query: Query) -> None:
        if not self._take("ORDER"):
            return
        self._must("BY")
        while True:
            start = self._next.start
            value = self._expression()
            text = self._slice(start)
            query.order.append((value, self._take("ASC", "DESC") == "DESC", text))
            if not self._take(","):
                return

    # --- expressions ------------------------------------------------------------------------------------------------

    def _expression(self) -> Expression:
        left = self._and()
        while self._take("OR"):
            left = either(left, self._and())
        return left

    def _and(self) -> Expression:
        left = self._not()
        while self._take("AND"):
            left = both(left, self._not())
        return left

    def _not(self) -> Expression:
        if self._take("NOT"):
            inner = self._not()
            return lambda env: {True: False, False: True}.get(inner(env), MISSING)
        return self._comparison()

    def _comparison(self) -> Expression:
        left = self._sum()
        if sign := self._take(*COMPARISONS):
            return compared_by(COMPARISONS[sign], left, self._sum())
        if self._take("IN"):
            self._must("(")
            options = self._listed(")")
            return lambda env: any(same(left(env), option(env)) for option in options)
        return left

    def _sum(self) -> Expression:
        left = self._product()
        while sign := self._take("+", "-"):
            left = calculated_by(ARITHMETIC[sign], left, self._product())
        return left

    def _product(self) -> Expression:
        left = self._path()
        while sign := self._take("*", "/", "%"):
            left = calculated_by(ARITHMETIC[sign], left, self._path())
        return left

    def _path(self) -> Expression:
        value = self._atom()
        while True:
            if self._take("."):
                value = member_of(value, constant(self._any("name")))
            elif self._take("["):
                value = member_of(value, self._expression())
                self._must("]")
            else:
                return value

    def _atom(self) -> Expression:
        token = self._next
        self._at += 1
        if token.kind == "number":
            return constant(float(token.text) if set(token.text) & set(".eE") else int(token.text))
        if token.kind == "text":
            return constant(re.sub(r"\\(.)", r"\1", token.text[1:-1]))
        if token.kind == "parameter":
            return lambda env: env.get(token.text, MISSING)
        if token.kind == "name":
            return self._named(token.text)
        if token.text == "-":
            return calculated_by(operator.sub, constant(0), self._path())
        return self._bracketed(token.text)

    def _bracketed(self, sign: str) -> Expression:
        if sign == "(":
            inner = self._expression()
            self._must(")")
            return inner
        if sign == "[":
            items = self._listed("]")
            return lambda env: [item for item in (one(env) for one in items) if item is not MISSING]
        if sign == "{":
            return self._object()
        raise bad(f"Syntax error near {sign!r}.")

    def _object(self) -> Expression:
        items: list[tuple[str, Expression]] = []
        while not self._take("}"):
            name = self._any(self._next.kind if self._next.kind in ("text", "name") else "name").strip("\"'")
            self._must(":")
            items.append((name, self._expression()))
            self._take(",")
        return record(items)

    def _listed(self, end: str) -> list[Expression]:
        items: list[Expression] = []
        while not self._take(end):
            items.append(self._expression())
            self._take(",")
        return items

    def _named(self, name: str) -> Expression:
        constants = {"TRUE": True, "FALSE": False, "NULL": None, "UNDEFINED": MISSING}
        if self._take("("):
            return self._call(name.upper(), self._listed(")"))
        if name.upper() in constants:
            return constant(constants[name.upper()])
        return lambda env: env.get(name, MISSING)

    def _call(self, name: str, arguments: list[Expression]) -> Expression:
        if name in AGGREGATES:
            self._query.aggregates.append((name, arguments[0]))
            place = f"#{len(self._query.aggregates) - 1}"
            return lambda env: env.get(place, MISSING)
        if name not in FUNCTIONS:
            raise bad(f"The function {name} is not supported.")
        return lambda env: FUNCTIONS[name](*(argument(env) for argument in arguments))
