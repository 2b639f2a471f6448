"""The sink `files` in the settings, and what `leasehold files` says of it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import trustme
from click.testing import CliRunner, Result
from delta_log import read_log
from unit.pipeline.connectors.files.delta.tables import sink_in
from unit.pipeline.connectors.files.sink.places import Permit, claim, output

from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.files.sink import Directory, FilesSink
from leasehold.pipeline.connectors.files.sink.blobs import BlobContainer
from leasehold.pipeline.errors import SinkRejected
from leasehold.service.cli.main import main
from leasehold.service.config.files import FilesSinkSettings
from leasehold.service.config.load import ConfigurationError, parse

KEY = "c2VjcmV0LXNlY3JldA=="
CONNECTION = f"DefaultEndpointsProtocol=https;AccountName=bank;AccountKey={KEY};EndpointSuffix=core.windows.net"
URL = 'account_url: "https://bank.blob.core.windows.net"'


def settings_of(fields: str) -> FilesSinkSettings:
    text = f'pipelines: [{{name: a, feed: {{type: files, path: "*.csv"}}, sink: {{type: files, {fields}}}}}]'
    sink = parse(text, {"KEY": KEY, "CONNECTION": CONNECTION}, folder=Path("/etc/leasehold")).pipelines[0].sink
    assert isinstance(sink, FilesSinkSettings)
    return sink


@pytest.mark.parametrize(
    ("fields", "identity"),
    [
        ("path: out", "files:/etc/leasehold/out"),
        ('container: lake, connection_string: "${CONNECTION}"', "files:https://bank.blob.core.windows.net/lake"),
        (f'container: lake, prefix: a/b/, {URL}, key: "${{KEY}}"', "files:https://bank.blob.core.windows.net/lake/a/b"),
        (f"container: lake, {URL}, identity: default", "files:https://bank.blob.core.windows.net/lake"),
    ],
)
def test_a_place_is_a_directory_or_a_container_and_tells_no_secret(fields: str, identity: str) -> None:
    settings = settings_of(fields)
    place = settings.make_place()
    assert place.identity == identity
    assert KEY not in repr(settings)
    place.close()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("format: parquet", "needs either `path` or `container`"),
        ("path: out, container: lake", "needs either `path` or `container`"),
        ("path: out, prefix: a", "`prefix` requires `container`"),
        ("path: out, format: jsonl, compression: zstd", "`compression` requires `format: parquet`"),
        ("container: lake", "needs `account_url`"),
        (f'container: lake, {URL}, connection_string: "${{CONNECTION}}"', "contains everything"),
        ('container: lake, connection_string: "AccountName=${KEY}"', "must look like"),
        (f'container: lake, {URL}, key: "${{KEY}}?"', "base64"),
        ('container: lake, account_url: "http://bank.example", identity: default', "must begin with https"),
        ("path: out, key_columns: [a]", "`key_columns` requires `format: delta`"),
        (
            f"container: lake, {URL}, identity: default, format: delta, prefix: a//b",
            "`prefix` of a Delta table must consist of",
        ),
        (
            'container: lake, account_url: "https://bank.dfs.core.windows.net", identity: default',
            "https://bank.blob.core",
        ),
    ],
)
def test_what_does_not_fit_is_told_without_secrets(fields: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected) as error:
        settings_of(fields)
    assert KEY not in str(error.value)


class Bank:
    """Settings with a directory of files, and `leasehold files` on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        (folder / "bank.yaml").write_text(
            'pipelines:\n  - {name: bank, feed: {type: files, path: "*.csv"}, sink: {type: files, path: out}}\n'
            '  - {name: other, feed: {type: files, path: "*.csv"}, sink: {type: log, path: log}}\n'
        )
        asyncio.run(self._written())

    async def _written(self) -> None:
        sink = FilesSink(Directory(self.out))
        for partition in ("-1", "2"):
            writer = await sink.open(claim(1, partition=partition))
            await writer.write(output(0, 2, partition), Permit())
            await writer.write(output(2, 3, partition), Permit())
        await sink.close()

    def __call__(self, command: str, *arguments: str) -> Result:
        result = CliRunner().invoke(main, ["files", command, str(self.folder / "bank.yaml"), *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path)


def test_list_names_the_files_that_count(bank: Bank) -> None:
    paths = bank("list", "bank").output.splitlines()
    assert len(paths) == 4
    assert all(Path(path).is_file() for path in paths)
    files = [json.loads(line) for line in bank("list", "bank", "--partition", "-1", "--json").output.splitlines()]
    assert [(file["path"], file["rows"], file["start"], file["to"]) for file in files] == [
        (paths[0], 2, None, "2"),
        (paths[1], 1, "2", "3"),
    ]


def test_read_prints_lines_or_writes_one_file(bank: Bank, tmp_path: Path) -> None:
    lines = bank("read", "bank", "--partition", "2").output.splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == [1, 2, 3]
    said = bank("read", "bank", "--to", str(tmp_path / "all.parquet")).output
    assert said == f"6 rows of 4 files in {tmp_path / 'all.parquet'}\n"
    assert pq.read_table(tmp_path / "all.parquet")["partition"].to_pylist() == ["-1"] * 3 + ["2"] * 3


def test_clean_deletes_what_attempts_left_and_nothing_else(bank: Bank) -> None:
    before = bank("list", "bank").output
    left = Path(before.splitlines()[0]).with_name(f"{1:012d}-{'f' * 32}.parquet")
    left.write_bytes(b"half")
    assert bank("clean", "bank", "--dry-run").output == f"would delete {left}\n"
    assert left.exists()
    assert bank("clean", "bank").output == f"deleted {left}\n"
    assert not left.exists()
    assert (bank("clean", "bank").output, bank("list", "bank").output) == ("", before)


@pytest.mark.parametrize(("pipeline", "why"), [("other", "writes a log, not files"), ("nobody", "does not exist")])
def test_a_pipeline_that_writes_no_files_is_told(bank: Bank, pipeline: str, why: str) -> None:
    result = bank("list", pipeline)
    assert (result.exit_code, why in result.output) == (2, True)


def test_damage_is_told_with_the_file(bank: Bank) -> None:
    first = Path(bank("list", "bank").output.splitlines()[0])
    first.write_bytes(b"")
    result = bank("read", "bank")
    assert (result.exit_code, str(first) in result.output) == (1, True)


async def test_a_delta_table_is_written_as_the_settings_say(tmp_path: Path) -> None:
    settings = settings_of(f"path: {tmp_path / 'table'}, format: delta, key_columns: [sequence], compression: snappy")
    sink = settings.make(Timing())
    assert sink.identity == f"delta files:{tmp_path / 'table'}"
    writer = await sink.open(claim(1))
    for start in (0, 2):
        await writer.write(output(start, start + 2), Permit())
    await sink.close()
    assert sorted(row["sequence"] for row in read_log(tmp_path / "table").rows()) == [1, 2, 3, 4]
    settings.check_output(output(0, 1).table)
    with pytest.raises(SinkRejected, match="no column 'sequence'"):
        settings.check_output(output(0, 1).table.drop_columns("sequence"))


@pytest.mark.parametrize(
    ("fields", "has_token"),
    [
        ('connection_string: "${CONNECTION}"', False),
        (f'{URL}, key: "${{KEY}}"', False),
        (f"{URL}, identity: default", True),
    ],
)
def test_a_delta_table_in_a_container_has_the_credentials_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, fields: str, has_token: bool
) -> None:
    monkeypatch.setattr(BlobContainer, "token", lambda place: "of-the-identity")
    settings = settings_of(f"container: lake, prefix: a/b, format: delta, {fields}")
    place, location = settings.make_table_place()
    address = "https://bank.blob.core.windows.net/lake/a/b"
    assert (location.uri, location.address, place.identity) == ("az://lake/a/b", address, f"files:{address}")
    options = location.options()
    assert options.get("azure_storage_token") == ("of-the-identity" if has_token else None)
    assert options.get("azure_storage_account_key") == (None if has_token else KEY)
    assert settings.make(Timing()).identity == f"delta files:{address}"
    place.close()


def test_certificates_that_deltalake_does_not_know_are_refused(tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    fields = f"container: lake, {URL}, identity: default, ca_file: {tmp_path / 'ca.pem'}"
    with pytest.raises(ConfigurationError, match="`ca_file` does not apply to `format: delta`"):
        settings_of(f"{fields}, format: delta")
    settings_of(fields).make_place().close()


def test_without_deltalake_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.service.config.files.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="needs deltalake, which is not installed: pip install 'deltalake"):
        settings_of("path: out, format: delta")


class Lake:
    """Settings with a Delta table, and `leasehold files` on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = folder / "table"
        (folder / "lake.yaml").write_text(
            'pipelines:\n  - {name: lake, feed: {type: files, path: "*.csv"}, sink: {type: files, path: table, format: delta}}\n'
            '  - {name: plain, feed: {type: files, path: "*.csv"}, sink: {type: files, path: plain}}\n'
        )

    async def write(self, batches: int) -> None:
        sink = sink_in(self.table)
        writer = await sink.open(claim(1))
        for number in range(batches):
            await writer.write(output(number, number + 1), Permit())
        await sink.close()

    def __call__(self, command: str, *arguments: str) -> Result:
        result = CliRunner().invoke(main, ["files", command, str(self.folder / "lake.yaml"), *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result


def test_compact_makes_one_file_of_many_and_keeps_rows_and_positions(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    asyncio.run(lake.write(3))
    before = read_log(lake.table)
    assert lake("compact", "lake").output == "3 files became 1\n"
    after = read_log(lake.table)
    assert (len(before.files), len(after.files), after.txns) == (3, 1, before.txns)
    assert sorted(row["sequence"] for row in after.rows()) == [1, 2, 3]
    assert lake("compact", "lake").output == "nothing to compact\n"


def test_vacuum_spares_records_folders_below_and_whatever_is_young(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    asyncio.run(lake.write(2))
    left, other = lake.table / f"part-{'a' * 32}.zstd.parquet", lake.table / "below" / "rows.parquet"
    other.parent.mkdir()
    for path in (left, other):
        path.write_bytes(b"half")
    assert lake("vacuum", "lake").output == ""
    records = list((lake.table / "_leasehold" / "positions").rglob("*.json"))
    assert records
    for path in (left, other, *records):
        os.utime(path, (0, 0))
    assert lake("vacuum", "lake", "--dry-run").output == f"would delete {left.name}\n"
    assert left.exists()
    assert lake("vacuum", "lake").output == f"deleted {left.name}\n"
    assert not left.exists()
    assert all(path.exists() for path in (other, *records))


def test_vacuum_deletes_what_an_earlier_owner_staged_at_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path)

    async def stage() -> str:
        sink = sink_in(lake.table)
        writer = await sink.open(claim(1))
        await writer.write(output(0, 1), Permit())
        stager = await writer.make_stager("1", output(1, 2).table.schema)
        assert stager is not None
        staged = stager.stage(output(1, 2).table, "a" * 32)
        await sink.open(claim(2))
        await sink.close()
        return staged.name

    name = asyncio.run(stage())
    assert lake("vacuum", "lake", "--retention-hours", "168").output == ""
    assert lake("vacuum", "lake", "--dry-run").output == f"would delete {name}\n"
    assert lake("vacuum", "lake").output == f"deleted {name}\n"
    assert not (lake.table / name).exists()


@pytest.mark.parametrize(
    ("command", "pipeline", "why"),
    [
        ("list", "lake", "writes a Delta table: read it with any reader"),
        ("compact", "plain", "does not write a Delta table"),
        ("vacuum", "nobody", "does not exist"),
    ],
)
def test_commands_for_another_format_are_refused(tmp_path: Path, command: str, pipeline: str, why: str) -> None:
    result = Lake(tmp_path)(command, pipeline)
    assert (result.exit_code, why in result.output) == (2, True)


def test_a_table_that_was_never_written_is_reported(tmp_path: Path) -> None:
    result = Lake(tmp_path)("compact", "lake")
    assert (result.exit_code, "has written no table yet" in result.output) == (1, True)
