"""Spark with Delta's jars beside the sink: it reads what the sink wrote, and the sink continues after what Spark wrote."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_log import LOG
from delta_readers import read_rows
from deltalake import DeltaTable
from interop.sql import Sql
from unit.pipeline.connectors.files.delta.owners import CASES, deliver, displaced, ending_at
from unit.pipeline.connectors.files.delta.tables import Permit, claim, sink_in
from unit.pipeline.connectors.files.sink.places import Killed

from leasehold.pipeline.connectors.files.delta import DeltaSink, Table, location_of
from leasehold.pipeline.errors import Fenced
from leasehold.pipeline.sink import Output

COLUMNS = pa.schema(
    [
        ("n", pa.int64()),
        ("text", pa.string()),
        ("amount", pa.decimal128(18, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("body", pa.binary()),
        ("ratio", pa.float64()),
        ("is_odd", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("place", pa.struct([("x", pa.int32())])),
    ]
)
AS_TEXT = (
    "n, text, CAST(amount AS STRING) amount, CAST(at AS STRING) at, CAST(day AS STRING) day, hex(body) body, ratio, is_odd, tags,"
    " properties, place"
)


@pytest.fixture
async def sinks(tmp_path: Path) -> AsyncIterator[Callable[..., DeltaSink]]:
    made: list[DeltaSink] = []

    def make(**options: Any) -> DeltaSink:
        made.append(sink_in(tmp_path / "table", **options))
        return made[-1]

    yield make
    for sink in made:
        await sink.close()


def row(n: int) -> dict[str, Any]:
    return {
        "n": n,
        "text": f"é {n}",
        "amount": Decimal(n) / 4,
        "at": datetime(2026, 1, n, 12, 30, 0, 5, UTC),
        "day": date(2026, 1, n),
        "body": bytes([n]),
        "ratio": n / 8,
        "is_odd": bool(n % 2),
        "tags": ["a", None, str(n)],
        "properties": [("p", str(n))],
        "place": {"x": n},
    }


def as_text(n: int) -> dict[str, Any]:
    """A row as Spark shows AS_TEXT."""
    shown = {
        "amount": f"{Decimal(n) / 4:.2f}",
        "at": f"2026-01-{n:02} 12:30:00.000005",
        "day": f"2026-01-{n:02}",
        "body": f"{n:02X}",
        "properties": {"p": str(n)},
    }
    return row(n) | shown


def of(rows: pa.Table, start: int, to: int) -> Output:
    return Output(table=rows, start=str(start) if start else None, to=str(to), events=to - start)


def event(n: int, **more: Any) -> Output:
    """One event, of one row. more: columns beyond COLUMNS."""
    rows = pa.Table.from_pylist([row(n)], COLUMNS)
    for name, value in more.items():
        rows = rows.append_column(name, pa.array([value]))
    return of(rows, n - 1, n)


def numbers(*values: int, start: int, to: int) -> Output:
    return of(pa.table({"n": pa.array(values, pa.int64())}), start, to)


def balances(start: int, to: int, **values: int) -> Output:
    return of(pa.table({"k": pa.array(values), "v": pa.array(values.values(), pa.int64())}), start, to)


def compact(path: Path) -> None:
    """As `leasehold files compact` does."""
    table = Table(location_of(path))
    table.refresh()
    assert table.compact()["numFilesAdded"] == 1


def forget_commits_before_the_checkpoint(path: Path) -> None:
    """As Delta does after a while. A reader then needs the checkpoint."""
    newest = max((path / LOG).glob("*.checkpoint.parquet")).name.split(".")[0]
    older = [entry for entry in (path / LOG).glob("*.json") if entry.name < newest]
    assert older
    for entry in older:
        entry.unlink()


async def test_spark_reads_appends_with_added_columns_after_a_compaction_and_from_a_checkpoint(
    spark: Sql, sinks: Callable[..., DeltaSink], tmp_path: Path
) -> None:
    path, aside = tmp_path / "table", tmp_path / "aside"
    writer = await sinks().open(claim(1))
    for n in range(1, 4):
        await writer.write(event(n), Permit())
    assert spark(f"SELECT {AS_TEXT} FROM delta.`{path}` ORDER BY n") == [as_text(n) for n in range(1, 4)]
    DeltaTable(str(path)).alter.set_table_properties({"delta.checkpointInterval": "5"})
    for n in range(4, 13):
        await writer.write(event(n, grade=f"g{n}"), Permit())

    wanted = [as_text(n) | {"grade": f"g{n}" if n > 3 else None} for n in range(1, 13)]
    select = f"SELECT {AS_TEXT}, grade FROM delta"
    assert spark(f"{select}.`{path}` ORDER BY n") == wanted
    assert spark(f"{select}.`{path}` WHERE n = 7 AND at > '2026-01-06' AND day = '2026-01-07'") == [wanted[6]]
    compact(path)
    assert spark(f"{select}.`{path}` ORDER BY n") == wanted
    assert spark(f"DESCRIBE DETAIL delta.`{path}`")[0]["numFiles"] == 1
    shutil.copytree(path, aside)
    forget_commits_before_the_checkpoint(aside)
    assert spark(f"{select}.`{aside}` ORDER BY n") == wanted
    names = [*COLUMNS.names, "grade"]
    assert read_rows(path, *names) == read_rows(aside, *names)
    assert [each["n"] for each in read_rows(path, "n")] == list(range(1, 13))


async def test_spark_reads_rows_that_were_replaced_by_key_and_the_sink_replaces_rows_of_spark(
    spark: Sql, sinks: Callable[..., DeltaSink], tmp_path: Path
) -> None:
    path = tmp_path / "table"
    writer = await sinks(key=("k",)).open(claim(1))
    await writer.write(balances(0, 2, x=1, y=1), Permit())
    await writer.write(balances(2, 4, y=5, z=7), Permit())
    assert spark(f"SELECT * FROM delta.`{path}` ORDER BY k") == [
        {"k": "x", "v": 1},
        {"k": "y", "v": 5},
        {"k": "z", "v": 7},
    ]
    spark(f"INSERT INTO delta.`{path}` VALUES ('w', 9)")
    await writer.write(balances(4, 6, w=10, x=2), Permit())
    await writer.write(balances(6, 7, u=3), Permit())
    compact(path)
    wanted = [{"k": k, "v": v} for k, v in {"u": 3, "w": 10, "x": 2, "y": 5, "z": 7}.items()]
    assert spark(f"SELECT * FROM delta.`{path}` ORDER BY k") == wanted
    assert read_rows(path) == wanted


async def test_the_sink_goes_on_exactly_after_spark_has_appended_checkpointed_optimized_and_vacuumed(
    spark: Sql, sinks: Callable[..., DeltaSink], tmp_path: Path
) -> None:
    path = tmp_path / "table"
    first = await sinks().open(claim(1))
    await first.write(numbers(1, 2, start=0, to=2), Permit())
    spark(f"INSERT INTO delta.`{path}` VALUES (1000)")
    await first.write(numbers(3, start=2, to=3), Permit())

    spark(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    spark(f"INSERT INTO delta.`{path}` VALUES (1001)")
    forget_commits_before_the_checkpoint(path)
    second = await sinks().open(claim(2))
    assert second.position == "3"
    await second.write(numbers(4, 5, start=3, to=5), Permit())
    with pytest.raises(Fenced):
        await first.write(numbers(4, start=3, to=4), Permit())

    spark(f"OPTIMIZE delta.`{path}`")
    spark("SET spark.databricks.delta.retentionDurationCheck.enabled = false")
    spark(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    forget_commits_before_the_checkpoint(path)
    third = await sinks().open(claim(3))
    assert third.position == "5"
    await third.write(numbers(6, start=5, to=6), Permit())
    wanted = [{"n": n} for n in (1, 2, 3, 4, 5, 6, 1000, 1001)]
    assert spark(f"SELECT n FROM delta.`{path}` ORDER BY n") == wanted
    assert read_rows(path) == wanted


def test_spark_reads_each_event_once_whatever_step_owners_died_or_froze_at(spark: Sql, tmp_path: Path) -> None:
    for number, (point, key) in enumerate(CASES):
        killed, frozen = tmp_path / f"killed-{number}", tmp_path / f"frozen-{number}"
        with ending_at(point, 2), suppress(Killed):
            asyncio.run(deliver(killed, 1, 3, key))
        asyncio.run(deliver(killed, 2, 4, key))
        wanted = [{"sequence": n} for n in ([4] if key else [1, 2, 3, 4])]
        assert spark(f"SELECT sequence FROM delta.`{killed}` ORDER BY sequence") == wanted, f"killed at '{point}'"
        if point != "table claimed":
            assert isinstance(displaced(frozen, point, 2, key), Fenced)
            assert spark(f"SELECT sequence FROM delta.`{frozen}` ORDER BY sequence") == wanted, f"frozen at '{point}'"
