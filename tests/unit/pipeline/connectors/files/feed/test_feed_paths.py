"""Which files a pattern names."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasehold.pipeline.connectors.files.feed import FilesChangeFeed
from leasehold.pipeline.connectors.files.feed.pattern import PASSED_OVER_MAX, Pattern
from leasehold.pipeline.errors import FeedError, FeedNotFound, FeedUnavailable


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


@contextmanager
def unprivileged(tree: Path) -> Iterator[None]:
    """Without the rights of root."""
    if os.geteuid() != 0:
        yield
        return
    for parent in (tree, *tree.parents[:3]):
        parent.chmod(0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def closed(directory: Path) -> Iterator[None]:
    directory.chmod(0)
    try:
        yield
    finally:
        directory.chmod(0o755)


@pytest.mark.parametrize("kind", ["closed", "missing", "a file", "a link to itself"])
def test_a_fixed_directory_that_cannot_be_listed_needs_a_person(tree: Path, kind: str) -> None:
    place = tree / "x" if kind == "closed" else tree / "place"
    if kind == "a file":
        place.touch()
    if kind == "a link to itself":
        place.symlink_to(place)
    with (
        closed(tree / "x"),
        unprivileged(tree),
        pytest.raises(FeedNotFound, match=f"directory '{place}' cannot be listed"),
    ):
        names(f"{place}/*.csv")


def passed_over(pattern: str) -> dict[str, str]:
    return Pattern.parse(pattern).list_files().passed_over


@pytest.mark.parametrize("pattern", ["*/a.csv", "**/a.csv", "**"])
def test_a_directory_that_may_not_be_listed_is_passed_over_and_the_others_are_read(tree: Path, pattern: str) -> None:
    with closed(tree / "x/y"), closed(tree / "x"), unprivileged(tree):
        assert not [name for name in names(f"{tree}/{pattern}") if name.startswith("x/")]
        assert passed_over(f"{tree}/{pattern}") == {
            f"{tree}/x": "the directory cannot be listed (Permission denied): let this process read it, or move it away"
        }
        assert names(f"{tree}/*.csv") == ["[1].csv", "a.csv", "b.csv"]


@pytest.mark.parametrize("pattern", ["*.csv", "*/a.csv", "**/a.csv", "**"])
def test_a_link_to_itself_is_passed_over_and_the_others_are_read(tree: Path, pattern: str) -> None:
    before = names(f"{tree}/{pattern}")
    (tree / "loop.csv").symlink_to("loop.csv")
    (tree / "a").symlink_to("b")
    (tree / "b").symlink_to("a")
    assert names(f"{tree}/{pattern}") == before
    reported = passed_over(f"{tree}/{pattern}")
    if pattern in ("*.csv", "**"):
        assert reported[f"{tree}/loop.csv"] == (
            "it leads nowhere (Too many levels of symbolic links): remove it, or let it lead to a file"
        )


def test_a_name_that_is_not_utf_8_is_passed_over_and_the_others_are_read(tree: Path) -> None:
    before = names(f"{tree}/**/*.csv")
    (tree / os.fsdecode(b"\xff.csv")).touch()
    (tree / os.fsdecode(b"\xfe")).mkdir()
    (tree / os.fsdecode(b"\xfe/a.csv")).touch()
    (tree / "x" / os.fsdecode(b"caf\xe9.txt")).touch()
    assert names(f"{tree}/**/*.csv") == before
    assert passed_over(f"{tree}/**/*.csv") == {
        f"{tree}/\\xff.csv": "the file has a name that is not UTF-8: rename it",
        f"{tree}/\\xfe": "the directory has a name that is not UTF-8: rename it",
    }


def test_the_longest_of_file_names_is_a_partition_and_a_path_too_long_for_one_is_passed_over(tree: Path) -> None:
    longest = "é" * 125 + ".csv"
    (tree / longest).touch()
    assert longest in names(f"{tree}/*.csv")
    deep = tree / ("漢" * 80) / ("漢" * 80)
    deep.mkdir(parents=True)
    (deep / "漢漢漢漢漢漢漢漢漢.csv").touch()
    before = names(f"{tree}/*.csv")
    assert set(before) < set(names(f"{tree}/**/*.csv"))
    (why,) = passed_over(f"{tree}/**/*.csv").values()
    assert why.startswith("the file has a path of 513 bytes below")


def test_directories_deeper_than_any_name_of_a_partition_are_passed_over(tree: Path) -> None:
    inside = tree
    for _ in range(400):
        inside = inside / "d"
        inside.mkdir()
    assert "a.csv" in names(f"{tree}/**/*.csv")
    (why,) = passed_over(f"{tree}/**/*.csv").values()
    assert why.startswith("the directory has a path of 513 bytes")


def test_not_every_one_of_many_entries_is_named(tree: Path) -> None:
    for number in range(PASSED_OVER_MAX + 5):
        (tree / f"{number}.csv").symlink_to("nowhere")
    assert len(passed_over(f"{tree}/*.csv")) == PASSED_OVER_MAX


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


async def test_files_in_a_directory_that_is_closed_for_now_are_not_gone(tree: Path) -> None:
    feed = FilesChangeFeed(f"{tree}/**/a.csv")
    before = await feed.partitions()
    with unprivileged(tree):
        assert feed.passed_over == {}
    (tree / "x").chmod(0)
    try:
        with unprivileged(tree):
            assert await feed.partitions() == before
            assert list(feed.passed_over) == [f"{tree}/x"]
            with pytest.raises(FeedError, match=f"'{tree}/x' is passed over: the directory cannot be listed"):
                await feed.probe()
    finally:
        (tree / "x").chmod(0o755)
    (tree / "x/a.csv").unlink()
    assert [each.name for each in await feed.partitions()] == ["a.csv", "x/y/a.csv"]
    assert feed.passed_over == {}
    await feed.close()
