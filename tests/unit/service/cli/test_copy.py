"""`leasehold leases copy`: what it prints, how it ends, and what it refuses before it looks."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leasehold.leases.bootstrap import Identity, Info, encode_info, info_id
from leasehold.leases.document import decode_lease, encode_lease, lease_prefix
from leasehold.leases.keeper import id_of
from leasehold.leases.lease import Lease
from leasehold.leases.pause_orders import control_id, decode_control, encode_control
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.service.cli.main import main
from leasehold.service.config.load import load
from leasehold.service.wiring.build import pipelines_of

SETTINGS = """
leases: {leases}
pipelines:
  - name: {name}
    feed: {{type: files, path: "words-*.jsonl"}}
    sink: {{type: log, path: {sink}}}
"""
LEASES = [Lease(pipeline="words", partition=f"words-{n}.jsonl", epoch=n, continuation=str(n)) for n in range(3)]


def settings(folder: Path, file: str, leases: str, *, name: str = "words", sink: str = "out") -> Path:
    path = folder / file
    path.write_text(SETTINGS.format(leases=leases, name=name, sink=sink))
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    file = settings(tmp_path, "old.yaml", "{type: sqlite, path: old.db}")
    (pipeline,) = pipelines_of(load(file, {}))

    async def fill() -> None:
        store = SqliteStore(tmp_path / "old.db")
        identity: Identity = pipeline.identity
        await store.create(info_id("words"), encode_info(Info(identity=identity, complete=True)))
        for lease in LEASES:
            await store.create(id_of(lease), encode_lease(lease))
        await store.close()

    asyncio.run(fill())
    return file


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return settings(tmp_path, "new.yaml", "{type: sqlite, path: new.db}")


def copy(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["leases", "copy", *map(str, arguments)])


def leases_in(path: Path) -> list[Lease]:
    async def read() -> list[Lease]:
        store = SqliteStore(path)
        try:
            return [decode_lease(each.id, each.body) for each in await store.list(lease_prefix("words"))]
        finally:
            await store.close()

    return asyncio.run(read())


def unmark(path: Path, state: str) -> None:
    """Put the mark of the source back to a state that it had before."""

    async def write() -> None:
        store = SqliteStore(path)
        stored = await store.read(control_id("words"))
        body = encode_control(decode_control(stored.id, stored.body)).replace('"done"', f'"{state}"')
        await store.replace(stored.id, body, stored.etag)
        await store.close()

    asyncio.run(write())


def test_it_shows_what_it_would_copy_and_creates_nothing(old: Path, new: Path, tmp_path: Path) -> None:
    result = copy("--from", old, "--to", new)
    assert result.exit_code == 0, result.output
    assert result.stdout == "pipeline 'words': 3 leases\nnothing was written; use --apply to copy\n"
    assert not (tmp_path / "new.db").exists()


def test_it_copies_and_says_what_to_run(old: Path, new: Path, tmp_path: Path) -> None:
    result = copy("--from", old, "--to", new, "--apply")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "pipeline 'words': 3 leases"
    assert f"documents written: run {new}, and keep {old} from being started" in result.stdout
    assert leases_in(tmp_path / "new.db") == LEASES
    again = copy("--from", old, "--to", new, "--apply")
    assert again.exit_code == 0
    assert again.stdout.splitlines() == [
        "pipeline 'words': 3 leases, which were copied already",
        f"nothing to do: run {new}",
    ]
    run = CliRunner().invoke(main, ["run", str(old), "--until-idle"])
    assert run.exit_code == 2
    assert f"the leases of pipeline 'words' were moved to {tmp_path / 'new.db'} at 2" in run.stderr


def test_its_json_has_the_counts(old: Path, new: Path) -> None:
    result = copy("--from", old, "--to", new, "--json")
    assert json.loads(result.stdout) == {
        "applied": False,
        "written": 0,
        "pipelines": [{"pipeline": "words", "leases": 3, "left": "copy"}],
    }


def test_an_unfinished_copy_is_given_up(old: Path, new: Path, tmp_path: Path) -> None:
    nothing = copy("--from", old, "--to", new, "--cancel")
    assert nothing.stdout == "nothing to give up: no copy from there is under way\n"
    copy("--from", old, "--to", new, "--apply")
    done = copy("--from", old, "--to", new, "--cancel")
    assert done.exit_code == 1
    assert "That cannot be given up" in done.stderr
    unmark(tmp_path / "old.db", "sealed")
    given_up = copy("--from", old, "--to", new, "--cancel")
    assert given_up.exit_code == 0, given_up.output
    assert f"given up: hosts may run {old} again" in given_up.stdout


def test_another_feed_or_sink_is_refused(old: Path, tmp_path: Path) -> None:
    other = settings(tmp_path, "other.yaml", "{type: sqlite, path: new.db}", sink="elsewhere")
    result = copy("--from", old, "--to", other, "--apply")
    assert result.exit_code == 2
    assert "the leases of pipeline 'words' belong to sink" in result.stderr
    assert leases_in(tmp_path / "new.db") == []


@pytest.mark.parametrize(
    ("leases", "name", "options", "why"),
    [
        ("{type: memory}", "words", (), "`leases: {type: memory}` ends with this command"),
        ("{type: sqlite, path: new.db}", "letters", (), "must have the same pipelines: 'letters', 'words' in one"),
        ("{type: sqlite, path: new.db}", "words", ("--apply", "--cancel"), "--apply and --cancel exclude each other"),
    ],
)
def test_wrong_use_is_refused(
    old: Path, tmp_path: Path, leases: str, name: str, options: tuple[str, ...], why: str
) -> None:
    result = copy("--from", old, "--to", settings(tmp_path, "new.yaml", leases, name=name), *options)
    assert result.exit_code == 2
    assert why in result.stderr


STORE = """
from pathlib import Path
from leasehold.leases.stores.sqlite import SqliteStore

class Store(SqliteStore):
    def __init__(self, file: str) -> None:
        super().__init__(Path(__file__).with_name(file))
"""


def test_a_third_store_of_your_own_is_not_taken_for_the_one_that_the_leases_were_moved_to(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All such stores have one name in marks, because their arguments may be secrets."""
    (tmp_path / "kept_leases.py").write_text(STORE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    new, third = (
        settings(tmp_path, f"{name}.yaml", f'{{type: "kept_leases:Store", file: {name}.db}}')
        for name in ("new", "third")
    )
    assert copy("--from", old, "--to", new, "--apply").exit_code == 0
    assert "nothing to do" in copy("--from", old, "--to", new).stdout

    async def fill() -> None:
        store = SqliteStore(tmp_path / "third.db")
        await store.create(id_of(LEASES[0]), encode_lease(LEASES[0]))
        await store.close()

    asyncio.run(fill())
    refused = copy("--from", old, "--to", third)
    assert refused.exit_code == 1
    assert "were moved to the lease store 'kept_leases:Store' at 2" in refused.stderr


def test_the_same_store_is_no_target(old: Path) -> None:
    result = copy("--from", old, "--to", old, "--apply")
    assert result.exit_code == 1
    assert "has documents of pipeline 'words' already (3 leases): name an empty lease store" in result.stderr
