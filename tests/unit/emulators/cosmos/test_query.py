"""The wire server's SQL and patches."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold_emulators.cosmos.patch import patched
from leasehold_emulators.cosmos.query import Row, plan, run
from leasehold_emulators.cosmos.refused import Refused
from leasehold_emulators.cosmos.sql import parsed

DOCUMENTS: list[dict[str, Any]] = [
    {"id": "p..0", "n": 3, "owner": None, "range": {"min": "", "max": "FF"}},
    {"id": "p..1", "n": 1, "owner": "host-a", "tags": ["x", "y"]},
    {"id": "q..0", "n": 2, "owner": "host-b"},
]
ROWS = [Row(number=number, document=document) for number, document in enumerate(DOCUMENTS, start=1)]


def results(text: str, limit: int = 100, **parameters: Any) -> list[Any]:
    query = parsed(text)
    found, continuation = [], None
    while True:
        page = run(query, {f"@{name}": value for name, value in parameters.items()}, ROWS, limit, continuation)
        assert len(page.items) <= limit
        found += page.items
        continuation = page.continuation
        if continuation is None:
            return found


def ids(text: str, **parameters: Any) -> list[str]:
    return [one["id"] for one in results(text, **parameters)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("STARTSWITH(c.id, 'p.')", ["p..0", "p..1"]),
        ("c.n >= 2", ["p..0", "q..0"]),
        ("c.owner = null", ["p..0"]),
        ("c.owner != 'host-a'", ["p..0", "q..0"]),
        ("NOT (c.n = 1) AND (c.owner = 'host-b' OR c.range['max'] = \"FF\")", ["p..0", "q..0"]),
        ("c.nothing = 1 OR c.nothing != 1", []),
        ("IS_DEFINED(c.tags) AND ARRAY_CONTAINS(c.tags, 'y')", ["p..1"]),
        ("c.n IN (1, 2)", ["p..1", "q..0"]),
        ("c.n + 1 = 2 * 2", ["p..0"]),
        ("c.n < 'text'", []),
    ],
)
def test_a_condition_chooses(where: str, expected: list[str]) -> None:
    assert ids(f"SELECT * FROM c WHERE {where}") == expected


def test_parameters_aliases_and_projections() -> None:
    assert results("select r.id, r.range.min as low, r.gone from root r where r.id = @id", id="p..0") == [
        {"id": "p..0", "low": ""}
    ]
    assert results("SELECT VALUE c.n FROM c") == [3, 1, 2]
    assert results("SELECT VALUE {'a': [c.n, c.gone]} FROM c WHERE c.n = 1") == [{"a": [1]}]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_pages_go_on_where_the_last_one_ended(limit: int) -> None:
    assert results("SELECT VALUE c.id FROM c", limit) == ["p..0", "p..1", "q..0"]
    assert results("SELECT VALUE c.id FROM c ORDER BY c.n DESC", limit) == ["p..0", "q..0", "p..1"]


def test_aggregates_and_limits() -> None:
    assert results("SELECT VALUE COUNT(1) FROM c WHERE c.n > 1") == [2]
    assert results("SELECT VALUE MAX(c.n) FROM c") == [3]
    assert results("SELECT TOP 2 VALUE c.n FROM c ORDER BY c.n") == [1, 2]
    assert results("SELECT VALUE c.n FROM c ORDER BY c.n OFFSET 1 LIMIT 1") == [2]


def test_a_plan_asks_each_range_for_what_puts_the_whole_in_order() -> None:
    info = plan(parsed("SELECT c.id FROM c WHERE c.n > 1 ORDER BY c.n DESC"))["queryInfo"]
    assert info["orderBy"] == ["Descending"]
    asked = info["rewrittenQuery"].replace("{documentdb-formattableorderbyquery-filter}", "true")
    assert results(asked) == [
        {"orderByItems": [{"item": 3}], "payload": {"id": "p..0"}},
        {"orderByItems": [{"item": 2}], "payload": {"id": "q..0"}},
    ]


@pytest.mark.parametrize(
    "text", ["SELECT", "SELECT * FROM c WHERE", "SELECT * FROM c GROUP BY c.n", "SELECT NEW(c) FROM c", "SELECT *;"]
)
def test_what_it_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(Refused) as caught:
        parsed(text)
    assert caught.value.status == 400


def test_a_patch_changes_what_it_names() -> None:
    operations = [
        {"op": "set", "path": "/n", "value": 7},
        {"op": "incr", "path": "/n", "value": 1},
        {"op": "add", "path": "/tags/0", "value": "w"},
        {"op": "remove", "path": "/owner"},
        {"op": "move", "from": "/id", "path": "/name"},
    ]
    assert patched(DOCUMENTS[1], {"operations": operations}) == {"n": 8, "tags": ["w", "x", "y"], "name": "p..1"}
    assert DOCUMENTS[1]["n"] == 1


def test_a_patch_whose_condition_or_path_fails_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        patched(DOCUMENTS[1], {"condition": "from c where c.n = 9", "operations": []})
    assert caught.value.status == 412
    with pytest.raises(Refused) as caught:
        patched(DOCUMENTS[1], {"operations": [{"op": "replace", "path": "/gone/there", "value": 1}]})
    assert caught.value.status == 400
