# ruff: noqa: ASYNC240 -- what is waited for (files, threads, processes) has no event; a test's own files block nobody
import asyncio
import json
import os
import resource
import signal
import sqlite3
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event

import pytest
from patience import CHANCE_S, PATIENCE_S, until_async

from leasehold.common.clock import BootClock
from leasehold.leases.document import decode_lease, encode_lease, lease_id
from leasehold.leases.errors import InvalidDocument, StoreAmbiguous, StoreConflict, StoreMissing, StoreUnavailable
from leasehold.leases.host_record import HostRecord
from leasehold.leases.lease import Lease
from leasehold.leases.session import Session
from leasehold.leases.store import TimedStore
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.leases.timing import derived_timing

COUNTER = "pipeline/leases/0"
COUNT = """
import asyncio, json, sys
from leasehold.leases.errors import StoreConflict
from leasehold.leases.stores.sqlite import SqliteStore

async def main(path, times):
    store = SqliteStore(path)
    while times:
        stored = await store.read("pipeline/leases/0")
        try:
            await store.replace(stored.id, json.dumps(json.loads(stored.body) + 1), stored.etag)
            times -= 1
        except StoreConflict:
            pass
    await store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, busy_timeout_s=0.2)
    yield store
    await store.close()


@contextmanager
def written_by_another(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program in the middle of a write, until the end of the block."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_S)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


async def counting(path: Path, times: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", COUNT, str(path), str(times))


async def test_two_processes_lose_no_update(store: SqliteStore, path: Path) -> None:
    await store.create(COUNTER, "0")
    counters = [await counting(path, 50) for _ in range(2)]
    assert [await counter.wait() for counter in counters] == [0, 0]
    assert (await store.read(COUNTER)).body == "100"


async def test_a_process_that_is_killed_leaves_the_container_whole(store: SqliteStore, path: Path) -> None:
    await store.create(COUNTER, "0")
    counter = await counting(path, 1_000_000)

    async def has_counted() -> bool:
        return bool(json.loads((await store.read(COUNTER)).body) >= 20)

    await until_async(has_counted)
    counter.kill()
    assert await counter.wait() == -signal.SIGKILL
    stored = await store.read(COUNTER)
    etag = await store.replace(COUNTER, "-1", stored.etag)
    assert [(stored.body, stored.etag) for stored in await store.list("")] == [("-1", etag)]


async def test_many_may_open_a_new_file_at_once(path: Path) -> None:
    stores = [SqliteStore(path) for _ in range(8)]
    await asyncio.gather(*(store.create(f"hosts/{n}", "{}") for n, store in enumerate(stores)))
    assert len(await stores[0].list("hosts/")) == len(stores)
    await asyncio.gather(*(store.close() for store in stores))


async def test_opening_waits_for_another_who_opens_the_file_first(path: Path) -> None:
    """In a file without write-ahead log, SQLite refuses the switch at once instead of waiting."""
    store = SqliteStore(path, busy_timeout_s=PATIENCE_S)
    with written_by_another(path) as other:
        other.execute("CREATE TABLE other (x)")
        created = asyncio.create_task(store.create(COUNTER, "{}"))
        await asyncio.wait([created], timeout=CHANCE_S)
        assert not created.done()
        other.execute("COMMIT")
    await created
    await store.close()


async def test_commits_survive_a_power_loss(store: SqliteStore) -> None:
    pragmas = await store._run(
        "",
        lambda connection: [
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
        ],
    )
    assert pragmas == ["wal", 2]


async def test_the_parent_directory_is_created(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a" / "b" / "leases.db")
    await store.create(COUNTER, "{}")
    await store.close()
    assert (tmp_path / "a" / "b" / "leases.db").is_file()


async def test_a_lock_held_by_another_is_unavailable_and_reads_go_on(store: SqliteStore, path: Path) -> None:
    etag = await store.create(COUNTER, "0")
    with written_by_another(path):
        for write in (
            store.replace(COUNTER, "1", etag),
            store.delete(COUNTER, etag),
            store.create("hosts/a", "{}"),
        ):
            with pytest.raises(StoreUnavailable, match=r"leases\.db' was locked for more than 0\.2 s"):
                await write
        assert (await store.read(COUNTER)).body == "0"
        late = SqliteStore(path)
        assert len(await late.list("")) == 1
        await late.close()
    await store.replace(COUNTER, "1", etag)


async def test_a_lock_held_by_another_never_stops_the_event_loop(path: Path) -> None:
    store = SqliteStore(path, busy_timeout_s=PATIENCE_S)
    etag = await store.create(COUNTER, "0")
    with written_by_another(path):
        with pytest.raises(StoreAmbiguous):
            await TimedStore(store, timeout_s=0.05).replace(COUNTER, "1", etag)
        with pytest.raises(StoreUnavailable):
            await TimedStore(store, timeout_s=0.05).read(COUNTER)  # behind the write, which is waiting still
    assert (await store.read(COUNTER)).body == "1"  # it went on
    await store.close()


async def test_a_beat_that_waits_longer_than_its_call_counts_from_its_start_once_it_is_carried_out(path: Path) -> None:
    store, clock = SqliteStore(path, busy_timeout_s=PATIENCE_S), BootClock()
    session = Session(store, HostRecord(name="a", incarnation="1"), clock=clock, timing=derived_timing(1.0))
    await session.open()
    before = session.beat_age_s + 0.0
    with written_by_another(path):
        began = clock.monotonic()
        with pytest.raises(StoreAmbiguous):
            await session.beat()
        assert session.beat_age_s > before, "nothing is known to have arrived"
        released = clock.monotonic()
    await until_async(lambda: clock.monotonic() - session.beat_age_s >= began - 0.001)
    assert clock.monotonic() - session.beat_age_s < released, "and not from its answer"
    await store.close()


async def test_a_beat_waits_for_few_writes_of_leases_that_are_synced_slowly(path: Path) -> None:
    """Each write of a lease keeps the file locked for a while, one after another, without an end."""
    store = SqliteStore(path, busy_timeout_s=PATIENCE_S)
    etag, written = await store.create("_hosts/a", "{}"), 0

    def write_slowly(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO lease_documents (id, body) VALUES ('p/leases/' || hex(randomblob(8)), '{}')")
        Event().wait(CHANCE_S)
        connection.execute("COMMIT")

    async def write_on() -> None:
        nonlocal written
        while True:
            await store._run("p/", write_slowly, is_write=True)
            written += 1

    writers = [asyncio.create_task(write_on()) for _ in range(8)]
    waited = []
    for _ in range(7):
        before = written
        etag = await store.replace("_hosts/a", "{}", etag)
        waited.append(written - before)
        await until_async(lambda before=written: written > before)
    for writer in writers:
        writer.cancel()
    await asyncio.gather(*writers, return_exceptions=True)
    await store.close()
    assert sorted(waited)[3] <= 2, waited


async def test_a_write_cancelled_before_its_turn_never_happens(path: Path) -> None:
    store = SqliteStore(path, busy_timeout_s=PATIENCE_S)
    etag = await store.create(COUNTER, "0")
    with written_by_another(path):
        first = asyncio.create_task(store.create("hosts/a", "{}"))
        second = asyncio.create_task(store.replace(COUNTER, "1", etag))
        await asyncio.wait([first, second], timeout=CHANCE_S)
        second.cancel()
        with suppress(asyncio.CancelledError):
            await second
    await first
    assert (await store.read(COUNTER)).etag == etag
    await store.close()


async def test_closing_after_a_cancelled_call_ends_the_thread_and_leaves_one_file(path: Path) -> None:
    store = SqliteStore(path, busy_timeout_s=PATIENCE_S)
    etag = await store.create(COUNTER, "0")
    with written_by_another(path), pytest.raises(StoreAmbiguous):
        await TimedStore(store, timeout_s=0.01).replace(COUNTER, "1", etag)
    async with asyncio.timeout(PATIENCE_S):
        await store.close()
    await until_async(lambda: not any(thread.name.startswith("lease-store") for thread in threading.enumerate()))
    assert os.listdir(path.parent) == ["leases.db"]


async def test_closing_a_store_that_was_never_used_creates_nothing(path: Path) -> None:
    await SqliteStore(path).close()
    assert not path.exists()


async def test_a_store_that_only_looks_makes_no_file_and_uses_one_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "leases.db"
    looking, making = SqliteStore(path, creates=False), SqliteStore(path)
    for call in (looking.list(""), looking.read(COUNTER), looking.create(COUNTER, "0")):
        with pytest.raises(StoreMissing, match=r"no leases yet in .*\.db: no host has run"):
            await call
    assert not path.parent.exists()
    etag = await making.create(COUNTER, "0")
    await looking.replace(COUNTER, "1", etag)
    assert (await making.read(COUNTER)).body == "1"
    await looking.close()
    await making.close()


async def test_a_file_that_is_no_lease_file_is_refused_and_left_alone(store: SqliteStore, path: Path) -> None:
    path.write_bytes(b"account,amount\n" * 1000)
    for call in (store.list(""), store.create(COUNTER, "{}")):
        with pytest.raises(StoreUnavailable, match=r"leases\.db' cannot be used .*it is not a lease file"):
            await call
    assert path.read_bytes() == b"account,amount\n" * 1000


async def test_a_damaged_file_is_refused_by_name_and_used_again_once_restored(path: Path) -> None:
    store = SqliteStore(path)
    for n in range(50):
        await store.create(f"pipeline/leases/{n}", json.dumps("x" * 1000))
    await store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    store = SqliteStore(path)
    with pytest.raises(StoreUnavailable, match=r"leases\.db' cannot be used .*it is damaged; restore it"):
        await store.list("")
    path.write_bytes(whole)
    assert len(await store.list("")) == 50
    await store.close()


async def test_a_table_of_another_make_is_refused_by_name(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE lease_documents (something)")
    with pytest.raises(StoreUnavailable, match=r"leases\.db' cannot be used .*no other program uses this file"):
        await store.list("")


@pytest.mark.parametrize("name", [".", "file/leases.db"])
async def test_a_path_that_cannot_be_a_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    store = SqliteStore(tmp_path / name)
    with pytest.raises(StoreUnavailable, match=r"lease file '.*' cannot be used"):
        await store.list("")
    await store.close()


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A directory that this process may read but not write, with a lease file in it."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        asyncio.run(_created(directory / "leases.db"))
        os.chmod(directory / "leases.db", 0o444)
        os.chmod(directory, 0o555)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        yield directory
        if is_root:
            os.seteuid(0)
        os.chmod(directory, 0o755)


async def _created(path: Path) -> None:
    store = SqliteStore(path)
    await store.create(COUNTER, "0")
    await store.close()


@pytest.mark.parametrize("name", ["leases.db", "new.db", "new/leases.db"])
async def test_a_read_only_directory_is_refused_by_name(read_only: Path, name: str) -> None:
    store = SqliteStore(read_only / name)
    for write in (store.create(COUNTER, "{}"), store.replace(COUNTER, "1", "1")):
        with pytest.raises(StoreUnavailable, match=rf"{name}' cannot be used .*directory"):
            await write
    await store.close()


async def test_a_full_disk_changes_nothing_and_space_mends_it(store: SqliteStore) -> None:
    etag = await store.create(COUNTER, "0")
    await store._run("", lambda connection: connection.execute("PRAGMA max_page_count = 1"))
    large = json.dumps("x" * 20_000)
    with pytest.raises(StoreUnavailable, match=r"leases\.db' cannot be used .*full.*free some space"):
        await store.replace(COUNTER, large, etag)
    assert (await store.read(COUNTER)).etag == etag
    await store.replace(COUNTER, large, etag)


async def test_a_write_whose_commit_failed_is_ambiguous(store: SqliteStore, path: Path) -> None:
    etag = await store.create(COUNTER, "0")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = path.with_name("leases.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(StoreAmbiguous, match=r"leases\.db' may or may not have happened \(disk I/O error\)"):
            await store.replace(COUNTER, "1", etag)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    stored = await store.read(COUNTER)
    assert (stored.body == "0") == (stored.etag == etag)
    await store.replace(COUNTER, "2", stored.etag)


async def test_a_file_removed_while_in_use_is_a_new_container_whose_etags_match_no_old_one(
    store: SqliteStore, path: Path
) -> None:
    old = [await store.create(f"pipeline/leases/{n}", "{}") for n in range(20)]
    for file in path.parent.iterdir():
        file.unlink()
    with pytest.raises(StoreMissing):
        await store.replace(COUNTER, "{}", old[0])
    for n in range(20):
        await store.create(f"pipeline/leases/{n}", "{}")
        with pytest.raises(StoreConflict):
            await store.replace(f"pipeline/leases/{n}", "{}", old[n])


@pytest.mark.parametrize("body", [b"\xff{}", b'{"version":\xff}', b'{"owner":"\xff\xfe"}', 7, 1.5], ids=repr)
async def test_a_body_that_is_no_text_hides_no_other_document(store: SqliteStore, path: Path, body: object) -> None:
    lease = Lease(pipeline="pipeline", partition="1")
    await store.create(lease_id("pipeline", "1"), encode_lease(lease))
    with closing(sqlite3.connect(path)) as other, other:
        insert = "INSERT INTO lease_documents (id, body) VALUES (?, ?), ('pipeline/leases/2', CAST(? AS TEXT))"
        other.execute(insert, (COUNTER, body, body))
    bad, good, worse = await store.list("pipeline/leases/")
    assert decode_lease(good.id, good.body) == lease
    for stored in (bad, worse, await store.read(COUNTER)):
        with pytest.raises(InvalidDocument, match=stored.id):
            decode_lease(stored.id, stored.body)


async def test_changes_of_another_file_are_not_mixed_up_with_those_of_this_one(store: SqliteStore, path: Path) -> None:
    await store.create(COUNTER, "{}")
    begun = await store.read_changes("")
    assert begun is not None
    for file in path.parent.iterdir():
        file.unlink()
    await store.create(COUNTER, "{}")
    assert await store.read_changes("", begun.token) is None


async def test_a_file_that_went_back_in_numbers_has_its_caller_list(store: SqliteStore, path: Path) -> None:
    etag = await store.create(COUNTER, "{}")
    await store.replace(COUNTER, '{"tick":1}', etag)
    begun = await store.read_changes("")
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE sqlite_sequence SET seq = ?", (int(etag),))
    assert begun is not None
    assert await store.read_changes("", begun.token) is None


async def test_what_another_process_has_not_committed_is_in_the_next_changes(store: SqliteStore, path: Path) -> None:
    await store.create(COUNTER, "{}")
    begun = await store.read_changes("")
    assert begun is not None
    with written_by_another(path) as other:
        other.execute("INSERT INTO lease_documents (id, body) VALUES ('pipeline/leases/1', '{}')")
        during = await store.read_changes("", begun.token)
        assert during == ([], begun.token)
        other.execute("COMMIT")
    after = await store.read_changes("", begun.token)
    assert after is not None
    assert [stored.id for stored in after.documents] == ["pipeline/leases/1"]


async def test_changes_are_found_by_their_number_and_not_among_all_documents(store: SqliteStore, path: Path) -> None:
    await store.create(COUNTER, "{}")
    queries: list[str] = []
    await store._run("", lambda connection: connection.set_trace_callback(queries.append))
    begun = await store.read_changes("")
    assert begun is not None
    await store.read_changes("pipeline/", begun.token)
    with closing(sqlite3.connect(path)) as other:
        plan = other.execute(f"EXPLAIN QUERY PLAN {queries[-1]}").fetchall()
    assert [row[3] for row in plan] == ["SEARCH lease_documents USING INTEGER PRIMARY KEY (rowid>?)"]
