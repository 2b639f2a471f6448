"""How many items a page of the change feed may have, by how fast the server answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

GROWS_AFTER = 4
"""How many pages in a row have to arrive in time before a larger one is tried."""


@dataclass(frozen=True, slots=True)
class PageSize:
    """How many items a page may have: halved when the server does not answer in time, doubled again once it does. Pure."""

    items_max: int
    items: int
    in_time: int = 0

    @classmethod
    def of(cls, items_max: int) -> PageSize:
        return cls(items_max, items_max)

    def shrunk(self) -> PageSize:
        return replace(self, items=max(1, self.items // 2), in_time=0)

    def served(self) -> PageSize:
        if self.items == self.items_max:
            return self
        if self.in_time + 1 < GROWS_AFTER:
            return replace(self, in_time=self.in_time + 1)
        return replace(self, items=min(self.items_max, self.items * 2), in_time=0)
