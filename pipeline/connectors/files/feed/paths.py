"""Which files a pattern names, and what their partitions are called.

The pattern is a glob: `*`, `?` and `[...]` within one name, `**` for any number of directories. A partition is named by the
file's path below the pattern's fixed directory, so that equal names in several sub-directories stay apart. Names that
begin with a dot match only where the pattern says the dot; `**` does not follow links to directories.

Python's glob is not used: it takes a directory that may not be read for an empty one, and its files for gone.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from pipeline.errors import FeedUnavailable

NAME_BYTES_MAX = 512
"""Of a partition; every single file name is shorter."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pattern:
    """directory: absolute, nothing in it is a wildcard. segments: what names below it have to match, one by one."""

    directory: Path
    segments: tuple[str, ...]

    @classmethod
    def parse(cls, path: str) -> Pattern:
        whole = Path(os.path.abspath(path))
        parts = whole.parts
        fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
        segments = parts[fixed:]
        return cls(Path(*parts[:fixed]), (*segments, "*") if segments[-1] == "**" else segments)

    def __str__(self) -> str:
        return str(self.directory.joinpath(*self.segments))

    def files(self) -> dict[str, Path]:
        """Partition name -> file, in name order. Regular files alone: nothing else can be read twice. Raises FeedUnavailable."""
        try:
            found = {_name(entry, self.directory): entry for entry in _matching(self.directory, self.segments)}
            return {name: Path(found[name].path) for name in sorted(found) if _is_file(found[name])}
        except OSError as error:
            raise FeedUnavailable(
                f"directory '{error.filename}' cannot be listed ({error.strerror}): create it, or let this process read it"
            ) from error


def _matching(directory: str | Path, segments: tuple[str, ...]) -> Iterator[os.DirEntry[str]]:
    pattern, rest = segments[0], segments[1:]
    with os.scandir(directory) as scan:
        entries = list(scan)
    for entry in entries:
        if entry.name.startswith(".") and not pattern.startswith("."):
            continue
        if pattern == "**":
            if entry.is_dir(follow_symlinks=False):
                yield from _matching(entry.path, segments)
        elif fnmatchcase(entry.name, pattern):
            if not rest:
                yield entry
            elif entry.is_dir():
                yield from _matching(entry.path, rest)
    if pattern == "**":
        yield from _matching(directory, rest)


def _name(entry: os.DirEntry[str], directory: Path) -> str:
    name = Path(entry.path).relative_to(directory).as_posix()
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise FeedUnavailable(f"file {os.fsencode(entry.path)!r} has a name that is not UTF-8: rename it") from None
    if size > NAME_BYTES_MAX:
        raise FeedUnavailable(
            f"file '{entry.path}' has a path of {size} bytes below '{directory}', and a partition's name has at most"
            f" {NAME_BYTES_MAX}: shorten it, or begin the pattern further down"
        )
    return name


def _is_file(entry: os.DirEntry[str]) -> bool:
    if entry.is_file():
        return True
    if not entry.is_dir():
        _warn_once(entry.path)
    return False


@cache
def _warn_once(path: str) -> None:
    """Files are listed again and again."""
    _log.warning("'%s' is passed over: it is no regular file, and could not be read again", path)
