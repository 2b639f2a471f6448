"""A place for files: a directory or a container of blobs. One of its calls, `put`, decides everything.

`put` creates a file unless it exists: if several put one name, in any process, only one gets True. A manifest that numbers its
entries needs no more than that; nothing is ever replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from leasehold.pipeline.errors import PipelineError
from leasehold.pipeline.sink import SENDS_MAX
from leasehold.pipeline.staging import NotStaged, StagedPart, check_parts

Check = Callable[[], None]

# What can go wrong with files and their manifest.
#
# FilesError
# ├── FilesUnavailable   surely not done; may be tried again
# │   ├── FilesRefused   the place answers and refuses: a key, a role, a name
# │   └── FilesNowhere   its address leads nowhere
# ├── FilesUncertain     perhaps done: the answer was lost
# └── FilesDamaged       a file of the manifest, or one that it names, is not what was written


class FilesError(PipelineError):
    """A place that could not be read or written."""


class FilesUnavailable(FilesError):
    """The same call may be tried again, after `retry_after_s` if the place named a time."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class FilesRefused(FilesUnavailable):
    """The place answers, and refuses because of the settings or its permissions."""


class FilesNowhere(FilesUnavailable):
    """The host of the place's address does not exist."""


class FilesUncertain(FilesError):
    """A file may exist, or may still appear. Putting the same bytes under the same name once more is harmless."""


class FilesDamaged(FilesError):
    """A file is not what was written. Restore it from a backup, or look at who else writes there."""


class Storage(Protocol):
    """Names are like `a/b/c.json`. Calls block, come from several threads, and raise FilesUnavailable."""

    @property
    def identity(self) -> str:
        """The place's address, without secrets."""
        ...

    def prepare(self) -> None:
        """Create the place if it is missing, and check that it keeps what `put` promises."""
        ...

    def put(self, name: str, content: bytes) -> bool:
        """Whether this call created the file; False if it exists already. Readers see it whole or not at all. Once this has
        returned, either way, the file survives a loss of power. Raises FilesUncertain too.
        """
        ...

    def get(self, name: str) -> bytes | None:
        """The content of a file; None if it does not exist."""
        ...

    def size(self, name: str) -> int | None:
        """How many bytes a file has; None if it does not exist."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of all files in a folder and below, in any order. Files that exist during the whole call are among them."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        ...

    def locate(self, name: str) -> str:
        """A file's location for other programs: an absolute path, or an address."""
        ...

    def for_executors(self, mark: str) -> Storage | None:
        """The same place for another process, which gets it by pickle: without secrets and connections.

        None if another process cannot use it. mark: a folder that the owner of a lease has made, and that executors never make.
        If it is missing, `put` raises FilesRefused and writes nothing.
        """
        ...

    def close(self) -> None: ...


def put_again(place: Storage, name: str, content: bytes, check: Check = lambda: None) -> bool:
    """Put a file, and again if the answer was lost. False if it exists already, perhaps by the first try. Raises FilesError.

    check: called right before each try.
    """
    for _ in range(SENDS_MAX - 1):
        check()
        with suppress(FilesUncertain):
            return place.put(name, content)
    check()
    return place.put(name, content)


def check_staged(place: Storage, parts: Sequence[StagedPart], *, epoch: int, start: str | None) -> None:
    """Raises NotStaged for parts of another epoch or another batch, and for parts that the place lacks. Blocks.

    An executor with another directory, for example because a volume is not mounted, stages parts that only it can read.
    """
    check_parts(parts, epoch=epoch, start=start)
    for part in parts:
        if (found := place.size(part.name)) != part.bytes:
            seen = "is missing here" if found is None else f"has {found:,} bytes here"
            raise NotStaged(
                f"an executor has staged '{place.locate(part.name)}' with {part.bytes:,} bytes, but it {seen}: mount the sink's"
                " directory under the same path on the host and on every worker"
            )
