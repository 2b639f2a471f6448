"""One partition's manifest: entries numbered from 0. The first writer to put a number owns that entry.

Putting entry n + 1 after reading entry n is a compare-and-swap: one writer succeeds, and the others learn that they were
outranked. Nothing else decides what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from leasehold.pipeline.connectors.files.claims import outranked
from leasehold.pipeline.connectors.files.sink.entry import (
    STAGED_VERSIONS,
    DataFile,
    Fold,
    Folders,
    Listing,
    ManifestEntry,
    claimed,
    encoded,
    entry_in,
    epoch_of,
    fold_in,
    folders_of,
    listing_of,
)
from leasehold.pipeline.connectors.files.sink.storage import (
    Check,
    FilesDamaged,
    FilesUnavailable,
    FilesUncertain,
    Storage,
)
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import Ambiguous, SinkRejected
from leasehold.pipeline.sink import Claim, settle, to_write_again

# How a manifest stays short: 64 entries are folded into one file, and 64 of those into one again. Pure.
#
# A fold's contents follow from its name, so every writer makes the same file. A name is removed only if a longer fold covers it,
# and readers take the longest fold: a stalled writer's late entry under a removed name is never read.


FAN = 64
"""Entries in a fold, and folds in a long one: a manifest has at most about 256 files, and one more for every 4,096 entries."""
LONG = FAN * FAN


@dataclass(frozen=True, slots=True)
class Step:
    """A range of versions: one entry if first == last, else a fold."""

    first: int
    last: int

    @property
    def is_entry(self) -> bool:
        return self.first == self.last

    @property
    def parts(self) -> list[Step]:
        """The steps that a fold combines."""
        size = (self.last - self.first + 1) // FAN
        return [Step(first, first + size - 1) for first in range(self.first, self.last + 1, size)]


def steps(listing: Listing, start: int = 0) -> Iterator[Step]:
    """The files to read, in order, from version `start` to the first that no file has."""
    version = start
    while True:
        if version in listing.folds:
            step = Step(version, listing.folds[version])
        elif version in listing.entries:
            step = Step(version, version)
        else:
            return
        yield step
        version = step.last + 1


def is_past(version: int, listing: Listing) -> bool:
    """Whether no reader needs an entry of this version, because a fold covers it."""
    return any(first <= version <= last for first, last in listing.folds.items())


def due(listing: Listing) -> list[Step]:
    """Folds to make, in this order."""
    head = listing.head or 0
    have = {*listing.folds.items(), *listing.shadowed}
    longs = {first for first, last in have if last - first + 1 == LONG}
    short = [
        Step(first, first + FAN - 1)
        for first in _complete(head, FAN)
        if (first, first + FAN - 1) not in have and first // LONG * LONG not in longs
    ]
    long = [Step(first, first + LONG - 1) for first in _complete(head, LONG) if first not in longs]
    return [*short, *long]


def is_due(version: int) -> bool:
    """Whether an entry of this version completes a range that can be folded."""
    return version % FAN == FAN - 1


def superseded(listing: Listing) -> list[Step]:
    """The files that may be removed. The last complete range of each length stays, for readers under way."""
    head = listing.head or 0
    entries = [Step(each, each) for each in sorted(listing.entries) if each < _kept_from(head, FAN)]
    shorts = [
        Step(first, last) for first, last in (*listing.folds.items(), *listing.shadowed) if last - first + 1 == FAN
    ]
    longs = {first for first, last in listing.folds.items() if last - first + 1 == LONG}
    return [
        *(each for each in entries if is_past(each.first, listing)),
        *(each for each in shorts if each.first < _kept_from(head, LONG) and each.first // LONG * LONG in longs),
    ]


def _complete(head: int, size: int) -> range:
    """The first versions of all complete ranges of this size."""
    return range(0, (head + 1) // size * size, size)


def _kept_from(head: int, size: int) -> int:
    return (head + 1) // size * size - size


CLAIMS_MAX = 20


class Manifest:
    """A manifest as one claim sees it. head: the newest entry, which is the claim's. Calls block, and also raise FilesError."""

    def __init__(self, place: Storage, folders: Folders, head: ManifestEntry) -> None:
        self.head = head
        self.folders = folders
        self._place = place
        self._known: dict[int, ManifestEntry] = {head.version: head}

    def append(self, entry: ManifestEntry, check: Check) -> None:
        """check: called right before each attempt. Raises Fenced, Ambiguous, NotTrusted; FilesUnavailable if surely not done."""
        if not _is_put(self._place, self.folders, entry, check):
            raise outranked(entry, entry_of(self._place, self.folders, entry.version))
        crash_point("entry put")
        self.head = entry
        self._known[entry.version] = entry

    def fold_if_due(self) -> None:
        """Call it before a batch is written, never after: a delivered batch must not fail. Raises Fenced."""
        if is_due(self.head.version):
            self.fold()

    def check_newest(self) -> Listing:
        """Raises Fenced if others have written since."""
        listing = listed(self._place, self.folders)
        if (listing.head or 0) > self.head.version:
            raise outranked(self.head, entry_of(self._place, self.folders, listing.head or 0))
        return listing

    def fold(self) -> None:
        """Raises Fenced if others have written since: we were stalled, perhaps for so long that our entry is in the past."""
        listing = self.check_newest()
        steps = due(listing)
        for step in steps:
            self._put_fold(step)
            crash_point("folded")
        for step in superseded(listed(self._place, self.folders) if steps else listing):
            self._place.delete(name_of(self.folders, step))
            self._known.pop(step.first, None)

    def stagings_left(self) -> list[str]:
        """Files that earlier owners' executors staged around the last 8 to 15 entries before this one, and that no entry names.

        Older files are left to `leftovers`: to find them, all entries and all names would have to be read.
        """
        first = max(0, self.head.version // STAGED_VERSIONS - 1) * STAGED_VERSIONS
        folders = {self.folders.staged_at(version) for version in (first, self.head.version)}
        stale = [
            name
            for folder in sorted(folders)
            for name in self._place.names(folder)
            if (epoch := epoch_of(name)) is not None and epoch < self.head.epoch
        ]
        named: set[str] = set()
        for version in range(first, self.head.version) if stale else ():
            entry = entry_of(self._place, self.folders, version)
            if entry is None:  # folded away: others have written since, and clear it themselves
                return []
            named.update(file.name for file in entry.files)
        return [name for name in stale if name not in named]

    def _put_fold(self, step: Step) -> None:
        fold = Fold(
            first=step.first,
            last=step.last,
            pipeline=self.head.pipeline,
            partition=self.head.partition,
            files=tuple(chain.from_iterable(self._files(part) for part in step.parts)),
        )
        self._place.put(name_of(self.folders, step), encoded(fold))  # if it exists, it is the same

    def _files(self, step: Step) -> tuple[DataFile, ...]:
        known = self._known.get(step.first) if step.is_entry else None
        files = files_of(self._place, self.folders, step) if known is None else known.files
        if files is None:
            raise FilesDamaged(
                f"'{name_of(self.folders, step)}' is missing from its manifest: restore it from a backup, or write elsewhere"
            )
        return files


def open_manifest(place: Storage, claim: Claim, *, seen: int, new_id: Callable[[], str]) -> Manifest:
    """Shut out all earlier claims. seen: the newest entry that the lease knows of, -1 for none.

    Raises Fenced, SinkRejected, FilesError.
    """
    folders = folders_of(claim.pipeline, claim.partition)
    for _ in range(CLAIMS_MAX):
        head = head_of(place, folders)
        _check_seen(place, claim, head, seen)
        entry = claimed(head, claim, new_id())
        if _is_put(place, folders, entry, lambda: None):
            crash_point("partition claimed")
            manifest = Manifest(place, folders, entry)
            manifest.fold()
            return manifest
    raise FilesUnavailable(f"other hosts keep claiming partition '{claim.partition}' of pipeline '{claim.pipeline}'")


def head_of(place: Storage, folders: Folders) -> ManifestEntry | None:
    """The newest entry; None if there are none."""
    for _ in range(CLAIMS_MAX):
        listing = listed(place, folders)
        if listing.head is None:
            if listing.folds:
                raise FilesDamaged(f"'{folders.manifest}' holds no entry any more: restore it from a backup")
            return None
        if (entry := entry_of(place, folders, listing.head)) is not None:
            return entry
    raise FilesUnavailable(f"'{folders.manifest}' keeps changing: try again")


def listed(place: Storage, folders: Folders) -> Listing:
    return listing_of(place.names(folders.manifest))


def entry_of(place: Storage, folders: Folders, version: int) -> ManifestEntry | None:
    name = folders.entry(version)
    content = place.get(name)
    return None if content is None else entry_in(content, name)


def files_of(place: Storage, folders: Folders, step: Step) -> tuple[DataFile, ...] | None:
    """None if the step's file does not exist."""
    name = name_of(folders, step)
    content = place.get(name)
    if content is None:
        return None
    return entry_in(content, name).files if step.is_entry else fold_in(content, name).files


def name_of(folders: Folders, step: Step) -> str:
    return folders.entry(step.first) if step.is_entry else folders.fold(step.first, step.last)


def _is_put(place: Storage, folders: Folders, entry: ManifestEntry, check: Check) -> bool:
    """Put an entry. Returns whether the entry of this number is ours."""
    name, content = folders.entry(entry.version), encoded(entry)

    def put() -> bool:
        check()
        if place.put(name, content):
            return True
        found = entry_of(place, folders, entry.version)
        if found is None:
            raise Ambiguous(
                f"'{name}' was there and no longer exists: it may have been this host's, and another host folded it"
            )
        return found.id == entry.id

    return settle(put, failed=FilesUnavailable, uncertain=FilesUncertain)


def _check_seen(place: Storage, claim: Claim, head: ManifestEntry | None, seen: int) -> None:
    version = -1 if head is None else head.version
    if version < seen:
        raise SinkRejected(
            f"{place.identity}, partition '{claim.partition}' ends at entry {version}, and this lease has seen entry {seen}: it"
            f" was deleted or restored, and output is lost. Restore it, or {to_write_again(claim)}"
        )
