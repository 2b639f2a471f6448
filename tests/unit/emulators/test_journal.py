"""A journal gives back what was committed, in order, and nothing else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from leasehold_emulators import journal as module
from leasehold_emulators.journal import Journal, Row, Unusable


def rows(path: Path) -> list[Row]:
    journal = Journal(path)
    found = list(journal.replay())
    journal.close()
    return found


def test_committed_rows_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new" / "a.db")
    journal.add("x", "first", {"n": 1}, b"\0body")
    journal.add("y", "second", {})
    journal.close()
    assert rows(tmp_path / "new" / "a.db") == [Row("x", "first", {"n": 1}, b"\0body"), Row("y", "second", {}, b"")]


def test_without_a_path_nothing_is_kept() -> None:
    journal = Journal()
    journal.add("x", "first", {})
    journal.commit()
    assert not journal.is_kept
    assert list(journal.replay()) == []


def test_what_is_replayed_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    journal = Journal(path)
    journal.add("x", "first", {})
    journal.commit()
    for row in journal.replay():
        journal.add(*row[:3])
    journal.add("x", "later", {})
    journal.close()
    assert [row.kind for row in rows(path)] == ["first", "later"]


def test_rows_of_an_owner_are_forgotten_as_far_as_wanted(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    journal = Journal(path)
    for until in (10, 20, 30):
        journal.add("x", "events", {"until": until}, until=until)
    journal.add("y", "events", {"until": 10}, until=10)
    journal.forget("x", "events", 20)
    journal.put("x", "state", {"n": 1})
    journal.put("x", "state", {"n": 2})
    journal.close()
    assert [(row.owner, *row.fields.values()) for row in rows(path)] == [("x", 30), ("y", 10), ("x", 2)]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    first = Journal(tmp_path / "a.db")
    with pytest.raises(Unusable, match=r"a\.db is in use: stop the other emulator"):
        Journal(tmp_path / "a.db")
    first.close()


def test_a_file_of_another_release_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as other:
        other.execute("PRAGMA user_version = 7")
    with pytest.raises(Unusable, match="format 7"):
        Journal(tmp_path / "a.db")


def test_what_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("no database, " * 100)
    with pytest.raises(Unusable, match="not a database"):
        Journal(tmp_path / "a.db")


def test_a_write_that_fails_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(Exception):
        pass

    def end(reason: str) -> None:
        raise Ended(reason)

    monkeypatch.setattr(module, "end", end)
    journal = Journal(tmp_path / "a.db")
    assert journal._database is not None
    journal._database.execute("PRAGMA max_page_count = 4")
    with pytest.raises(Ended, match=r"cannot write to .*a\.db: database or disk is full"):
        journal.add("x", "events", {}, bytes(100_000))
    journal._database.close()
