"""What an executor needs to stage rows: columns, numbered rows, and the DSN in its environment."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from pipeline.connectors.postgres.session import Timeouts
from pipeline.connectors.postgres.sql import Column
from pipeline.connectors.postgres.stager import (
    PostgresStager,
    columns_of,
    is_stageable,
    numbered,
    read_variable,
    role_of,
)
from pipeline.errors import SinkRejected

VARIABLE = "EXECUTORS_DSN"


def test_rows_are_numbered_within_their_part() -> None:
    table = numbered(pa.table({"a": ["x", "y"]}), "p")
    assert table.to_pydict() == {"a": ["x", "y"], "leasehold_part": ["p", "p"], "leasehold_row": [0, 1]}
    assert columns_of(table.schema)[1:] == (Column("leasehold_part", "text"), Column("leasehold_row", "bigint"))


def test_columns_have_the_types_that_copy_fills() -> None:
    schema = pa.schema([("a", pa.timestamp("us", "UTC")), ("b", pa.list_(pa.string()))])
    assert columns_of(schema) == (Column("a", "timestamptz"), Column("b", "jsonb"))
    with pytest.raises(SinkRejected, match="column 'c'"):
        columns_of(pa.schema([("c", pa.duration("s"))]))


@pytest.mark.parametrize("name", ["leasehold_part", "leasehold_row"])
def test_output_with_a_name_of_the_staging_table_cannot_be_staged(name: str) -> None:
    assert is_stageable(["a", "part"])
    assert not is_stageable(["a", name])


def test_the_role_is_that_of_the_dsn() -> None:
    assert role_of("postgresql://executor@h/d") == "executor"
    assert role_of("host=h user='an executor'") == "an executor"
    assert role_of("host=h") is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "variable EXECUTORS_DSN is not set, which `executors_env` names"),
        ("", "variable EXECUTORS_DSN is not set"),
        ("secret", "variable EXECUTORS_DSN is not a PostgreSQL connection string"),
        ("postgresql://u:a/secret@h/x", "variable EXECUTORS_DSN has a port"),
    ],
)
def test_a_variable_that_holds_no_dsn_is_named_and_never_quoted(
    value: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(SinkRejected, match=words) as refused:
        read_variable(VARIABLE)
    assert "secret" not in str(refused.value)


def test_a_stager_is_sent_without_the_value_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "postgresql://u:secret@h/d")
    schema = pa.schema([("a", pa.string())])
    stager = PostgresStager(
        variable=VARIABLE, table=("s", "t"), columns=schema, epoch=1, start="7", timeouts=Timeouts()
    )
    sent = pickle.dumps(stager)
    assert b"secret" not in sent
    assert pickle.loads(sent) == stager
