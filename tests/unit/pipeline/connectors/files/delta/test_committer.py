"""A commit whose answer is lost, late or wrong: no data file is deleted that a stored commit may name."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from patience import PATIENCE_S
from unit.pipeline.connectors.files.delta.blob_server import Answer, BlobServer, Request, serving
from unit.pipeline.connectors.files.delta.tables import Permit, claim, numbers_in, output, sink_in

from leasehold.pipeline.connectors.files.delta import committer
from leasehold.pipeline.connectors.files.delta.table import Table
from leasehold.pipeline.connectors.files.sink.storage import FilesUnavailable
from leasehold.pipeline.errors import Ambiguous, Fenced, NotTrusted, SinkRejected, SinkUnavailable

THROTTLED = Answer(503, "ServerBusy")


@pytest.fixture
def server() -> Iterator[BlobServer]:
    with serving() as server:
        yield server


def missing_in(server: BlobServer) -> list[str]:
    """Data files that the log names and that are not there."""
    room = "transactions/_delta_log/"
    entries = [server.blobs[name] for name in sorted(server.blobs) if name.startswith(room) and name.endswith(".json")]
    named = [json.loads(line)["add"]["path"] for entry in entries for line in entry.splitlines() if b'"add"' in line]
    assert named
    return [name for name in named if f"transactions/{name}" not in server.blobs]


async def test_an_owner_whose_stored_commit_was_followed_by_a_claim_is_fenced_and_its_rows_stay(
    server: BlobServer,
) -> None:
    stored, claimed = threading.Event(), threading.Event()

    def lose(request: Request) -> Answer | None:
        if request.version != 2 or stored.is_set():
            return None
        server.blobs[request.name] = request.body
        stored.set()
        assert claimed.wait(PATIENCE_S)
        return Answer(0)

    sink, successor = server.sink(), server.sink()
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Permit())
    server.replace = lose
    late = asyncio.create_task(writer.write(output(3, 6), Permit()))
    assert await asyncio.to_thread(stored.wait, 60)
    after = await successor.open(claim(2))
    assert after.position == "6"
    claimed.set()
    with pytest.raises(Fenced):
        await late
    assert (server.deleted(), missing_in(server)) == ([], [])
    await after.write(output(6, 8), Permit())
    await sink.close()
    await successor.close()


async def test_a_stored_commit_whose_retry_meets_itself_stays_open_while_the_log_cannot_be_read(
    server: BlobServer,
) -> None:
    """The service stores an entry and answers 500, so deltalake tries again and gets a 409 for its own entry."""
    tries = 0

    def store_and_fail(request: Request) -> Answer | None:
        nonlocal tries
        if request.version == 2:
            tries += 1
            server.blobs[request.name] = request.body
            return Answer(500, "OperationTimedOut") if tries == 1 else Answer(409, "BlobAlreadyExists")
        return THROTTLED if tries > 1 and request.is_of_log else None

    sink = server.sink(timeout_s=3)
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Permit())
    server.replace = store_and_fail
    with pytest.raises(Ambiguous, match=r"not taken into the log.*cannot be looked up.*the account is throttled"):
        await writer.write(output(3, 6), Permit())
    server.replace = lambda request: None
    assert tries == 2
    assert (server.deleted(), missing_in(server)) == ([], [])
    assert (await sink.open(claim(2))).position == "6"
    await sink.close()


@pytest.mark.parametrize("is_stored", [True, False])
async def test_the_last_try_is_looked_up_like_the_others(
    server: BlobServer, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    monkeypatch.setattr(committer, "COMMITS_MAX", 1)
    tries = 0

    def store_or_be_late(request: Request) -> Answer | None:
        nonlocal tries
        if request.version != 2:
            return None
        tries += 1
        if is_stored:
            server.blobs[request.name] = request.body
            return Answer(500, "OperationTimedOut") if tries == 1 else None
        server.blobs[request.name] = b'{"commitInfo":{"timestamp":1}}'
        return None

    sink = server.sink(timeout_s=3)
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Permit())
    server.replace = store_or_be_late
    if is_stored:
        await writer.write(output(3, 6), Permit())
    else:
        with pytest.raises(SinkUnavailable, match="keep coming first"):
            await writer.write(output(3, 6), Permit())
    assert missing_in(server) == []
    assert writer.position == ("6" if is_stored else "3")
    await sink.close()


async def test_a_table_that_became_unusable_after_a_conflict_leaves_the_outcome_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_in(tmp_path / "table")
    writer = await sink.open(claim(1))
    await writer.write(output(0, 1), Permit())
    commit, refresh, was_sent = Table.commit, Table.refresh, False

    def come_second(table: Table, *arguments: Any) -> None:
        nonlocal was_sent
        was_sent = True
        commit(table, *arguments)
        commit(table, *arguments)

    def refuse(table: Table) -> None:
        if was_sent:
            raise SinkRejected("the table has a constraint")
        refresh(table)

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", come_second)
        patched.setattr(Table, "refresh", refuse)
        with pytest.raises(Ambiguous, match="the table has a constraint"):
            await writer.write(output(1, 2), Permit())
    assert numbers_in(tmp_path / "table") == [1, 2]
    await sink.close()


async def test_in_a_directory_too_a_stored_commit_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step behind the commit fails, such as a checkpoint, and another host claims before the owner looks."""
    path = tmp_path / "table"
    sink, successor = sink_in(path), sink_in(path)
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Permit())
    commit, loop, is_done = DeltaTable.create_write_transaction, asyncio.get_running_loop(), False

    def fail_behind(table: DeltaTable, *arguments: Any, **options: Any) -> None:
        nonlocal is_done
        commit(table, *arguments, **options)
        if not is_done:
            is_done = True
            asyncio.run_coroutine_threadsafe(successor.open(claim(2)), loop).result(PATIENCE_S)
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", fail_behind)
        with pytest.raises(Fenced):
            await writer.write(output(3, 6), Permit())
    assert numbers_in(path) == [1, 2, 3, 4, 5, 6]
    await sink.close()
    await successor.close()


@pytest.mark.parametrize("is_sent", [True, False])
async def test_data_files_are_deleted_only_if_no_commit_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    path = tmp_path / "table"
    sink = sink_in(path)
    writer = await sink.open(claim(1))
    await writer.write(output(0, 1), Permit())
    trusted = is_sent

    def come_second(table: Table, *arguments: Any) -> None:
        nonlocal trusted
        trusted = False
        other = Table(table._at)
        other.refresh()
        commit(other, [], {"another": 1})
        commit(table, *arguments)

    commit = Table.commit
    names = {each.name for each in path.glob("*.parquet")}
    asked = 0

    def is_trusted() -> bool:
        nonlocal asked
        asked += 1
        return trusted or asked == 1

    with monkeypatch.context() as patched:
        patched.setattr(Table, "commit", come_second)
        with pytest.raises(NotTrusted):
            await writer.write(output(1, 2), Permit(trusted=is_trusted))
    assert len({each.name for each in path.glob("*.parquet")} - names) == (1 if is_sent else 0)
    assert numbers_in(path) == [1]
    await sink.close()


@pytest.mark.parametrize("code", ["ContainerBeingDisabled", "ContainerBeingDeleted"])
async def test_other_answers_with_409_are_no_other_writers(server: BlobServer, code: str) -> None:
    tries = 0

    def refuse(request: Request) -> Answer | None:
        nonlocal tries
        if request.version != 2:
            return None
        tries += 1
        return Answer(409, code)

    sink = server.sink(timeout_s=3)
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Permit())
    server.replace = refuse
    with pytest.raises(Ambiguous, match=r"no other commit came first.*Check that the container is enabled") as error:
        await writer.write(output(3, 6), Permit())
    assert "fewer hosts" not in str(error.value)
    assert tries == 1
    server.replace = lambda request: None
    writer = await sink.open(claim(2))
    await writer.write(output(3, 6), Permit())
    assert missing_in(server) == []
    await sink.close()


async def test_a_column_that_the_storage_refuses_is_not_blamed_on_other_writers(server: BlobServer) -> None:
    sink = server.sink(timeout_s=3)
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Permit())
    server.replace = lambda request: Answer(409, "ContainerBeingDisabled") if request.version == 2 else None
    more = output(3, 6)
    wider = replace(more, table=more.table.append_column("note", pa.array(["new"] * 3)))
    with pytest.raises(SinkUnavailable, match=r"adding the column 'note'.*no other commit came first"):
        await writer.write(wider, Permit())
    assert sum(each.version == 2 for each in server.requests) == 1
    server.replace = lambda request: None
    await writer.write(wider, Permit())
    assert missing_in(server) == []
    await sink.close()


async def test_a_failed_sync_leaves_the_outcome_open_and_names_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leasehold.pipeline.connectors.files.delta import table as module

    path = tmp_path / "table"
    sink = sink_in(path)
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Permit())

    def fail(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(module, "sync_directory", fail)
        with pytest.raises(Ambiguous, match=rf"{path}.*might not survive a loss of power.*Input/output error"):
            await writer.write(output(3, 6), Permit())
        with pytest.raises(SinkUnavailable, match=rf"{path}.*Input/output error"):
            await sink.open(claim(2))
    again = await sink.open(claim(3))
    assert again.position == "6"
    await again.write(output(6, 7), Permit())
    assert numbers_in(path) == list(range(1, 8))
    await sink.close()


def test_an_unreadable_log_before_the_first_attempt_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write() -> None:
        sink = sink_in(tmp_path / "table")
        writer = await sink.open(claim(1))
        await writer.write(output(0, 1), Permit())

        def fail(table: Table) -> None:
            raise FilesUnavailable("the account is throttled")

        before = set((tmp_path / "table").glob("*.parquet"))
        with monkeypatch.context() as patched:
            patched.setattr(Table, "refresh", fail)
            with pytest.raises(SinkUnavailable, match="throttled"):
                await writer.write(output(1, 2), Permit())
        assert set((tmp_path / "table").glob("*.parquet")) == before
        await sink.close()

    asyncio.run(write())


async def test_a_commit_that_is_not_stored_when_its_answer_is_lost_may_still_arrive(server: BlobServer) -> None:
    """Nothing else may be sent until a claim has taken its place in the log."""
    late: list[Request] = []

    def lose(request: Request) -> Answer | None:
        if request.version != 2:
            return None
        late.append(request)
        return Answer(0)

    sink = server.sink(timeout_s=3)
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Permit())
    server.replace = lose
    with pytest.raises(Ambiguous, match="it may or may not have been done"):
        await writer.write(output(3, 6), Permit())
    server.replace = lambda request: None
    assert late[0].name not in server.blobs
    again = await sink.open(claim(2))
    assert again.position == "3"
    assert late[0].name in server.blobs  # by the claim
    await again.write(output(3, 6), Permit())
    assert (server.deleted(), missing_in(server)) == ([], [])
    await sink.close()
