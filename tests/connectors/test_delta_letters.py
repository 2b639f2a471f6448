"""A host over a Delta table: rows that the table does not take become dead letters, and all others are in it once."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, Schema
from plugins_cli import Commands, leases_in
from plugins_cluster import spark_settings

from leasehold.pipeline.crash_point import VARIABLE
from leasehold.pipeline.event import EVENT_SCHEMA

FILES = ("in-1.jsonl", "in-2.jsonl")
"""A partition each."""
EVENTS = 12
"""In each of them, of each round."""
BAD: Mapping[int, dict[str, Any]] = {3: {"account": None}, 5: {"amount": None}, 8: {"days": 1}, 9: {"account": None}}
"""What is in no row of a table, by the place of its event in a round."""
NULL_KEY, NULL_VALUE = "is in `key_columns`, and is NULL", "is NOT NULL in the table, and is NULL"
YEAR = "column 'day', which has a year outside of 1 to 9999"
TABLE, LEASES = "lake/rows", "state/leases.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """reasons: by the place of an event, why it is a dead letter. not_null: a column of the table that another program made."""

    key: tuple[str, ...] = ()
    not_null: str
    columns: pa.Schema
    transform: dict[str, Any] = field(default_factory=dict)
    reasons: Mapping[int, str]

    def create_table(self, path: Path) -> None:
        columns = [each.with_nullable(each.name != self.not_null) for each in self.columns]
        path.mkdir(parents=True)
        DeltaTable.create(path, Schema.from_arrow(pa.schema(columns)))

    def settings(self) -> dict[str, Any]:
        feed = {"type": "files", "path": "in-*.jsonl", "key": "account"}
        sink = {"type": "files", "format": "delta", "path": TABLE, "key_columns": list(self.key)}
        letters = {"type": "log", "path": "state/dead"}
        pipeline = {"name": "rows", "feed": feed, "sink": sink, "dead_letters": letters, "batch_events_max": 5}
        spark = {"spark": spark_settings({"master": "local[2]"})} if self.transform else {}
        return {
            "leases": {"type": "sqlite", "path": LEASES},
            "api": {"enabled": False},
            "pipelines": [{**pipeline, **self.transform}],
            **spark,
        }


BY_SPARK = {
    "schema": "account STRING, amount BIGINT, days INT",
    "sql": "SELECT partition, sequence, account, amount, date_add(DATE'9999-12-31', days) AS day FROM events",
}
OF_SPARK = pa.schema(
    {
        "partition": pa.string(),
        "sequence": pa.int64(),
        "account": pa.string(),
        "amount": pa.int64(),
        "day": pa.date32(),
    }
)
KINDS = {
    "merged": Kind(
        key=("account",),
        not_null="amount",
        columns=OF_SPARK,
        transform=BY_SPARK,
        reasons={3: f"'account' {NULL_KEY}", 5: f"'amount' {NULL_VALUE}", 8: YEAR, 9: f"'account' {NULL_KEY}"},
    ),
    "events appended": Kind(not_null="key", columns=EVENT_SCHEMA, reasons=dict.fromkeys((3, 9), f"'key' {NULL_VALUE}")),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_row_that_the_table_does_not_take_is_a_dead_letter_and_every_other_is_there_once(
    tmp_path: Path, leasehold: Commands, kind: Kind
) -> None:
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump(kind.settings()))
    kind.create_table(tmp_path / TABLE)
    run = ("run", "--until-idle", "rows.yaml")

    write_events(tmp_path, range(EVENTS))
    killed = leasehold(*run, env={VARIABLE: "letters put"})
    assert killed.ended() == -signal.SIGKILL, killed.err
    see_all(tmp_path, leasehold, kind, leasehold(*run), EVENTS)
    positions = positions_in(tmp_path)

    write_events(tmp_path, range(EVENTS, 2 * EVENTS))
    see_all(tmp_path, leasehold, kind, leasehold(*run), 2 * EVENTS)
    after = positions_in(tmp_path)
    assert positions.keys() == after.keys() == set(FILES)
    assert not positions.items() & after.items(), "each position has moved"

    files = set(DeltaTable(tmp_path / TABLE).file_uris())
    see_all(tmp_path, leasehold, kind, leasehold(*run), 2 * EVENTS)
    assert positions_in(tmp_path) == after
    assert set(DeltaTable(tmp_path / TABLE).file_uris()) == files


def write_events(folder: Path, numbers: Iterable[int]) -> None:
    numbers = tuple(numbers)
    for name in FILES:
        with (folder / name).open("a") as file:
            for number in numbers:
                good = {"account": f"{name} {number}", "amount": number, "days": 0}
                file.write(json.dumps({**good, **BAD.get(number % EVENTS, {})}) + "\n")


def see_all(folder: Path, leasehold: Commands, kind: Kind, host: Any, events: int) -> None:
    """After the end of the host, so many events of each partition are in the table or in a dead letter, once."""
    assert host.ended() == 0, host.err
    places = [(name, number) for name in FILES for number in range(events)]
    dead = {place: kind.reasons[place[1] % EVENTS] for place in places if place[1] % EVENTS in kind.reasons}
    rows = polars.read_delta(str(folder / TABLE), columns=["partition", "sequence"]).rows()
    assert sorted(rows) == [place for place in places if place not in dead]
    listed = leasehold("dead-letters", "list", "--json", "rows.yaml", "rows")
    assert listed.ended() == 0, listed.err
    letters = [json.loads(line) for line in listed.out.splitlines()]
    assert sorted((each["partition"], each["sequence"]) for each in letters) == list(dead)
    for each in letters:
        assert dead[each["partition"], each["sequence"]] in each["error"]
        number = each["sequence"] % EVENTS
        assert json.loads(each["body"]).items() >= BAD[number].items()


def positions_in(folder: Path) -> dict[str, str | None]:
    return {lease.partition: lease.continuation for lease in leases_in(folder / LEASES, "rows")}
