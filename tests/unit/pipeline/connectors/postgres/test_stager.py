"""What an executor needs to stage rows: columns, numbered rows, and the DSN in its environment."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from leasehold.pipeline.connectors.postgres.copy import columns_of, load
from leasehold.pipeline.connectors.postgres.session import Timeouts
from leasehold.pipeline.connectors.postgres.sql import Column
from leasehold.pipeline.connectors.postgres.stager import (
    SLICE_BYTES,
    PostgresStager,
    is_stageable,
    numbered,
    read_variable,
    role_of,
)
from leasehold.pipeline.errors import SinkRejected

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
        (None, "variable EXECUTORS_DSN, which `executors_env` names, is not set"),
        ("", "variable EXECUTORS_DSN, which `executors_env` names, is not set"),
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


class Connection:
    """Records what a stager does with it."""

    def __init__(self) -> None:
        self.closed = False
        self.steps: list[str] = []
        self.written: list[bytes] = []

    def execute(self, query: object) -> None:
        self.steps.append("settings")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.steps.append("begin")
        try:
            yield
        except BaseException:
            self.steps.append("rollback")
            raise
        self.steps.append("commit")

    def cursor(self) -> Connection:
        return self

    @contextmanager
    def copy(self, statement: object) -> Iterator[Connection]:
        self.steps.append("copy")
        yield self
        self.steps.append("copied")

    def write(self, lines: bytes) -> None:
        self.written.append(lines)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    made = Connection()
    monkeypatch.setenv(VARIABLE, "host=h dbname=d user=u")
    monkeypatch.setattr(psycopg, "connect", lambda **_: made)
    return made


def stager(columns: pa.Schema) -> PostgresStager:
    return PostgresStager(variable=VARIABLE, table=("s", "t"), columns=columns, epoch=1, start="7", timeouts=Timeouts())


BODIES = {
    "binary": pa.array([bytes([i % 256]) * 1000 for i in range(20_000)]),
    "text": pa.array([chr(97 + i % 26) * 1000 for i in range(20_000)]),
    "nested": pa.array([[{"a": "x" * 490}, {"a": None}, {"a": str(i) * 100}] for i in range(20_000)]),
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_large_part_is_copied_slice_by_slice_within_one_transaction(
    kind: str, is_sorted: bool, connection: Connection
) -> None:
    count = len(BODIES[kind])
    table = pa.table({"sequence": range(count) if is_sorted else range(count, 0, -1), "body": BODIES[kind]})
    part = stager(table.schema).stage(table, "p")
    whole = load(numbered(table.take(pc.sort_indices(table["sequence"])), "p")).csv
    assert b"".join(connection.written) == whole
    assert (part.rows, part.bytes) == (count, len(whole))
    assert max(map(len, connection.written)) < 3 * SLICE_BYTES < len(whole)
    copies = ["copy", "copied"] * len(connection.written)
    assert connection.steps == ["settings", "begin", *copies, "commit"]
    assert connection.closed


def test_a_row_that_cannot_be_written_rolls_back_the_slices_before_it(connection: Connection) -> None:
    table = pa.table({"body": [*["x" * 1000] * 9_999, "\0"]})
    with pytest.raises(SinkRejected, match=r"column 'body'.* holds the character NUL"):
        stager(table.schema).stage(table, "p")
    assert connection.steps == ["settings", "begin", *["copy", "copied"] * len(connection.written), "rollback"]
    assert connection.written
    assert connection.closed
