"""Where files lie: four calls, one of which decides everything. A directory and a container of blobs answer them alike.

`put` makes a file unless it is there: of all who put one name, in any process, one is told True. A manifest that numbers its
entries needs no more than that; nothing is ever replaced.
"""

from __future__ import annotations

from typing import Protocol


class Place(Protocol):
    """Names are like `a/b/c.json`. Calls block, come from several threads, and raise FilesUnavailable."""

    @property
    def identity(self) -> str:
        """Where it is, without secrets."""
        ...

    def prepare(self) -> None:
        """Make it where it is missing, and see that it keeps what `put` promises."""
        ...

    def put(self, name: str, content: bytes) -> bool:
        """Whether it was made by this call; False where there is one already. It is seen whole or not at all, and outlives
        a loss of power once this has returned, either way. Raises FilesUncertain too.
        """
        ...

    def get(self, name: str) -> bytes | None:
        """None where there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """Of all files in a folder and below, in any order. What is there before and after the call is among them."""
        ...

    def delete(self, name: str) -> None:
        """Nothing where there is none."""
        ...

    def locate(self, name: str) -> str:
        """Where other programs find it: an absolute path, or an address."""
        ...

    def close(self) -> None: ...
