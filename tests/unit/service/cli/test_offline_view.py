"""What `leasehold leases` and `leasehold lag` say where nobody has run yet: that, and nothing is made for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leasehold.leases.bell import Bell
from leasehold.leases.document import encode_lease, lease_id
from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.host_record import BELL_ID
from leasehold.leases.lease import Lease
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.service.cli.main import main

SETTINGS = """
leases: {path: state/leases.db}
pipelines:
  - name: copy
    feed: {type: files, path: "words-*.jsonl"}
    sink: {type: log, path: state/copied}
  - name: more
    feed: {type: files, path: "more-*.jsonl"}
    sink: {type: log, path: state/more}
"""
LOOKS = (
    ("leases", "list", "FILE"),
    ("leases", "list", "FILE", "--json"),
    ("leases", "list", "FILE", "--pipeline", "copy"),
    ("leases", "show", "FILE", "copy", "words-1.jsonl"),
    ("leases", "release", "FILE", "copy", "words-1.jsonl"),
    ("lag", "FILE"),
    ("lag", "FILE", "--json"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Settings and two events."""
    (tmp_path / "copy.yaml").write_text(SETTINGS)
    (tmp_path / "words-1.jsonl").write_text('{"word": "one"}\n{"word": "two"}\n')
    return tmp_path


def leasehold(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [str(folder / "copy.yaml") if each == "FILE" else each for each in arguments])


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def keep(path: Path, *leases: Lease) -> None:
    async def create() -> None:
        store = SqliteStore(path)
        await store.list("")
        for lease in leases:
            await store.create(lease_id(lease.pipeline, lease.partition), encode_lease(lease))
        await store.close()

    asyncio.run(create())


@pytest.mark.parametrize("arguments", LOOKS)
@pytest.mark.parametrize("is_empty_file", [False, True])
def test_a_lease_store_that_is_missing_is_told_and_not_made(
    folder: Path, arguments: Sequence[str], is_empty_file: bool
) -> None:
    if is_empty_file:
        (folder / "state").mkdir()
        (folder / "state/leases.db").touch()
    before = files(folder)
    look = leasehold(folder, *arguments)
    assert look.exit_code == 1
    assert look.stdout == ""
    said = f"leasehold: no leases yet in {folder}/state/leases.db: no host has run this configuration\n"
    assert look.stderr == said
    assert files(folder) == before


@pytest.mark.parametrize("arguments", LOOKS)
def test_a_lease_store_without_these_leases_is_told_as_that(folder: Path, arguments: Sequence[str]) -> None:
    keep(folder / "state/leases.db", Lease(pipeline="somebody-elses", partition="words-1.jsonl"))
    look = leasehold(folder, *arguments)
    assert look.exit_code == 1
    assert look.stdout == ""
    of = " of pipeline 'copy'" if "copy" in arguments else ""
    assert look.stderr.startswith(f"leasehold: no leases{of} yet in {folder}/state/leases.db: no host has run ")
    assert look.stderr.count("\n") == 1
    assert not (folder / "state/copied").exists()


def test_a_pipeline_without_leases_is_told_beside_one_that_has_some(folder: Path) -> None:
    keep(folder / "state/leases.db", Lease(pipeline="copy", partition="words-1.jsonl"))
    assert json.loads(leasehold(folder, "lag", "FILE", "--json").stdout)["events"] == 2
    assert leasehold(folder, "leases", "list", "FILE", "--pipeline", "copy").exit_code == 0
    look = leasehold(folder, "lag", "FILE", "--pipeline", "more")
    assert look.exit_code == 1
    assert look.stderr.startswith("leasehold: no leases of pipeline 'more' yet in ")


def test_leases_that_cannot_be_read_are_not_told_as_none(folder: Path) -> None:
    async def damage() -> None:
        store = SqliteStore(folder / "state/leases.db")
        await store.create(lease_id("copy", "words-1.jsonl"), "no lease")
        await store.close()

    asyncio.run(damage())
    look = leasehold(folder, "leases", "list", "FILE")
    assert look.exit_code == 0
    assert "words-1.jsonl" in look.stdout
    assert "no leases" not in look.output


def test_a_store_in_memory_holds_nothing_for_others(folder: Path) -> None:
    file = folder / "copy.yaml"
    file.write_text(file.read_text().replace("path: state/leases.db", "type: memory"))
    look = leasehold(folder, "lag", "FILE")
    assert look.exit_code == 1
    assert look.stderr.startswith("leasehold: no leases yet in the lease store 'memory': ")


def bell_in(folder: Path) -> object:
    async def read() -> object:
        store = SqliteStore(folder / "state/leases.db")
        found = await store.list(BELL_ID)
        await store.close()
        return [json.loads(each.body)["ring"] for each in found]

    return asyncio.run(read())


RELEASE = ("leases", "release", "FILE", "copy", "words-1.jsonl")


def test_a_command_rings_for_what_it_has_changed(folder: Path) -> None:
    owned = Lease(pipeline="copy", partition="words-1.jsonl", owner="a", incarnation="1")
    keep(folder / "state/leases.db", owned)
    leasehold(folder, "leases", "list", "FILE")
    assert bell_in(folder) == []
    assert leasehold(folder, *RELEASE).exit_code == 0
    assert bell_in(folder) == [1]
    assert leasehold(folder, *RELEASE).exit_code == 0  # there is nothing left to release
    assert bell_in(folder) == [1]
    assert leasehold(folder, "leases", "reset", "FILE", "copy", "--all", "--to", "earliest", "--yes").exit_code == 0
    assert bell_in(folder) == [2]


def test_a_change_counts_although_the_bell_could_not_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(bell: Bell) -> None:
        raise StoreUnavailable("too many requests")

    keep(folder / "state/leases.db", Lease(pipeline="copy", partition="words-1.jsonl", owner="a", incarnation="1"))
    monkeypatch.setattr(Bell, "write", refuse)
    done = leasehold(folder, *RELEASE)
    assert done.exit_code == 0
    assert "released by 'a'" in done.stdout
    assert done.stderr.count("\n") == 1
    assert "a minute later than usual" in done.stderr
    assert "too many requests" in done.stderr
