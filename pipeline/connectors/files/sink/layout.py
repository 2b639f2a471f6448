"""Which file is called what. Pure.

    _leasehold/{pipeline}/{partition}/000000000042.json                    one entry of the manifest
    _leasehold/{pipeline}/{partition}/000000000000-000000000063.json       the files of entries 0 to 63, folded into one
    {pipeline}/{partition}/000000000/000000000042-{unique}.parquet         the data file of entry 42, or of an attempt at it

A data file bears the number of the entry that it is written for. Once there is an entry of that number which does not name it,
nobody can ever name it: that is how leftovers are told from what is still under way, without a look at any clock.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

MANIFEST = "_leasehold"
DIGITS = 12
FOLDER_VERSIONS = 1000
ENCODED_MAX = 150
_ENTRY = re.compile(rf"(\d{{{DIGITS}}})\.json")
_FOLD = re.compile(rf"(\d{{{DIGITS}}})-(\d{{{DIGITS}}})\.json")
_DATA = re.compile(rf"(\d{{{DIGITS}}})-[0-9a-f]{{32}}\.(?:parquet|jsonl)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Of one partition. manifest, data: without a slash at the end."""

    manifest: str
    data: str

    def entry(self, version: int) -> str:
        return f"{self.manifest}/{version:0{DIGITS}d}.json"

    def fold(self, first: int, last: int) -> str:
        return f"{self.manifest}/{first:0{DIGITS}d}-{last:0{DIGITS}d}.json"

    def data_of(self, version: int) -> str:
        """The folder in which the data file of an entry lies, with others'."""
        return f"{self.data}/{version // FOLDER_VERSIONS:0{DIGITS - 3}d}"

    def attempt(self, version: int, unique: str, suffix: str) -> str:
        return f"{self.data_of(version)}/{version:0{DIGITS}d}-{unique}.{suffix}"


@dataclass(frozen=True, slots=True)
class Listing:
    """What there is of a partition's manifest. entries: versions. folds: first version -> last version, the longest."""

    entries: frozenset[int]
    folds: Mapping[int, int]
    shadowed: tuple[tuple[int, int], ...] = ()
    """Folds within longer ones of the same first version."""

    @property
    def head(self) -> int | None:
        return max(self.entries, default=None)


def folders_of(pipeline: str, partition: str) -> Folders:
    ours = f"{encoded(pipeline)}/{encoded(partition)}"
    return Folders(manifest=f"{MANIFEST}/{ours}", data=ours)


def folders_in(names: Iterable[str]) -> dict[Folders, list[str]]:
    """Of names below MANIFEST: each partition's folders -> the names in its manifest."""
    found: dict[Folders, list[str]] = {}
    for name in names:
        parts = name.split("/")
        if len(parts) == 4 and parts[0] == MANIFEST:
            ours = f"{parts[1]}/{parts[2]}"
            found.setdefault(Folders(manifest=f"{MANIFEST}/{ours}", data=ours), []).append(name)
    return found


def listing_of(names: Iterable[str]) -> Listing:
    """Of the names in one partition's manifest; what is called otherwise is nobody's."""
    last_parts = [name.rpartition("/")[2] for name in names]
    entries = frozenset(int(found[1]) for part in last_parts if (found := _ENTRY.fullmatch(part)))
    folds: dict[int, int] = {}
    shadowed = []
    for first, last in sorted(
        (int(found[1]), int(found[2])) for part in last_parts if (found := _FOLD.fullmatch(part))
    ):
        if first in folds:
            shadowed.append((first, folds[first]))
        folds[first] = last
    return Listing(entries, folds, tuple(shadowed))


def version_of(name: str) -> int | None:
    """Of a data file; None where it is none of ours."""
    found = _DATA.fullmatch(name.rpartition("/")[2])
    return int(found[1]) if found else None


def encoded(name: str) -> str:
    """A pipeline or partition as a folder: percent-encoded; one too long for a file system is cut and told apart by a digest.

    Raises ValueError for a name that is not text (a lone surrogate).
    """
    try:
        folder = quote(name, safe="")
    except UnicodeEncodeError:
        raise ValueError(f"partition {name!r} cannot be a folder: rename it in its source") from None
    if folder.startswith((".", "_")):  # Spark passes over such folders
        folder = f"%{ord(folder[0]):02X}{folder[1:]}"
    if not 0 < len(folder) <= ENCODED_MAX:
        folder = f"{folder[:ENCODED_MAX]}={hashlib.sha256(name.encode()).hexdigest()[:32]}"
    return folder
