"""The names of staging tables, and the SQL that reads them."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.sql import Identifier

from leasehold.pipeline.connectors.postgres.sql import Column, Tables
from leasehold.pipeline.connectors.postgres.staging_sql import (
    counted,
    in_order,
    numbered,
    outranked,
    staging_created,
    staging_dropped,
    staging_name,
    staging_names,
    time_left,
)
from leasehold.pipeline.sink import Claim

TABLES = Tables("lea'ses\"")
COLUMNS = (Column("k", "text"), Column('o"dd', "bigint"))
NAME_BYTES_MAX = 63


def claim(epoch: int = 1, pipeline: str = "p", partition: str = "0", generation: int = 0) -> Claim:
    return Claim(
        pipeline=pipeline,
        partition=partition,
        owner="o",
        epoch=epoch,
        generation=generation,
        continuation=None,
        state="",
        compare=lambda a, b: 0,
    )


def text(statement: Any) -> str:
    return " ".join(str(statement.as_string(None)).split())


def test_the_name_of_a_staging_table_has_room_for_every_epoch_and_text() -> None:
    name = staging_name(claim(2**63 - 1, partition="ü" * 1000, generation=2**63 - 1), "x" * 1000)
    assert len(name.encode()) <= NAME_BYTES_MAX
    assert outranked([name], claim(2**63, partition="ü" * 1000)) == [name]


def test_each_lease_epoch_generation_and_start_has_a_table_of_its_own() -> None:
    names = [
        staging_name(claim(), None),
        staging_name(claim(), "None"),
        staging_name(claim(), ""),
        staging_name(claim(2), None),
        staging_name(claim(generation=1), None),
        staging_name(claim(pipeline="p0", partition=""), None),
        staging_name(claim(pipeline="q"), None),
        staging_name(claim(partition="1"), None),
    ]
    assert len(set(names)) == len(names)
    assert staging_name(claim(), None) == names[0]


def test_only_tables_of_this_lease_and_of_earlier_epochs_are_outranked() -> None:
    ours = staging_name(claim(9), "7")
    lease = ours[: ours.index("_9_")]
    kept = [
        staging_name(claim(10), "7"),
        staging_name(claim(11), "7"),
        staging_name(claim(9, partition="1"), "7"),
        "leasehold_positions",
        "leasehold_staged",
        lease,
        f"{lease}_9_",
        f"{lease}_09_00000000",
        f"{lease}_-9_00000000",
        f"{lease}_9_0000000",
        f"{lease}_9_000000000",
        f"{lease}_9_0000000G",
        f"{lease}_9_00000000\n",
        f"x{ours}",
        f"{lease}_99999999999999999999_00000000",
    ]
    assert outranked([ours, *kept, f"{lease}_0_00000000"], claim(10)) == [ours, f"{lease}_0_00000000"]


def test_the_names_of_a_lease_are_looked_up_by_their_prefix() -> None:
    name = staging_name(claim(4), None)
    assert f"'{name[: name.index('_4_') + 1]}'" in text(staging_names(TABLES, claim(9)))


def test_a_staging_table_grants_the_executors_role_insert_alone() -> None:
    created = text(staging_created(TABLES, "t", COLUMNS, 'exec"utor'))
    assert created == (
        'BEGIN ISOLATION LEVEL READ COMMITTED ; CREATE UNLOGGED TABLE IF NOT EXISTS "lea\'ses"""."t"'
        ' ("k" text, "o""dd" bigint, "leasehold_part" text NOT NULL, "leasehold_row" bigint NOT NULL)'
        ' WITH (autovacuum_enabled = false) ; GRANT INSERT ON "lea\'ses"""."t" TO "exec""utor" ; COMMIT'
    )
    assert "GRANT" not in text(staging_created(TABLES, "t", COLUMNS, None))


def test_a_staging_table_is_dropped_within_the_time_of_its_lock() -> None:
    dropped = text(staging_dropped(TABLES, "t", 1.5))
    assert "set_config('lock_timeout', '1500', true)" in dropped
    assert 'DROP TABLE IF EXISTS "lea\'ses"""."t"' in dropped


def test_staged_rows_are_read_in_the_order_of_parts_and_rows() -> None:
    assert text(in_order(Identifier("t"), COLUMNS, ["b", "a'"])) == (
        '(SELECT staged."k", staged."o""dd" FROM "t" AS staged'
        " JOIN (VALUES ('b', 0), ('a''', 1)) AS named (part, number) ON staged.\"leasehold_part\" = named.part"
        ' ORDER BY named.number, staged."leasehold_row") AS rows'
    )


def test_staged_rows_have_the_numbers_of_that_order() -> None:
    assert text(numbered(Identifier("t"), COLUMNS, ["a"])) == (
        '(SELECT staged."k", staged."o""dd", staged."leasehold_row", named.number AS "leasehold_part" FROM "t" AS staged'
        " JOIN (VALUES ('a', 0)) AS named (part, number) ON staged.\"leasehold_part\" = named.part) AS rows"
    )


def test_a_count_raises_by_a_cast_that_names_its_reason() -> None:
    found = text(counted(Identifier("t"), 7))
    assert found.startswith("SELECT CASE count(*) WHEN 7 THEN 1 ELSE ('leasehold_missing: ")


@pytest.mark.parametrize(("seconds", "milliseconds"), [(40, "40000"), (1.2, "1200")])
def test_the_time_that_is_left_is_at_least_a_moment(seconds: float, milliseconds: str) -> None:
    """Without one, 0 would mean no timeout at all."""
    assert f"greatest(1, {milliseconds} - " in text(time_left(seconds))
