"""Which files a pattern names, and what their partitions are called.

The pattern is a glob: `*`, `?` and `[...]` within one name, `**` for any number of directories. A partition is named by the
file's path below the pattern's fixed directory, so that equal names in several sub-directories stay apart. Names that
begin with a dot match only if the pattern has the dot. Links to directories are followed only in the fixed directory, in which
the search for rings follows them too: `**` leaves them out, and other segments pass over them with a warning.

Python's glob is not used: it treats a directory that cannot be read as an empty one, so its files would seem to be gone.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from leasehold.pipeline.connectors.files.feed.reader import (
    LASTING,
)
from leasehold.pipeline.errors import FeedNotFound, FeedUnavailable

_log = logging.getLogger(__name__)
NAME_BYTES_MAX = 512
"""The longest name of a partition; every single file name is shorter."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """directory: absolute, without wildcards. segments: the pattern of each name in a path below it."""

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
        """Only the files of `list_files`."""
        return self.list_files().files

    def list_files(self) -> FilesFound:
        """All that matches. Raises FeedUnavailable if the fixed directory cannot be listed."""
        try:
            entries = _entries(self.directory)
        except OSError as error:
            kind = FeedNotFound if error.errno in LASTING else FeedUnavailable
            raise kind(
                f"directory '{self.directory}' cannot be listed ({error.strerror}): create it, or let this process read it"
            ) from error
        search = _FileSearch(self.directory)
        search.look(entries, self.directory, self.segments)
        return FilesFound(
            {name: search.files[name] for name in sorted(search.files)}, search.passed_over, search.closed
        )


PASSED_OVER_MAX = 100
"""How many of the entries that cannot be used are named."""


@dataclass(frozen=True, slots=True)
class FilesFound:
    """files: by partition, in name order. Only regular files, because nothing else can be read twice.

    passed_over: entries that match and cannot be used, with the reason. closed: the directories that cannot be listed.
    """

    files: dict[str, Path]
    passed_over: dict[str, str]
    closed: list[Path]


class _FileSearch:
    """One search for files. An entry that cannot be used is noted, and the others are found."""

    def __init__(self, directory: Path) -> None:
        self.files: dict[str, Path] = {}
        self.passed_over: dict[str, str] = {}
        self.closed: list[Path] = []
        self._directory = directory

    def look(self, entries: Iterable[os.DirEntry[str]], directory: str | Path, segments: tuple[str, ...]) -> None:
        pattern, rest = segments[0], segments[1:]
        entries = [each for each in entries if pattern.startswith(".") or not each.name.startswith(".")]
        for entry in entries:
            if pattern == "**":
                if self._is_directory(entry, follows=False):
                    self._descend(entry, segments)
            elif fnmatchcase(entry.name, pattern):
                if not rest:
                    self._take(entry)
                elif self._is_directory(entry):
                    if entry.is_symlink():
                        why = "it is a link to a directory, which may lead to the feed's own output: move the directory here"
                        self._pass_over(entry.path, f"{why}, or begin the pattern with the link")
                    else:
                        self._descend(entry, rest)
        if pattern == "**":
            try:
                self.look(_entries(directory), directory, rest)
            except OSError as error:
                self._close(Path(directory), error)

    def _descend(self, entry: os.DirEntry[str], segments: tuple[str, ...]) -> None:
        if self._name(entry, "directory") is None:
            return
        try:
            entries = _entries(entry.path)
        except FileNotFoundError:
            return  # it has just been removed
        except OSError as error:
            self._close(Path(entry.path), error)
            return
        self.look(entries, entry.path, segments)

    def _take(self, entry: os.DirEntry[str]) -> None:
        try:
            is_file, is_directory = entry.is_file(), entry.is_dir()
        except OSError as error:
            self._pass_over(entry.path, f"it leads nowhere ({error.strerror}): remove it, or let it lead to a file")
            return
        if is_directory or (name := self._name(entry, "file")) is None:
            return
        if is_file:
            self.files[name] = Path(entry.path)
        else:
            self._pass_over(entry.path, "it is not a regular file, and could not be read again: move it away")

    def _name(self, entry: os.DirEntry[str], kind: str) -> str | None:
        """The entry's path below the directory. None, with a note, if it cannot be in a partition's name."""
        name = Path(entry.path).relative_to(self._directory).as_posix()
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            self._pass_over(entry.path, f"the {kind} has a name that is not UTF-8: rename it")
            return None
        if size > NAME_BYTES_MAX:
            self._pass_over(
                entry.path,
                f"the {kind} has a path of {size} bytes below '{self._directory}', and a partition's name has at most"
                f" {NAME_BYTES_MAX}: shorten it, or begin the pattern further down",
            )
            return None
        return name

    def _is_directory(self, entry: os.DirEntry[str], *, follows: bool = True) -> bool:
        try:
            return entry.is_dir(follow_symlinks=follows)
        except OSError as error:
            self._pass_over(
                entry.path, f"it leads nowhere ({error.strerror}): remove it, or let it lead to a directory"
            )
            return False

    def _close(self, directory: Path, error: OSError) -> None:
        self.closed.append(directory)
        why = f"the directory cannot be listed ({error.strerror}): let this process read it, or move it away"
        self._pass_over(str(directory), why)

    def _pass_over(self, path: str, why: str) -> None:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        _warn_once(shown, why)
        if len(self.passed_over) < PASSED_OVER_MAX:
            self.passed_over[shown] = why


def _entries(directory: str | Path) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as scan:
        return sorted(scan, key=lambda entry: entry.name)


@cache
def _warn_once(path: str, why: str) -> None:
    """Warn only once, because files are listed again and again."""
    _log.warning("'%s' is passed over: %s", path, why)
