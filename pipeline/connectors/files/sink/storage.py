"""A place for files: four calls, one of which decides everything. A directory and a container of blobs answer them alike.

`put` makes a file unless it is there: if several put one name, in any process, one gets True. A manifest that numbers its
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
# │   ├── FilesRefused   the place is there and refuses: a key, a role, a name
# │   └── FilesNowhere   its address leads nowhere
# ├── FilesUncertain     perhaps done: the answer was lost
# └── FilesDamaged       a file of the manifest, or one that it names, is not what was written


class FilesError(PipelineError):
    """A place that could not be read or written."""


class FilesUnavailable(FilesError):
    """The same call may be tried again, after `retry_after_s` where the place said so."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class FilesRefused(FilesUnavailable):
    """The place answers, and refuses for what the settings or its permissions are."""


class FilesNowhere(FilesUnavailable):
    """The host of its address does not exist."""


class FilesUncertain(FilesError):
    """A file may exist, or may still appear. To put the same bytes under the same name once more is harmless."""


class FilesDamaged(FilesError):
    """Not what was written here. Restore it from a backup, or look at who else writes there."""


class Storage(Protocol):
    """Names are like `a/b/c.json`. Calls block, come from several threads, and raise FilesUnavailable."""

    @property
    def identity(self) -> str:
        """Its address, without secrets."""
        ...

    def prepare(self) -> None:
        """Create it if missing, and check that it keeps what `put` promises."""
        ...

    def put(self, name: str, content: bytes) -> bool:
        """Whether it was made by this call; False if there is one already. It is seen whole or not at all, and outlives
        a loss of power once this has returned, either way. Raises FilesUncertain too.
        """
        ...

    def get(self, name: str) -> bytes | None:
        """None if there is none."""
        ...

    def size(self, name: str) -> int | None:
        """How many bytes a file has; None if there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of all files in a folder and below, in any order. What is there before and after the call is among them."""
        ...

    def delete(self, name: str) -> None:
        """Nothing if there is none."""
        ...

    def locate(self, name: str) -> str:
        """Its location for other programs: an absolute path, or an address."""
        ...

    def for_executors(self, mark: str) -> Storage | None:
        """The same place for another process, which gets it by pickle: without secrets and connections.

        None if another process cannot use it. mark: a folder that the owner of a lease has made, and that executors never make.
        If it is missing, `put` raises FilesRefused and writes nothing.
        """
        ...

    def close(self) -> None: ...


def put_again(place: Storage, name: str, content: bytes, check: Check = lambda: None) -> bool:
    """Put it, and again if the answer was lost. False if it is there already, perhaps by the first try. Raises FilesError.

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

    An executor whose directory is another one, of a volume that is not mounted for example, stages parts that only it can read.
    """
    check_parts(parts, epoch=epoch, start=start)
    for part in parts:
        if (found := place.size(part.name)) != part.bytes:
            seen = "is missing here" if found is None else f"has {found:,} bytes here"
            raise NotStaged(
                f"an executor has staged '{place.locate(part.name)}' with {part.bytes:,} bytes, but it {seen}: mount the sink's"
                " directory under the same path on the host and on every worker"
            )
