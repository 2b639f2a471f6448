"""Entries of a manifest: their contents, and which may follow which. Pure.

An entry holds all that a partition's next writer must know, so the newest entry alone has the sink's position.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.connectors.files.claims import carried_over, check_open, checked
from leasehold.pipeline.connectors.files.sink.storage import FilesDamaged
from leasehold.pipeline.limits import JSON_LEVELS_MAX
from leasehold.pipeline.sink import Claim, Output

# The names of files. Pure.
#
#     _leasehold/{pipeline}/{partition}/000000000042.json                    one entry of the manifest
#     _leasehold/{pipeline}/{partition}/000000000000-000000000063.json       the files of entries 0 to 63, folded into one
#     {pipeline}/{partition}/000000000/000000000042-{unique}.parquet         the data file of entry 42, or of an attempt at it
#     {pipeline}/{partition}/staged/000000000005/0000000000000000007/{from}-{unique}.parquet
#         what executors staged at epoch 7, while one of the entries 40 to 47 was the newest
#
# A data file has the number of the entry for which it is written. Once an entry of that number exists and does not name the file,
# the file can never be named: that separates leftovers from writes under way, without any clock. A staged file has the epoch of
# the lease. Once there is an entry of a higher epoch, no further entry can name the file. Its folder is that of the newest entry
# at the time, so only that entry's successors can name it: a claim finds what the last owner left without reading what all owners
# ever staged. Older versions put the epoch's folder directly into `staged`: such files are still read and cleaned up.


MANIFEST = "_leasehold"
DIGITS = 12
FOLDER_VERSIONS = 1000
ENCODED_MAX = 150
_ENTRY = re.compile(rf"(\d{{{DIGITS}}})\.json")
_FOLD = re.compile(rf"(\d{{{DIGITS}}})-(\d{{{DIGITS}}})\.json")
_DATA = re.compile(rf"(\d{{{DIGITS}}})-[0-9a-f]{{32}}\.(?:parquet|jsonl)")
STAGED = "staged"
STAGED_VERSIONS = 8
"""How many neighbouring entries share a folder of staged files: more than the batches that an owner has under way."""
EPOCH_DIGITS = 19
_STAGED = re.compile(
    rf"/{STAGED}/(?:\d{{{DIGITS}}}/)?(\d{{{EPOCH_DIGITS}}})/[0-9a-f]{{16}}-[0-9a-f]{{32}}\.(?:parquet|jsonl)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The folders of one partition. manifest, data: without a slash at the end."""

    manifest: str
    data: str

    def entry(self, version: int) -> str:
        return f"{self.manifest}/{version:0{DIGITS}d}.json"

    def fold(self, first: int, last: int) -> str:
        return f"{self.manifest}/{first:0{DIGITS}d}-{last:0{DIGITS}d}.json"

    def data_of(self, version: int) -> str:
        """The folder with the data file of an entry, and those of other entries."""
        return f"{self.data}/{version // FOLDER_VERSIONS:0{DIGITS - 3}d}"

    def staged_at(self, version: int) -> str:
        """The folder of what executors stage while this entry is the newest. It shares the folder with its neighbours."""
        return f"{self.data}/{STAGED}/{version // STAGED_VERSIONS:0{DIGITS}d}"

    def staging(self, version: int, epoch: int, start: str | None) -> str:
        """The beginning of the names of one batch's staged files. version: the newest entry."""
        folder = f"{self.staged_at(version)}/{epoch:0{EPOCH_DIGITS}d}"
        return f"{folder}/{hashlib.sha256(repr(start).encode()).hexdigest()[:16]}"

    def attempt(self, version: int, unique: str, suffix: str) -> str:
        return f"{self.data_of(version)}/{version:0{DIGITS}d}-{unique}.{suffix}"


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a partition's manifest. entries: versions. folds: first version -> last version of the longest fold."""

    entries: frozenset[int]
    folds: Mapping[int, int]
    shadowed: tuple[tuple[int, int], ...] = ()
    """Folds within longer ones of the same first version."""

    @property
    def head(self) -> int | None:
        return max(self.entries, default=None)


def folders_of(pipeline: str, partition: str) -> Folders:
    ours = f"{folder_of(pipeline)}/{folder_of(partition)}"
    return Folders(manifest=f"{MANIFEST}/{ours}", data=ours)


def folders_in(names: Iterable[str]) -> dict[Folders, list[str]]:
    """From names below MANIFEST: each partition's folders -> the names in its manifest."""
    found: dict[Folders, list[str]] = {}
    for name in names:
        parts = name.split("/")
        if len(parts) == 4 and parts[0] == MANIFEST:
            ours = f"{parts[1]}/{parts[2]}"
            found.setdefault(Folders(manifest=f"{MANIFEST}/{ours}", data=ours), []).append(name)
    return found


def listing_of(names: Iterable[str]) -> Listing:
    """From the names in one partition's manifest; other names are ignored."""
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
    """The version of a data file; None for other files."""
    found = _DATA.fullmatch(name.rpartition("/")[2])
    return int(found[1]) if found else None


def epoch_of(name: str) -> int | None:
    """The epoch of a staged file; None for other files."""
    found = _STAGED.search(name)
    return int(found[1]) if found and found.end() == len(name) else None


def folder_of(name: str) -> str:
    """A pipeline or partition as a folder: percent-encoded; one too long for a file system is cut and extended by a digest.

    Raises ValueError for a name that is not text (a lone surrogate).
    """
    try:
        folder = quote(name, safe="")
    except UnicodeEncodeError:
        raise ValueError(f"partition {name!r} cannot be a folder: rename it in its source") from None
    if folder.startswith((".", "_")):  # Spark skips such folders
        folder = f"%{ord(folder[0]):02X}{folder[1:]}"
    if not 0 < len(folder) <= ENCODED_MAX:
        folder = f"{folder[:ENCODED_MAX]}={hashlib.sha256(name.encode()).hexdigest()[:32]}"
    return folder


FORMAT = 1
FORMAT_OF_SEVERAL = 2
"""The format of entries that name several files. Versions up to 0.2 refuse it."""
T = TypeVar("T", "DataFile", "ManifestEntry", "Fold")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of output. start, to: the positions that its batch covers. version: the entry that names it."""

    name: str
    format: str
    rows: int
    bytes: int
    sha256: str
    version: int
    generation: int
    epoch: int
    start: str | None
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """id: of the attempt, by which its writer recognizes it. kind: claim, batch or end. position, ended: from this entry on."""

    version: int
    id: str
    kind: str
    pipeline: str
    partition: str
    generation: int
    epoch: int
    owner: str
    position: str | None
    ended: bool = False
    files: tuple[DataFile, ...] = ()

    @property
    def label(self) -> str:
        return f"entry {self.version} of the manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """The files of the entries `first` to `last`."""

    first: int
    last: int
    pipeline: str
    partition: str
    files: tuple[DataFile, ...]


def claimed(head: ManifestEntry | None, claim: Claim, id: str) -> ManifestEntry:
    """The entry by which a claim shuts out all before it. Raises Fenced, SinkRejected."""
    made = ManifestEntry(
        version=0,
        id=id,
        kind="claim",
        pipeline=claim.pipeline,
        partition=claim.partition,
        generation=claim.generation,
        epoch=claim.epoch,
        owner=claim.owner,
        position=claim.continuation,
    )
    if head is None:
        return made
    position, has_ended = carried_over(head, claim, "manifest")
    return replace(made, version=head.version + 1, position=position, ended=has_ended)


def moved(head: ManifestEntry, output: Output, id: str, files: tuple[DataFile, ...]) -> ManifestEntry:
    """Raises SinkRejected."""
    check_open(head)
    return replace(head, version=head.version + 1, id=id, kind="batch", position=output.to, files=files)


def ended(head: ManifestEntry, id: str) -> ManifestEntry:
    return replace(head, version=head.version + 1, id=id, kind="end", ended=True, files=())


def encoded(value: ManifestEntry | Fold) -> bytes:
    """An entry with one file, or none, is encoded as in version 0.2."""
    found = {"format": FORMAT, **asdict(value)}
    if isinstance(value, ManifestEntry):
        files = found.pop("files")
        if len(files) > 1:
            found |= {"format": FORMAT_OF_SEVERAL, "files": files}
        else:
            found["file"] = files[0] if files else None
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


def entry_in(content: bytes, name: str) -> ManifestEntry:
    """Raises FilesDamaged."""
    found = _read(content, name)
    try:
        files = found.pop("files") if "files" in found else [found.pop("file")]
        named = tuple(checked(DataFile(**file), _WHOLE, _NONE_TOO) for file in files if file is not None)
        return checked(ManifestEntry(**found, files=named), _WHOLE)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(name, error) from error


def fold_in(content: bytes, name: str) -> Fold:
    """Raises FilesDamaged."""
    found = _read(content, name)
    try:
        files: Sequence[Any] = found.pop("files")
        named = tuple(checked(DataFile(**each), _WHOLE, _NONE_TOO) for each in files)
        return checked(Fold(**found, files=named), _WHOLE)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(name, error) from error


def _read(content: bytes, name: str) -> dict[str, Any]:
    try:
        found = parsed_json(content, JSON_LEVELS_MAX)
    except ValueError as error:
        raise _damaged(name, error) from error
    if not isinstance(found, dict) or "format" not in found:
        raise _damaged(name, ValueError("it is not an entry"))
    if (number := found.pop("format")) not in (FORMAT, FORMAT_OF_SEVERAL):
        raise FilesDamaged(
            f"'{name}' is of format {number!r}, and this version knows {FORMAT} and {FORMAT_OF_SEVERAL}: use a newer one"
        )
    return found


_WHOLE = ("version", "generation", "epoch", "rows", "bytes", "first", "last")
_NONE_TOO = ("start",)


def _damaged(name: str, error: Exception) -> FilesDamaged:
    why = " ".join(str(error).split())[:200]
    return FilesDamaged(f"'{name}' is not a file of a manifest, or is damaged ({why}): restore it from a backup")
