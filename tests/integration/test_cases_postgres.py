"""Cases of pipelines into PostgreSQL, killed: the user's SQL runs in scratch databases, which are dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plugins_pg import Postgres

from leasehold.pipeline.connectors.postgres.scratch import open_database, read_query, read_tables
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.transform import NoTransform
from leasehold.service.cases.killing import Kills, kill_case
from leasehold.service.cases.model import LONG_AGO, Case
from leasehold.service.cases.running import PreparedPipeline
from leasehold.service.cli.test import open_databases
from leasehold.service.config.load import parse
from leasehold.service.wiring.build import policy_of

SETUP = (
    "CREATE TABLE IF NOT EXISTS totals (account text PRIMARY KEY, total numeric CHECK (total < 1000), events bigint)"
)
MERGE = (
    "INSERT INTO totals SELECT key, sum(convert_from(body, 'UTF8')::numeric), count(*) FROM batch GROUP BY key ORDER BY key"
    " ON CONFLICT (account) DO UPDATE SET total = totals.total + excluded.total, events = {events}"
)
ADDED, ASSIGNED = "totals.events + excluded.events", "excluded.events"
EVENTS = [{"key": "ab"[n % 2], "body": f"{n}.50", "partition": str(n % 3)} for n in range(1, 10)]


def prepared(sink: str, more: str = "") -> PreparedPipeline:
    text = f"""
pipelines:
  - name: totals
    feed: {{type: log, path: in}}
{more}    sink:
      type: postgres
      dsn: postgresql://unset.invalid/nowhere
{sink}
"""
    (settings,) = parse(text, {}, folder=Path("/nowhere")).pipelines
    return PreparedPipeline(settings=settings, transform=NoTransform(), policy=policy_of(settings, lambda: LONG_AGO))


def merging(events: str, more: str = "") -> PreparedPipeline:
    return prepared(f"      setup: {SETUP}\n      merge: {MERGE.format(events=events)}", more)


async def kill(one: PreparedPipeline, dsn: str, *events: dict[str, Any], **keys: object) -> tuple[list[str], list[str]]:
    case = Case.model_validate({"name": "one", "events": events or EVENTS, **keys})
    runs: list[str] = []
    async with open_databases(dsn) as databases:
        return await kill_case(one, case, Kills(databases=databases, report=runs.append)), runs


def scratch_databases(postgres: Postgres) -> list[Any]:
    return postgres.fetch("SELECT datname FROM pg_database WHERE datname LIKE 'leasehold_test_%'")


async def test_a_merge_that_adds_passes_every_crash_point_and_leaves_nothing_behind(postgres: Postgres) -> None:
    problems, runs = await kill(merging(ADDED), postgres.dsn)
    assert problems == []
    assert {point for point in ("batch staged", "committed") if any(f"'{point}'" in run for run in runs)} == {
        *("batch staged", "committed")
    }
    assert any("a write of the first arrives" in run for run in runs)
    assert scratch_databases(postgres) == []


async def test_a_count_that_is_assigned_instead_of_added_is_found(postgres: Postgres) -> None:
    problems, _ = await kill(merging(ASSIGNED), postgres.dsn, *({**event, "partition": "0"} for event in EVENTS))
    assert problems[0].startswith("the output depends on how events are cut into batches")
    assert problems[1] == "public.totals:"
    assert '"account": "a"' in problems[3]


async def test_times_and_serial_numbers_are_left_out(postgres: Postgres) -> None:
    setup = "CREATE TABLE IF NOT EXISTS rows (n serial, at timestamptz DEFAULT clock_timestamp(), key text, body bytea)"
    merge = "INSERT INTO rows (key, body) SELECT key, body FROM batch"
    one = prepared(f"      setup: {setup}\n      merge: {merge}")
    problems, _ = await kill(one, postgres.dsn)
    assert problems[0].startswith("two undisturbed runs have different output")
    for keys in ({"query": "SELECT key, body FROM rows;"}, {"ignore": ["n", "at"]}):
        problems, _ = await kill(one, postgres.dsn, **keys)
        assert problems == []


async def test_rows_that_a_constraint_refuses_are_dead_letters_which_are_compared(postgres: Postgres) -> None:
    one = merging(ADDED, "    on_error: dead_letter\n")
    events = [{"key": "a", "body": body} for body in ("1", "5000", "2", "3")]
    problems, _ = await kill(one, postgres.dsn, *events)
    assert problems == []


async def test_an_error_in_the_sql_is_reported_with_the_remedy(postgres: Postgres) -> None:
    one = prepared("      merge: INSERT INTO nowhere SELECT key FROM batch")
    problems, _ = await kill(one, postgres.dsn)
    assert problems[0].startswith("undisturbed: ") or "nowhere" in problems[0]
    assert 'relation "nowhere" does not exist' in problems[0]
    assert scratch_databases(postgres) == []


async def test_what_a_database_holds_is_read_without_leasehold_s_own_tables(postgres: Postgres) -> None:
    async with open_database(postgres.dsn, "leasehold_test_one") as dsn:
        own = Postgres(postgres.server, "leasehold_test_one")
        own.fetch("CREATE TABLE a (x numeric(20,2)); CREATE TABLE leasehold_positions (x int); CREATE SCHEMA s")
        own.fetch("CREATE TABLE s.b (x int); INSERT INTO a VALUES (2.50), (1); INSERT INTO s.b VALUES (NULL)")
        assert await read_tables(dsn) == {"public.a": ['{"x": 1.00}', '{"x": 2.50}'], "s.b": ['{"x": null}']}
        assert await read_tables(dsn, ["x"]) == {"public.a": ["{}", "{}"], "s.b": ["{}"]}
        assert await read_query(dsn, "SELECT x FROM a WHERE x > 2;") == ['{"x":2.50}']
        with pytest.raises(SinkRejected, match=r"`query` fails \(column \"y\" does not exist"):
            await read_query(dsn, "SELECT y FROM a")
    assert scratch_databases(postgres) == []


async def test_a_role_that_may_create_no_database_is_refused_with_a_remedy(postgres: Postgres) -> None:
    postgres.fetch("CREATE ROLE reader LOGIN")
    try:
        with pytest.raises(SinkRejected, match=r"name a server where this role has CREATEDB \(permission denied"):
            async with open_database(postgres.dsn_of("reader"), "leasehold_test_two"):
                raise AssertionError("created")
    finally:
        postgres.fetch("DROP ROLE reader")
