"""What the sink relies on in deltalake: which commits it refuses, which it lets pass, and what the log keeps.

The tests of this module are about the library. A version of it that behaves otherwise fails here first.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_log import LOG, read_log
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from leasehold.pipeline.connectors.files.delta import Table, location_of
from leasehold.pipeline.connectors.files.delta.protocol import TAKEN
from leasehold.pipeline.connectors.files.delta.table import _OWN, FOLLOWED_MAX, Added, Conflicted, MergeRefused
from leasehold.pipeline.connectors.files.sink.storage import FilesUnavailable, FilesUncertain
from leasehold.pipeline.errors import OutputRefused, SinkRejected

ONE = pa.schema([("a", pa.int64())])


def made(path: Path, properties: Mapping[str, str] | None = None) -> Table:
    DeltaTable.create(str(path), Schema.from_arrow(ONE), configuration=dict(properties or {}))
    return opened(path)


def opened(path: Path, **options: Any) -> Table:
    table = Table(location_of(path), **options)
    table.refresh()
    return table


def file_with(path: Path, *values: int) -> Added:
    name = f"part-{values[0]}-{len(list(path.iterdir()))}.parquet"
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), path / name)
    return Added(name=name, bytes=(path / name).stat().st_size, stats=f'{{"numRecords": {len(values)}}}')


def values_in(path: Path) -> list[int]:
    return sorted(row["a"] for row in read_log(path).rows())


@pytest.mark.parametrize("number", [4, 5, 6], ids=["lower", "equal", "higher"])
def test_a_commit_conflicts_with_another_of_the_same_lease_whatever_their_numbers(tmp_path: Path, number: int) -> None:
    ours, theirs = made(tmp_path), opened(tmp_path)
    theirs.commit([], {"lease": 5})
    with pytest.raises(Conflicted):
        ours.commit([file_with(tmp_path, 1)], {"lease": number})
    ours.refresh()
    assert (ours.number_of("lease"), values_in(tmp_path)) == (5, [])


def test_a_commit_that_saw_the_other_is_taken_so_numbers_have_to_be_compared_before(tmp_path: Path) -> None:
    table = made(tmp_path)
    for _ in range(2):
        table.commit([file_with(tmp_path, 1)], {"lease": 5})
        table.refresh()
    assert values_in(tmp_path) == [1, 1]


def test_a_table_that_was_not_read_again_conflicts_with_its_own_last_commit(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.commit([file_with(tmp_path, 1)], {"lease": 1})
    with pytest.raises(Conflicted):
        table.commit([file_with(tmp_path, 2)], {"lease": 2})
    assert values_in(tmp_path) == [1]


def test_numbers_are_followed_as_deltalake_would_find_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """deltalake is asked once for each application, except after many entries or a missing one."""
    asked: list[str] = []
    find = DeltaTable.transaction_version

    def find_and_count(table: DeltaTable, app_id: str) -> int | None:
        asked.append(app_id)
        return find(table, app_id)

    tables = [made(tmp_path), opened(tmp_path)]
    monkeypatch.setattr(DeltaTable, "transaction_version", find_and_count)
    random = Random(7)
    expected: dict[str, int] = {}
    for step in range(60):
        table = random.choice(tables)
        table.refresh()
        assert {each: table.number_of(each) for each in "abc"} == {each: expected.get(each) for each in "abc"}
        expected |= dict.fromkeys(random.sample("abc", random.randint(0, 2)), step)
        table.commit([], {app_id: expected[app_id] for app_id in expected if expected[app_id] == step})
    assert sorted(asked) == [*"aabbcc"]
    for number in range(FOLLOWED_MAX + 1):
        tables[0].refresh()
        tables[0].commit([], {"b": 100 + number})
    tables[1].refresh()
    assert tables[1].number_of("b") == 100 + FOLLOWED_MAX
    assert asked[6:] == ["b"]


def test_several_leases_and_files_are_one_commit_which_conflicts_for_each_of_them(tmp_path: Path) -> None:
    ours, theirs = made(tmp_path), opened(tmp_path)
    ours.commit([file_with(tmp_path, 1), file_with(tmp_path, 2)], {"one": 1, "two": 7})
    state = read_log(tmp_path)
    assert (state.version, state.txns, values_in(tmp_path)) == (1, {"one": 1, "two": 7}, [1, 2])
    with pytest.raises(Conflicted):
        theirs.commit([], {"three": 1, "two": 8})


def test_nothing_is_rebased_by_the_library_so_each_attempt_asks_for_a_permit(tmp_path: Path) -> None:
    ours, theirs = made(tmp_path), opened(tmp_path)
    theirs.commit([], {"another": 1})
    with pytest.raises(Conflicted):
        ours.commit([file_with(tmp_path, 1)], {"lease": 1})
    ours.refresh()
    ours.commit([file_with(tmp_path, 1)], {"lease": 1})
    assert values_in(tmp_path) == [1]


def test_the_library_itself_would_rebase_an_append_over_another_lease_s(tmp_path: Path) -> None:
    """By default, and rightly: two appends do not conflict. It still refuses one of the same application."""
    made(tmp_path)
    ours, again, theirs = (DeltaTable(str(tmp_path)) for _ in range(3))
    rows = pa.table({"a": pa.array([1], pa.int64())})

    def append(table: DeltaTable, app_id: str) -> None:
        properties = CommitProperties(app_transactions=[Transaction(app_id, 1)])
        write_deltalake(table, rows, mode="append", commit_properties=properties)

    append(theirs, "another")
    append(ours, "lease")
    with pytest.raises(Exception, match="Concurrent transaction"):
        append(again, "lease")
    assert values_in(tmp_path) == [1, 1]


@pytest.mark.parametrize("change", ["columns", "properties"])
def test_a_change_of_the_table_s_metadata_conflicts(tmp_path: Path, change: str) -> None:
    ours, theirs = made(tmp_path), opened(tmp_path)
    if change == "columns":
        theirs.add_columns([pa.field("b", pa.string())])
    else:
        DeltaTable(str(tmp_path)).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(Conflicted):
        ours.commit([file_with(tmp_path, 1)], {"lease": 1})


def test_a_compaction_meanwhile_is_no_conflict_of_leases(tmp_path: Path) -> None:
    table = made(tmp_path)
    for value in (1, 2, 3):
        table.commit([file_with(tmp_path, value)], {"lease": value})
        table.refresh()
    other = opened(tmp_path)
    assert other.compact()["numFilesRemoved"] == 3
    with pytest.raises(Conflicted):
        table.commit([file_with(tmp_path, 4)], {"lease": 4})
    table.refresh()
    table.commit([file_with(tmp_path, 4)], {"lease": 4})
    assert (values_in(tmp_path), read_log(tmp_path).txns) == ([1, 2, 3, 4], {"lease": 4})


def test_numbers_survive_checkpoints_and_the_log_s_clean_up_and_a_writer_older_than_those_is_refused(
    tmp_path: Path,
) -> None:
    table = made(tmp_path, {"delta.checkpointInterval": "10", "delta.logRetentionDuration": "interval 0 seconds"})
    zombie = opened(tmp_path)
    table.commit([], {"idle": 7})
    for number in range(1, 25):
        table.refresh()
        table.commit([file_with(tmp_path, number)], {"lease": number})
    assert not (tmp_path / LOG / f"{1:020d}.json").exists()
    assert read_log(tmp_path).txns == {"idle": 7, "lease": 24}
    assert opened(tmp_path).number_of("idle") == 7
    with pytest.raises((Conflicted, FilesUncertain)):
        zombie.commit([file_with(tmp_path, 99)], {"idle": 8})
    assert (opened(tmp_path).number_of("idle"), values_in(tmp_path)) == (7, list(range(1, 25)))


def test_a_merge_conflicts_with_a_claim_of_its_lease_and_with_rows_that_it_has_not_seen(tmp_path: Path) -> None:
    table = made(tmp_path)
    rows = pa.table({"a": pa.array([1, 2], pa.int64())})
    table.merge(rows, ["a"], {"lease": 1})
    stale, other = opened(tmp_path), opened(tmp_path)
    other.commit([], {"lease": 2})
    with pytest.raises(Conflicted):
        stale.merge(rows, ["a"], {"lease": 2})
    stale.refresh()
    other.refresh()
    other.commit([file_with(tmp_path, 3)], {"another": 1})
    with pytest.raises(Conflicted):
        stale.merge(pa.table({"a": pa.array([3], pa.int64())}), ["a"], {"lease": 3})
    assert values_in(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ({"a": [1, 1]}, OutputRefused),
        ({"a": ["no number"]}, OutputRefused),
        ({"other": [2]}, SinkRejected),
    ],
    ids=["a key twice", "another type", "no key"],
)
def test_what_a_merge_refuses_for_ever_is_told_from_what_another_try_may_do(
    tmp_path: Path, rows: Mapping[str, Any], kind: type[SinkRejected]
) -> None:
    table = made(tmp_path)
    table.merge(pa.table({"a": [1]}), ["a"], {"lease": 1})
    table.refresh()
    with pytest.raises(MergeRefused, match=rf"{tmp_path} refuses to merge the output") as refused:
        table.merge(pa.table(rows), ["a"], {"lease": 2})
    assert refused.value.kind is kind
    table.refresh()
    assert (table.number_of("lease"), values_in(tmp_path)) == (1, [1])


@pytest.mark.parametrize(
    "message",
    [
        "Generic MicrosoftAzure error: Error performing PUT: Schema error",
        "Object at location part-1.parquet not found: Invalid data found",
        "Kernel error: an error of a kind that no one has seen",
    ],
)
def test_an_error_of_the_store_or_of_an_unknown_kind_leaves_a_merge_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    def fail(table: DeltaTable, *arguments: Any, **options: Any) -> None:
        raise DeltaError(message)

    table = made(tmp_path)
    monkeypatch.setattr(DeltaTable, "merge", fail)
    with pytest.raises(FilesUncertain, match="it may or may not have been done") as error:
        table.merge(pa.table({"a": [1]}), ["a"], {"lease": 1})
    assert not isinstance(error.value, MergeRefused)


def test_a_merge_has_years_beyond_9999_in_the_log_as_deltalake_itself_cannot_read_them(tmp_path: Path) -> None:
    """So the sink refuses them. If this fails, it need not any more."""
    days = pa.schema([("k", pa.int64()), ("day", pa.date32())])
    DeltaTable.create(str(tmp_path), Schema.from_arrow(days))
    day = pa.array([2_932_897], pa.int32()).cast(pa.date32())
    opened(tmp_path).merge(pa.table({"k": [1], "day": day}), ["k"], {"lease": 1})
    with pytest.raises(ValueError, match="10000-01-01"):
        DeltaTable(str(tmp_path)).to_pyarrow_table()


def test_of_two_hosts_that_create_a_table_one_does(tmp_path: Path) -> None:
    ours, theirs = Table(location_of(tmp_path)), Table(location_of(tmp_path))
    ours.create(ONE)
    theirs.create(pa.schema([("b", pa.string())]))
    assert opened(tmp_path).columns.names == ["a"]


def test_a_damaged_table_is_unavailable(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / LOG / f"{0:020d}.json").write_text("{half")
    with pytest.raises(FilesUnavailable, match="cannot be reached"):
        opened(tmp_path)


def test_a_damaged_log_is_named_without_the_library_s_stack(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / LOG / f"{1:020d}.json").write_text("{not json\n")
    with pytest.raises(FilesUnavailable, match="Json error") as unavailable:
        opened(tmp_path)
    assert "0: " not in str(unavailable.value)


def with_protocol(path: Path, reader: int, writer: int, *features: str) -> None:
    """The table's next entry asks for these. From reader version 3 on, all features are asked of readers too."""
    named = {"writerFeatures": features, **({"readerFeatures": features} if reader > 2 else {})} if features else {}
    action = {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer, **named}}
    (path / LOG / f"{1:020d}.json").write_text(json.dumps(action) + "\n")


OF_READERS = {"timestampNtz", "deletionVectors", "v2Checkpoint", "columnMapping"}


@pytest.mark.parametrize("feature", sorted(TAKEN))
def test_a_table_gets_a_commit_with_each_feature_that_the_sink_takes(tmp_path: Path, feature: str) -> None:
    made(tmp_path)
    with_protocol(tmp_path, 3 if feature in OF_READERS else 1, 7, feature)
    opened(tmp_path).commit([file_with(tmp_path, 1)], {"lease": 1})
    assert values_in(tmp_path) == [1]


@pytest.mark.parametrize(
    ("reader", "writer", "features", "why"),
    [
        (4, 8, (), "reader version 4"),
        (3, 7, ("newer",), "'newer' is not supported"),
        (3, 7, ("catalogManaged",), "catalog"),
        (3, 7, ("vacuumProtocolCheck",), "the table feature `vacuumProtocolCheck`"),
        (1, 7, ("domainMetadata",), "the table feature `domainMetadata`"),
        (1, 8, (), "writer version 8"),
    ],
)
@pytest.mark.parametrize("is_opened_before", [True, False])
def test_a_table_of_a_newer_protocol_is_refused_for_ever(
    tmp_path: Path, reader: int, writer: int, features: Sequence[str], why: str, is_opened_before: bool
) -> None:
    before = made(tmp_path)
    table = before if is_opened_before else Table(location_of(tmp_path))
    with_protocol(tmp_path, reader, writer, *features)
    with pytest.raises(SinkRejected, match=rf"the Delta table .*{why}.*: .*(newer version|another table)"):
        table.refresh()


def test_a_table_that_asks_for_more_than_an_append_is_refused(tmp_path: Path) -> None:
    made(tmp_path)
    DeltaTable(str(tmp_path)).alter.add_constraint({"positive": "a > 0"})
    with pytest.raises(SinkRejected, match="the constraint `positive`"):
        opened(tmp_path)


def aged(path: Path, age_s: float = 9 * 86_400) -> Path:
    """By default older than any retention."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        pq.write_table(pa.table({"a": pa.array([7], pa.int64())}), path)
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def test_a_vacuum_deletes_files_of_failed_attempts_and_nothing_of_others(tmp_path: Path) -> None:
    """deltalake's full vacuum deletes whatever the log does not name, in all folders below."""
    lake = tmp_path / "lake"
    table, below = made(lake), made(lake / "below")
    for each, path in ((table, lake), (below, lake / "below")):
        each.commit([file_with(path, 1)], {"lease": 1})
        each.refresh()
    [named] = (lake / "below").glob("*.parquet")
    unique = uuid.uuid4()
    others = [
        aged(named),
        aged(lake / "below" / f"part-{unique.hex}.zstd.parquet"),
        aged(lake / "other" / "rows.parquet"),
        aged(lake / "rows.parquet"),
        aged(lake / "part-0.parquet"),
        aged(lake / "notes.txt"),
        aged(next(lake.glob("part-1-*.parquet"))),
    ]
    failed = [
        aged(lake / f"part-{unique.hex}.zstd.parquet"),
        aged(lake / f"part-{unique.hex[::-1]}.none.parquet"),
        aged(lake / f"part-00000-{unique}-c000.snappy.parquet"),
    ]
    fresh = lake / f"part-{uuid.uuid4().hex}.zstd.parquet"
    fresh.write_bytes(b"")
    assert sorted(table.vacuum(retention_hours=None, dry_run=True)) == sorted(each.name for each in failed)
    assert all(each.exists() for each in failed)
    assert sorted(table.vacuum(retention_hours=None, dry_run=False)) == sorted(each.name for each in failed)
    assert [each for each in failed if each.exists()] == []
    assert [each for each in (*others, fresh) if not each.exists()] == []
    assert (values_in(lake), values_in(lake / "below")) == ([1], [1])


@pytest.mark.parametrize("retention", ["interval 0 seconds", "interval 1 minutes", "interval 23 hours"])
def test_a_vacuum_keeps_what_may_be_committed_yet_however_short_the_tables_retention_is(
    tmp_path: Path, retention: str
) -> None:
    table = made(tmp_path, {"delta.deletedFileRetentionDuration": retention})
    path = aged(tmp_path / f"part-{uuid.uuid4().hex}.zstd.parquet", 23.5 * 3_600)
    under_way = Added(name=path.name, bytes=path.stat().st_size, stats='{"numRecords": 1}')
    failed = aged(tmp_path / f"part-{uuid.uuid4().hex}.zstd.parquet", 24.5 * 3_600)
    assert table.vacuum(retention_hours=None, dry_run=True) == [failed.name]
    assert table.vacuum(retention_hours=None, dry_run=False) == [failed.name]
    table.commit([under_way], {"lease": 1})
    assert values_in(tmp_path) == [7]


def test_a_longer_retention_of_the_table_holds_for_files_of_failed_attempts_too(tmp_path: Path) -> None:
    table = made(tmp_path, {"delta.deletedFileRetentionDuration": "interval 20 days"})
    failed = aged(tmp_path / f"part-{uuid.uuid4().hex}.zstd.parquet")
    assert table.vacuum(retention_hours=None, dry_run=False) == []
    aged(failed, 21 * 86_400)
    assert table.vacuum(retention_hours=None, dry_run=False) == [failed.name]


def test_a_vacuum_deletes_what_a_compaction_has_replaced(tmp_path: Path) -> None:
    table = made(tmp_path, {"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    for value in (1, 2, 3):
        table.commit([file_with(tmp_path, value)], {"lease": value})
        table.refresh()
    replaced = sorted(each.name for each in tmp_path.glob("*.parquet"))
    table.compact()
    table.refresh()
    written = {each.name for each in tmp_path.glob("*.parquet")} - set(replaced)
    assert sorted(table.vacuum(retention_hours=None, dry_run=True)) == replaced
    assert sorted(table.vacuum(retention_hours=None, dry_run=False)) == replaced
    assert {each.name for each in tmp_path.glob("*.parquet")} == written
    assert values_in(tmp_path) == [1, 2, 3]


def test_files_that_deltalake_writes_are_known_by_their_names(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.merge(pa.table({"a": pa.array([1], pa.int64())}), ["a"], {"lease": 1})
    table.refresh()
    write_deltalake(str(tmp_path), pa.table({"a": pa.array([2], pa.int64())}), mode="append")
    table.refresh()
    table.compact()
    names = [each.name for each in tmp_path.glob("*.parquet")]
    assert len(names) == 3
    assert [name for name in names if not _OWN.fullmatch(name)] == []
