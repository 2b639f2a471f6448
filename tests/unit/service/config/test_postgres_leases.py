"""Leases in PostgreSQL, as settings say where they are: what is taken, what is refused, and that no secret is shown."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from leasehold.leases.stores.postgres import PostgresStore
from leasehold.service.config.postgres import PostgresLeases
from leasehold.service.config.settings import Settings
from leasehold.service.wiring.build import store_of

DSN = "postgresql://leasehold:geheim@db.example/bank"


def leases(**settings: object) -> PostgresLeases:
    return PostgresLeases.model_validate({"type": "postgres", "dsn": DSN, **settings})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"dsn": "leasehold:geheim@db"}, "is not a PostgreSQL connection string"),
        ({"dsn": "postgresql://u:geheim@db:99999/bank"}, "has a port that is not a number"),
        ({"identity": "default"}, "`identity` provides the password, and `dsn` has one too"),
        ({"dsn": "host=db user=a sslmode=disable", "identity": "default"}, "which needs TLS"),
        ({"table": "a%b"}, "`table` must be a name of 1 to 63 bytes, without %"),
        ({"schema": "x" * 64}, "`schema` must be a name of 1 to 63 bytes, without %"),
        ({"connections_max": 1}, "greater than or equal to 2"),
    ],
)
def test_settings_that_lead_nowhere_are_refused_and_no_secret_is_shown(given: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why) as caught:
        leases(**given)
    assert "geheim" not in str(caught.value)


def test_secrets_are_not_shown_and_people_see_where_the_leases_are() -> None:
    found = leases(schema="ops", table="group_a")
    assert "geheim" not in f"{found!r} {found.model_dump_json()} {found.place}"
    assert found.place == "the table 'ops.group_a' in PostgreSQL db.example:5432/bank"


@pytest.mark.parametrize(
    ("dsn", "server"),
    [
        ("postgresql://u:geheim@a:6432,b/bank?sslmode=require", "a,b:6432,/bank"),
        ("host=/run/pg dbname=ops password=geheim", "/run/pg:5432/ops"),
        ("hostaddr=10.0.0.4 port=5433 user=ada password=geheim", "10.0.0.4:5433/ada"),
        ("service=reporting password=geheim", "service reporting"),
    ],
)
def test_the_place_of_leases_names_the_server(monkeypatch: pytest.MonkeyPatch, dsn: str, server: str) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGUSER", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    assert leases(dsn=dsn).place == f"the table 'public.leasehold_leases' in PostgreSQL {server}"


def test_a_store_is_made_that_knows_its_server() -> None:
    pipeline = {"name": "copy", "feed": {"type": "log", "path": "in"}, "sink": {"type": "log", "path": "out"}}
    section = {"type": "postgres", "dsn": DSN}
    store = store_of(Settings.model_validate({"leases": section, "pipelines": [pipeline]}), [])
    assert isinstance(store, PostgresStore)
    assert store.address == "db.example:5432/bank"
