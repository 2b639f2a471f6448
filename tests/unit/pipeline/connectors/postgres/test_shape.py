"""The statements that bring rows into a table, as its columns and its unique index demand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from psycopg.sql import Identifier

from leasehold.pipeline.connectors.postgres.shape import appended, locked, shape_of, unchanged, upserted
from leasehold.pipeline.connectors.postgres.sql import Column

COLUMNS = (Column("k", "text"), Column("n", "numeric"), Column("nothing", "text", is_null=True))
TABLE = Identifier("public", "target")


def text(statement: Any) -> str:
    return " ".join(str(statement.as_string(None)).split())


def found(ways: tuple[str, ...] = ("same",), *, locks: bool = True, is_written: bool = True) -> str:
    fits = [{"type": "integer", "way": way, "order": None, "is_written": is_written} for way in ways]
    known = {
        "version": "1",
        "kind": "r",
        "persistence": "p",
        "is_plain": True,
        "is_keyed": True,
        "locks": locks,
        "fits": fits,
    }
    return json.dumps(known)


@pytest.mark.parametrize(
    ("answer", "columns", "is_copied"),
    [
        (found(), COLUMNS[:1], True),
        (found(ways=("checked",)), COLUMNS[:1], False),
        (found(is_written=False), COLUMNS[:1], False),
        (found(), COLUMNS[2:], False),
        (found(locks=False), COLUMNS[:1], False),
        (None, COLUMNS[:1], False),
    ],
    ids=["same", "another type", "generated", "nothing but nulls", "no lock", "no table"],
)
def test_rows_are_copied_only_if_every_column_takes_them_as_they_are(
    answer: str | None, columns: tuple[Column, ...], is_copied: bool
) -> None:
    assert shape_of(answer, columns).copies is is_copied


def test_nulls_without_a_type_get_the_table_s_and_doubtful_values_are_compared() -> None:
    shape = shape_of(found(ways=("same", "checked", "assigned")), COLUMNS)
    statement = text(appended(TABLE, COLUMNS, shape))
    assert statement.startswith(
        'INSERT INTO "public"."target" AS leasehold_target ("k", "n", "nothing") SELECT "k", CASE WHEN "n" IS NULL OR'
    )
    assert 'CAST(CAST("n" AS integer) AS numeric) = "n" THEN "n" WHEN (\'leasehold_loss: 1/\'' in statement
    assert statement.endswith('CAST(NULL AS integer) FROM "pg_temp"."leasehold_batch"')


def test_what_is_not_there_is_left_for_the_server_to_name() -> None:
    shape = shape_of(None, COLUMNS)
    assert text(appended(TABLE, COLUMNS, shape)) == (
        'INSERT INTO "public"."target" AS leasehold_target ("k", "n", "nothing")'
        ' SELECT "k", "n", "nothing" FROM "pg_temp"."leasehold_batch"'
    )
    assert unchanged(TABLE, shape) == []


def test_rows_are_upserted_in_the_order_of_the_index_and_one_by_one_as_they_arrived() -> None:
    shape = shape_of(found(ways=("same", "same", "same")), COLUMNS)
    statement = text(upserted(TABLE, COLUMNS, ["k"], shape))
    assert statement.count('ORDER BY CAST("k" AS integer), ctid') == statement.count("ORDER BY ctid LOOP") == 1
    assert 'ON CONFLICT ("k") DO UPDATE SET "n" = excluded."n", "nothing" = excluded."nothing"' in statement
    staged = text(upserted(TABLE, COLUMNS, ["k"], shape, Identifier("staged")))
    assert 'FROM "staged" ORDER BY CAST("k" AS integer), "leasehold_part", "leasehold_row" ON CONFLICT' in staged
    assert 'FROM "staged" ORDER BY "leasehold_part", "leasehold_row" LOOP' in staged


@pytest.mark.parametrize("locks", [True, False])
def test_a_table_is_locked_if_it_may_be(locks: bool) -> None:
    assert len(locked(TABLE, shape_of(found(locks=locks), COLUMNS[:1]))) == locks
