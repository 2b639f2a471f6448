"""Spark's directories go with their process, and those of a killed process with the next start. Nothing else is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leasehold.pipeline.spark import jvm
from leasehold.pipeline.spark.jvm import Scratch, make_scratch


def kill(scratch: Scratch) -> None:
    """As the end of a process does."""
    os.close(scratch.lock)


def test_it_is_removed_with_all_that_it_holds(tmp_path: Path) -> None:
    scratch = make_scratch(str(tmp_path))
    assert scratch.path.name.startswith(f"leasehold-spark-{os.getpid()}-")
    (scratch.path / "blockmgr").mkdir()
    scratch.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_next_start_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    left = make_scratch(str(tmp_path))
    (left.path / "blockmgr").mkdir()
    kill(left)
    scratch = make_scratch(str(tmp_path))
    assert list(tmp_path.iterdir()) == [scratch.path]
    scratch.remove()


def test_a_directory_in_use_stays_although_its_process_id_is_of_no_process(tmp_path: Path) -> None:
    used = make_scratch(str(tmp_path))
    renamed = used.path.rename(tmp_path / "leasehold-spark-4194305-abcdefgh")
    make_scratch(str(tmp_path)).remove()
    assert list(tmp_path.iterdir()) == [renamed]
    kill(used)


def test_a_directory_stays_while_a_child_that_inherited_the_lock_lives(tmp_path: Path) -> None:
    scratch = make_scratch(str(tmp_path))
    child = os.dup(scratch.lock)
    kill(scratch)
    make_scratch(str(tmp_path)).remove()
    assert scratch.path.exists()
    os.close(child)
    make_scratch(str(tmp_path)).remove()
    assert not scratch.path.exists()


@pytest.mark.parametrize(
    "name", ["leasehold-spark-1", "leasehold-spark-x-abc", "my-leasehold-spark-1-abc", "spark-1-abc"]
)
def test_another_name_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "lock").touch()
    make_scratch(str(tmp_path)).remove()
    assert (tmp_path / name).exists()


def test_links_stay_with_what_they_lead_to(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "lock").touch()
    link = tmp_path / "leasehold-spark-1-abcdefgh"
    link.symlink_to(precious)
    linked_lock = tmp_path / "leasehold-spark-2-abcdefgh"
    linked_lock.mkdir()
    (linked_lock / "lock").symlink_to(precious / "lock")
    make_scratch(str(tmp_path)).remove()
    assert link.is_symlink()
    assert linked_lock.exists()
    assert (precious / "lock").exists()


def test_a_directory_without_a_lock_or_of_another_kind_stays(tmp_path: Path) -> None:
    (tmp_path / "leasehold-spark-1-abcdefgh").mkdir()
    (tmp_path / "leasehold-spark-2-abcdefgh").touch()
    make_scratch(str(tmp_path)).remove()
    assert len(list(tmp_path.iterdir())) == 2


def test_another_user_s_directory_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = make_scratch(str(tmp_path))
    kill(left)
    monkeypatch.setattr(jvm.os, "getuid", lambda: left.path.stat().st_uid + 1)
    make_scratch(str(tmp_path)).remove()
    assert left.path.exists()
