"""Queries over documents: results of a parsed query, and the plan by which a client queries range by range."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from leasehold_emulators.cosmos.refused import CROSS_PARTITION_QUERY_NOT_SERVABLE, Refused
from leasehold_emulators.cosmos.sql import Query
from leasehold_emulators.cosmos.sql_values import AGGREGATES, MISSING, Env, Expression, kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """number: of the document, in order of creation. Results have the same order."""

    number: int
    document: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    items: list[Any]
    rows_read: int
    continuation: str | None


def needs_plan(query: Query) -> bool:
    """Whether a client needs a plan: over several ranges, the gateway answers only if no partial results have to be merged."""
    return bool(
        query.order or query.aggregates or query.is_distinct or query.top is not None or query.limit is not None
    )


def not_servable() -> Refused:
    message = "Cross partition query only supports filters and projections here: ask for a query plan."
    return Refused(400, message, CROSS_PARTITION_QUERY_NOT_SERVABLE)


def run(query: Query, parameters: dict[str, Any], rows: Sequence[Row], limit: int, continuation: str | None) -> Results:
    """rows: in the order of their numbers. limit: the most results in a page."""
    wanted = [row for row in rows if _is_wanted(query, parameters, row)]
    if query.aggregates:
        return Results(items=[_aggregated(query, parameters, wanted)], rows_read=len(wanted), continuation=None)
    if query.order or query.is_distinct or query.top is not None or query.limit is not None or query.offset:
        return _by_place(query, parameters, wanted, limit, continuation)
    after = json.loads(continuation)["after"] if continuation else 0
    rest = [row for row in wanted if row.number > after]
    page = rest[:limit]
    more = json.dumps({"after": page[-1].number}) if len(rest) > limit else None
    return Results(items=_selected(query, parameters, page), rows_read=len(page), continuation=more)


def _by_place(
    query: Query, parameters: dict[str, Any], rows: list[Row], limit: int, continuation: str | None
) -> Results:
    """Ordered, distinct or limited results continue from a place among them, not from a document's number."""
    for expression, is_descending, _ in reversed(query.order):
        rows = sorted(rows, key=_by(query, parameters, expression), reverse=is_descending)
    items = _selected(query, parameters, rows)
    if query.is_distinct:
        items = list({json.dumps(item, sort_keys=True): item for item in items}.values())
    most = min((count for count in (query.top, query.limit) if count is not None), default=len(items))
    items = items[query.offset :][:most]
    skip = json.loads(continuation)["skip"] if continuation else 0
    more = json.dumps({"skip": skip + limit}) if len(items) > skip + limit else None
    page = items[skip : skip + limit]
    return Results(items=page, rows_read=len(page), continuation=more)


def _is_wanted(query: Query, parameters: dict[str, Any], row: Row) -> bool:
    return query.where is None or query.where({**parameters, query.alias: row.document}) is True


def _selected(query: Query, parameters: dict[str, Any], rows: Iterable[Row]) -> list[Any]:
    if query.select is None:
        return [row.document for row in rows]
    items = (query.select({**parameters, query.alias: row.document}) for row in rows)
    return [item for item in items if item is not MISSING]


def _aggregated(query: Query, parameters: dict[str, Any], rows: list[Row]) -> Any:
    env: Env = dict(parameters)
    for place, (name, argument) in enumerate(query.aggregates):
        values = [argument({**parameters, query.alias: row.document}) for row in rows]
        present = [value for value in values if value is not MISSING]
        if present or name in ("COUNT", "SUM"):
            env[f"#{place}"] = AGGREGATES[name](present)
    assert query.select is not None
    return query.select(env)


def _by(query: Query, parameters: dict[str, Any], expression: Expression) -> Any:
    def compare(a: Row, b: Row) -> int:
        left, right = (expression({**parameters, query.alias: row.document}) for row in (a, b))
        if kind(left) != kind(right):
            return kind(left) - kind(right)
        return 0 if kind(left) < 2 or left == right else -1 if left < right else 1

    return functools.cmp_to_key(compare)


def plan(query: Query) -> dict[str, Any]:
    """PartitionedQueryExecutionInfo, version 2: what to ask every range, and how to put the answers together."""
    info: dict[str, Any] = {
        "distinctType": "Unordered" if query.is_distinct else "None",
        "top": query.top,
        "offset": query.offset if query.limit is not None else None,
        "limit": query.limit,
        "orderBy": ["Descending" if is_descending else "Ascending" for _, is_descending, _ in query.order],
        "orderByExpressions": [text for _, _, text in query.order],
        "groupByExpressions": [],
        "groupByAliases": [],
        "aggregates": [
            {"COUNT": "Count", "SUM": "Sum", "MIN": "Min", "MAX": "Max"}[name] for name, _ in query.aggregates
        ],
        "groupByAliasToAggregateType": {},
        "rewrittenQuery": rewritten(query),
        "hasSelectValue": query.is_value,
        "hasNonStreamingOrderBy": False,
        "dCountInfo": None,
    }
    everywhere = {"min": "", "max": "FF", "isMinInclusive": True, "isMaxInclusive": False}
    return {"partitionedQueryExecutionInfoVersion": 2, "queryInfo": info, "queryRanges": [everywhere]}


def rewritten(query: Query) -> str:
    """The query for each range; empty if it is the client's own."""
    where = query.clauses.get("where")
    if query.order:
        items = ", ".join(f'{{"item": {text}}}' for _, _, text in query.order)
        order = ", ".join(f"{text} {'DESC' if is_descending else 'ASC'}" for _, is_descending, text in query.order)
        selected = query.clauses["select"]
        payload = query.alias if selected == "*" else selected.removeprefix("VALUE ") if query.is_value else None
        if payload is None:
            payload = "{" + ", ".join(f'"{name}": {text}' for name, text in query.items) + "}"
        condition = (f"({where}) AND " if where else "") + "({documentdb-formattableorderbyquery-filter})"
        head = f"SELECT {_top(query)}{query.alias}._rid, [{items}] AS orderByItems, {payload} AS payload"
        return f"{head} {query.clauses['from']} WHERE {condition} ORDER BY {order}"
    if query.aggregates and query.is_value:
        condition = f" WHERE {where}" if where else ""
        return f'SELECT VALUE [{{"item": {query.clauses["select"].removeprefix("VALUE ")}}}] {query.clauses["from"]}{condition}'
    if query.limit is not None:
        most = query.offset + query.limit
        condition = f" WHERE {where}" if where else ""
        return f"SELECT {query.clauses['select']} {query.clauses['from']}{condition} OFFSET 0 LIMIT {most}"
    return ""


def _top(query: Query) -> str:
    return f"TOP {query.top} " if query.top is not None else ""
