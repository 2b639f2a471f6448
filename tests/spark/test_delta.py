"""A Delta table that a host with Spark writes, if its columns change."""

from __future__ import annotations

from pathlib import Path

from delta_readers import read_rows
from pages import examples, lines_of, shell
from patience import until
from plugins_cli import Commands


def test_a_column_of_another_type_stops_the_partition_and_is_named(tmp_path: Path, leasehold: Commands) -> None:
    page = examples("delta-sink.md", tmp_path)
    shell(lines_of(page, "printf")[0], tmp_path)
    assert leasehold("run", "--until-idle", "lake.yaml").ended() == 0
    settings = tmp_path / "lake.yaml"
    settings.write_text(settings.read_text().replace("balance DECIMAL(18,2)", "balance STRING"))
    shell(lines_of(page, "printf")[0].replace(">", ">>"), tmp_path)
    host = leasehold("run", "lake.yaml")
    until(lambda: host.found("(column .balance. .*)"), "the column is named")
    rows = read_rows(tmp_path / "lake/balances", "account", "balance")
    assert [(row["account"], float(row["balance"])) for row in rows] == [("ann", 15), ("bob", 20)]
