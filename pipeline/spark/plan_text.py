"""The partition contract over Spark Connect, read off the text of an analyzed plan, which is all that a server shows. Pure.

The text also shows whether each row is made by the task that read its event.

A text is ambiguous, because it has literals and names without quotes. So a query whose literals or names could look like plan
syntax is refused, and so is every node and every function that is not listed here. Each partition of a
refused query has a job of its own, which is right for any query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from leasehold.pipeline.spark.partition_contract import PARTITION, Contract

_SECTION = re.compile(r"^== Analyzed Logical Plan ==\n[^\n]*\n(.*?)\n\n?== ", re.MULTILINE | re.DOTALL)
_NODE = re.compile(r"( *)(\+- )?(\w+)(.*)")
_ATTRIBUTE = re.compile(r"([\w.]+)#(\d+)L?")
_ALIAS = re.compile(r"(.*) AS ([\w.]+)#(\d+)L?")
_CALL = re.compile(r"([^\s(\[,]+)\(")
_QUOTED = re.compile(r"'(?:[^'])*'|\"(?:[^\"])*\"|`(?:[^`])*`")
_PLAIN = re.compile(r"['\"][\w .,:;/%@$*+=!?<>|&^~-]*['\"]|`\w+`")
_FUNCTIONS = frozenset(
    (
        *("abs", "avg", "bround", "cast", "ceil", "coalesce", "concat", "concat_ws", "contains", "count"),
        *("date_format", "date_trunc", "endswith", "floor", "from_json", "get_json_object", "greatest"),
        *("hash", "if", "in", "isnotnull", "isnull", "json_tuple", "least", "length", "like", "lower"),
        *("lpad", "ltrim", "max", "md5", "min", "mod", "named_struct", "not", "nullif", "nvl", "positive"),
        *("power", "regexp_extract", "regexp_replace", "replace", "round", "rpad", "rtrim", "sha2", "sign"),
        *("split", "startswith", "struct", "substr", "substring", "sum", "to_date", "to_json"),
        *("to_timestamp", "translate", "trim", "try_cast", "unix_timestamp", "upper", "xxhash64", "year"),
        *("month", "day", "hour", "minute", "second", "Some"),
    )
)
"""Functions of one row, aggregates that do not depend on the order of rows, and words that plans write like calls."""
_OF_WINDOWS = frozenset(
    (
        *("currentrow$", "dense_rank", "lag", "lead", "rank", "row_number", "specifiedwindowframe"),
        *("unboundedfollowing$", "unboundedpreceding$", "windowspecdefinition"),
    )
)


ROW_BY_ROW = frozenset(("Filter", "Generate", "Project", "SubqueryAlias", "View"))
"""Nodes of an analyzed plan whose rows are made in the task that has their input: none of them is sent to another task."""


class _Unclear(Exception):
    """The message says why."""


@dataclass(frozen=True, slots=True)
class _Line:
    kind: str
    rest: str


def read_text(sql: str, explained: str) -> Contract:
    """sql: over the view of the events. explained: Spark's `EXPLAIN EXTENDED` of it."""
    try:
        _require_plain(sql)
        own = _followed(list(_chain(explained)))
    except _Unclear as refused:
        return Contract(None, f"over Spark Connect, {refused}")
    return (
        Contract(True, None)
        if own
        else Contract(None, "over Spark Connect, the output's `partition` cannot be followed")
    )


def read_why_again(sql: str, explained: str) -> str | None:
    """Why a job may read the events twice; None if each row is made by the task that read its event. Arguments as above."""
    try:
        _require_plain(sql)
        *nodes, leaf = _chain(explained)
        _of_events(leaf)
        for line in nodes:
            if line.kind not in ROW_BY_ROW:
                raise _Unclear(may_shuffle(line.kind))
            _require_no_subquery(line.rest)
    except _Unclear as refused:
        return f"over Spark Connect, {refused}"
    return None


def may_shuffle(kind: str) -> str:
    return f"the transform's plan has {kind}, which may shuffle rows"


def _require_plain(sql: str) -> None:
    """Raises _Unclear if a literal or name of the query may have a `#`, so that what looks like a column in the plan is one."""
    if "\\" in sql or "--" in sql or "/*" in sql:
        raise _Unclear("queries with comments or `\\` are not read")
    if odd := next((text for text in _QUOTED.findall(sql) if not _PLAIN.fullmatch(text)), None):
        raise _Unclear(f"queries with literals or names like {odd[:40]} are not read")
    if re.search(r"['\"`]", _QUOTED.sub("", sql)):
        raise _Unclear("the query's quotes are not read")


def _chain(explained: str) -> Iterator[_Line]:
    """The nodes from the output to the events, each of which has one input."""
    found = _SECTION.search(explained)
    if found is None or "..." in found[1]:
        raise _Unclear("its plan was not shown whole")
    for number, text in enumerate(found[1].splitlines()):
        node = _NODE.fullmatch(text)
        depth = 3 * (number - 1)
        if node is None or bool(number) != bool(node[2]) or len(node[1]) != max(0, depth):
            raise _Unclear("queries with several inputs are not read")
        yield _Line(node[3], node[4].strip())


def _followed(lines: list[_Line]) -> bool:
    """Whether the output's partition is that of the events, and every aggregate is grouped by it."""
    own: frozenset[str] = frozenset()
    for number, line in enumerate(reversed(lines)):
        own = _step(line, own) if number else _of_events(line)
    return bool(own)


def _of_events(line: _Line) -> frozenset[str]:
    if line.kind not in ("LocalRelation", "LogicalRDD"):
        raise _Unclear(f"{line.kind} is a source other than the events")
    columns = _parts(line.rest)[-1] if line.kind == "LocalRelation" else _parts(line.rest)[0]
    return frozenset(column for name, column in map(_attribute, columns) if name == PARTITION)


def _step(line: _Line, own: frozenset[str]) -> frozenset[str]:
    match line.kind:
        case "SubqueryAlias" | "View":
            return own
        case "Filter":
            _require_known(line.rest)
            return own
        case "Distinct" if own:  # each row includes its partition
            return own
        case "Window":
            _, keys, _ = _expected(line, 3, _FUNCTIONS | _OF_WINDOWS)
            _require_partition(keys, own, "a window is not partitioned by `partition`")
            return own
        case "Project":
            (columns,) = _expected(line, 1)
            return _kept(columns, own)
        case "Aggregate":
            keys, columns = _expected(line, 2)
            _require_partition(keys, own, "an aggregate is not grouped by `partition`")
            return _kept(columns, own)
    raise _Unclear(f"{line.kind} is not read")


def _require_partition(keys: list[str], own: frozenset[str], why_not: str) -> None:
    if not any(_owned(key, own) for key in keys):
        raise _Unclear(why_not)


def _expected(line: _Line, count: int, functions: frozenset[str] = _FUNCTIONS) -> list[list[str]]:
    _require_known(line.rest, functions)
    parts = _parts(line.rest)
    if len(parts) != count:
        raise _Unclear(f"this {line.kind} is not read")
    return parts


def _kept(columns: list[str], own: frozenset[str]) -> frozenset[str]:
    """The ids under which the partition leaves a node."""
    return frozenset(kept for column in columns if (kept := _owned(column, own)) is not None)


def _owned(column: str, own: frozenset[str]) -> str | None:
    """The id under which a column holds the partition."""
    if (plain := _ATTRIBUTE.fullmatch(column)) is not None:
        return plain[2] if plain[2] in own else None
    if (alias := _ALIAS.fullmatch(column)) is not None:
        return alias[3] if _owned(alias[1], own) is not None else None
    return None


def _attribute(column: str) -> tuple[str, str]:
    found = _ATTRIBUTE.fullmatch(column)
    if found is None:
        raise _Unclear("the events' columns are not read")
    return found[1], found[2]


def _require_known(text: str, functions: frozenset[str] = _FUNCTIONS) -> None:
    for name in _CALL.findall(text):
        if name not in functions:
            raise _Unclear(f"the function {name[:40]} is not known to keep partitions apart")
    _require_no_subquery(text)


def _require_no_subquery(text: str) -> None:
    if re.search(r"#\d+L? \[|subquery|exists#|outer\(", text):
        raise _Unclear("subqueries are not read")


_CLOSING = {"(": ")", "[": "]"}


def _parts(text: str) -> list[list[str]]:
    """The elements of each list in brackets that is not within another one."""
    found: list[list[str]] = []
    open_: list[str] = []
    element = ""
    for letter in text:
        if letter in _CLOSING:
            open_.append(_CLOSING[letter])
            if len(open_) == 1 and letter == "[":
                found.append([])
                element = ""
                continue
        elif letter in ")]":
            if not open_ or open_.pop() != letter:
                raise _Unclear("its plan is not read")
            if not open_ and letter == "]":
                found[-1].append(element.strip())
                element = ""
                continue
        if letter == "," and open_ == ["]"]:
            found[-1].append(element.strip())
            element = ""
            continue
        element += letter
    if open_:
        raise _Unclear("its plan is not read")
    return found
