"""Which files a pattern names."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from leasehold.pipeline.connectors.files.feed import FilesChangeFeed
from leasehold.pipeline.connectors.files.feed.feed import Pattern
from leasehold.pipeline.errors import FeedError, FeedUnavailable


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.csv", "a.csv", "a.txt", ".hidden.csv", "x/a.csv", "x/y/a.csv", ".git/a.csv", "z/b.csv", "[1].csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a\n1\n")
    return tmp_path


def names(pattern: str) -> list[str]:
    return list(Pattern.parse(pattern).files())


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.csv", ["[1].csv", "a.csv", "b.csv"]),
        ("[ab].csv", ["a.csv", "b.csv"]),
        ("[[]1].csv", ["[1].csv"]),
        ("a.csv", ["a.csv"]),
        ("x/a.csv", ["a.csv"]),
        ("*/a.csv", ["x/a.csv"]),
        ("x/**", ["a.csv", "y/a.csv"]),
        ("**/a.csv", ["a.csv", "x/a.csv", "x/y/a.csv"]),
        ("**/**/a.*", ["a.csv", "a.txt", "x/a.csv", "x/y/a.csv"]),
        ("x/**/y/*.csv", ["y/a.csv"]),
        (".*.csv", [".hidden.csv"]),
        ("none-*.csv", []),
    ],
)
def test_partitions_are_named_by_their_paths_below_the_fixed_directory(
    tree: Path, pattern: str, expected: list[str]
) -> None:
    assert names(f"{tree}/{pattern}") == expected


def test_a_relative_pattern_starts_at_the_working_directory(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert names("x/*.csv") == ["a.csv"]
    assert FilesChangeFeed("x/*.csv").identity == f"files:csv:{tree}/x/*.csv"


def test_links_to_files_are_followed_and_links_to_directories_only_by_name(tree: Path) -> None:
    (tree / "loop").symlink_to(tree)
    (tree / "c.csv").symlink_to(tree / "x/a.csv")
    assert names(f"{tree}/**/[ac].csv") == ["a.csv", "c.csv", "x/a.csv", "x/y/a.csv"]
    assert names(f"{tree}/loop/a.csv") == ["a.csv"]


def test_what_is_no_regular_file_is_passed_over_with_a_reason(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tree / "fifo.csv")
    (tree / "dangling.csv").symlink_to(tree / "nowhere")
    (tree / "directory.csv").mkdir()
    with caplog.at_level(logging.WARNING):
        assert names(f"{tree}/*.csv") == ["[1].csv", "a.csv", "b.csv"]
    assert [record.getMessage().split("'")[1] for record in caplog.records] == [
        f"{tree}/dangling.csv",
        f"{tree}/fifo.csv",
    ]


def test_a_directory_that_does_not_exist_is_unavailable(tree: Path) -> None:
    with pytest.raises(FeedUnavailable, match=r"nowhere' cannot be listed \(No such file or directory\): create it"):
        names(f"{tree}/nowhere/*.csv")


@pytest.mark.parametrize("pattern", ["*.csv", "*/x.csv", "**/x.csv"])
def test_a_directory_that_may_not_be_listed_is_unavailable_rather_than_empty(tree: Path, pattern: str) -> None:
    (tree / "x").chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        for parent in (tree, *tree.parents[:3]):
            parent.chmod(0o755)
        os.seteuid(65534)
    try:
        with pytest.raises(FeedUnavailable, match="Permission denied"):
            names(f"{tree}/x/{pattern}" if pattern == "*.csv" else f"{tree}/{pattern}")
    finally:
        if is_root:
            os.seteuid(0)
        (tree / "x").chmod(0o755)


def test_a_name_that_is_not_utf_8_is_refused_rather_than_passed_over(tree: Path) -> None:
    Path(os.fsdecode(os.fsencode(tree) + b"/\xff.csv")).touch()
    with pytest.raises(FeedUnavailable, match="not UTF-8: rename it"):
        names(f"{tree}/*.csv")


def test_the_longest_of_file_names_is_a_partition_and_a_path_that_is_too_long_for_one_is_refused(tree: Path) -> None:
    longest = "é" * 125 + ".csv"
    (tree / longest).touch()
    assert longest in names(f"{tree}/*.csv")
    deep = tree / ("漢" * 80) / ("漢" * 80)
    deep.mkdir(parents=True)
    (deep / "漢漢漢漢漢漢漢漢漢.csv").touch()
    with pytest.raises(FeedUnavailable, match=r"has a path of 513 bytes below .* at most 512: shorten it"):
        names(f"{tree}/**/*.csv")


@pytest.fixture
async def feed(tree: Path) -> AsyncIterator[FilesChangeFeed]:
    feed = FilesChangeFeed(f"{tree}/x/**/*.csv")
    yield feed
    await feed.close()


async def test_a_new_file_becomes_a_partition(feed: FilesChangeFeed, tree: Path) -> None:
    assert [partition.name for partition in await feed.partitions()] == ["a.csv", "y/a.csv"]
    (tree / "x/y/new.csv").write_text("a\n1\n")
    assert await feed.lag("y/new.csv", None) == 1
    assert [partition.name for partition in await feed.partitions()] == ["a.csv", "y/a.csv", "y/new.csv"]


@pytest.mark.parametrize("partition", ["../a.csv", "y/../a.csv", "./a.csv", "/etc/passwd", "", "a.txt", "a.csv\0"])
async def test_the_name_of_a_partition_is_never_taken_for_a_path(feed: FilesChangeFeed, partition: str) -> None:
    with pytest.raises(FeedError, match="no file"):
        await anext(feed.open(partition, None))
