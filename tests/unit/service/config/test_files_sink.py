"""The sink `files` in the settings, and what `leasehold files` says of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from unit.pipeline.connectors.files.sink.places import Permit, claim, output

from pipeline.connectors.files.sink import Directory, FilesSink
from service.cli.main import main
from service.config.files import FilesSinkSettings
from service.config.load import ConfigurationError, parse

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
